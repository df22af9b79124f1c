"""Benchmarks are programs that stop signals end."""

from support.run_fixtures import signals_as_usual

__all__ = ["signals_as_usual"]
