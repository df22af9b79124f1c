"""Find plugins: the entry points of other installed packages, read once per process.

The standard library's reader takes longer to load than the rest of ``trainmark list``, so
it is loaded only when some package's entry points mention this project at all.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_PREFIX = b"[trainmark."


@cache
def _anybody_offers() -> bool:
    folders = [Path(item) for item in sys.path if item]
    return any(
        _PREFIX in file.read_bytes()
        for folder in folders
        if folder.is_dir()
        for file in folder.glob("*-info/entry_points.txt")
    )


def offered(group: str) -> list[EntryPoint]:
    """Return the entry points of ``group``, which begins with ``trainmark.``."""
    if not _anybody_offers():
        return []
    from importlib.metadata import entry_points

    return list(entry_points(group=group))
