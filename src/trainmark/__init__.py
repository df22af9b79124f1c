"""Measure how fast an accelerator really trains."""

__version__ = "0.1.0"
