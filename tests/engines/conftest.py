"""Fixtures of runs on real engines, which the tests set up and take down themselves."""

from engines.browser import browser, visit
from support.run_fixtures import fifo, restore_default_signals, start_run, trainmark

__all__ = ["browser", "fifo", "restore_default_signals", "start_run", "trainmark", "visit"]
