"""Find plugins: the entry points of other installed packages, read once per process.

The standard library's reader takes longer to load than the rest of ``trainmark list``, so
it is loaded only when some package's entry points mention this project at all.
"""

from __future__ import annotations

import sys
from functools import cache
from os import scandir
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@cache
def _any_package_offers() -> bool:
    for folder in sys.path:
        try:
            packages = [item.path for item in scandir(folder) if item.name.endswith("-info")]
        except OSError:  # a zip, or not there
            continue
        for package in packages:
            try:
                with open(f"{package}/entry_points.txt", "rb") as file:  # noqa: PTH123 - of hundreds
                    if b"[trainmark." in file.read():
                        return True
            except OSError:  # most have none
                continue
    return False


def find_entry_points(group: str) -> list[EntryPoint]:
    """Return the entry points of ``group``, which begins with ``trainmark.``."""
    if not _any_package_offers():
        return []
    from importlib.metadata import entry_points

    return list(entry_points(group=group))
