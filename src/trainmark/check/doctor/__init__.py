"""Examine a machine before a run: what stops it or spoils its figures, with a remedy for each.

Owns the checks that belong to no vendor and no case; those are asked. ``examination`` has the
table of checks and runs each within a bound. Must not import torch.
"""
