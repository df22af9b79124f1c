"""The toy case's data."""

from trainmark.cases.toy.data import check, generate

__all__ = ["check", "generate"]
