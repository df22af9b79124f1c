"""The figures of this case beside those of every case."""

from trainmark.train.causal_flops import compute

__all__ = ["compute"]
