"""Compute the figures that this case adds to the common ones."""

from trainmark.train.step_memory import compute_causal_mfu as compute

__all__ = ["compute"]
