"""What other installed packages offer this one, read once a process: the scan is slow."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any


@cache
def _all() -> Any:  # its class differs between Python 3.11 and 3.12; both can select
    return entry_points()


def offered(group: str) -> EntryPoints:
    """Return the entry points under ``group``."""
    found: EntryPoints = _all().select(group=group)
    return found
