"""What other installed packages offer this one, read once a process: the scan is slow."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoints, entry_points


@cache
def _all() -> EntryPoints:
    return entry_points()


def offered(group: str) -> EntryPoints:
    """Return the entry points under ``group``."""
    return _all().select(group=group)
