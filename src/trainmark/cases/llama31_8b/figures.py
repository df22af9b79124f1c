"""The figures of this case beside those of every case."""

from trainmark.train.step_memory import causal_mfu as compute

__all__ = ["compute"]
