"""Benchmarks are programs that stop signals end."""

from support.run_fixtures import restore_default_signals

__all__ = ["restore_default_signals"]
