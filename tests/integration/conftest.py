"""Fixtures of real runs."""

from support.run_fixtures import fifo, signals_as_usual, started, trainmark

__all__ = ["fifo", "signals_as_usual", "started", "trainmark"]
