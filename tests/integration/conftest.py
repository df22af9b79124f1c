"""Fixtures of real runs."""

from support.run_fixtures import fifo, restore_default_signals, start_run, trainmark

__all__ = ["fifo", "restore_default_signals", "start_run", "trainmark"]
