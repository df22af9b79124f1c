"""Fixtures of runs on real engines, which the tests set up and take down themselves."""

from engines.browser import browser, visit
from support.run_fixtures import fifo, signals_as_usual, started, trainmark

__all__ = ["browser", "fifo", "signals_as_usual", "started", "trainmark", "visit"]
