"""Honest training programs as people write them, each with a stopwatch of its own."""
