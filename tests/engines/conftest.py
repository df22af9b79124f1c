"""Fixtures of runs on real engines, which the tests set up and take down themselves."""

from run_fixtures import fifo, signals_as_usual, started, trainmark

__all__ = ["fifo", "signals_as_usual", "started", "trainmark"]
