"""Figures that other programs and pages printed are read here, each with its place and its text."""
