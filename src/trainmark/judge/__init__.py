"""Verdicts: comparisons, gates, audits, rules of a division, and their statistics."""
