"""Verdicts: comparisons, gates, rules of a division, and their statistics."""
