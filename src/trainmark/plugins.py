"""Find plugins: the entry points of other installed packages, read once per process.

``importlib.metadata`` takes longer to import than the rest of ``trainmark list``, so it is imported
only if the entry points of some package mention this project at all.
"""

from __future__ import annotations

import sys
from functools import cache
from os import scandir
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@cache
def _has_any_plugin() -> bool:
    """Tell whether an installed package has an entry point of a group ``trainmark.…``.

    Reads the packages' files itself, because that is faster than to import
    ``importlib.metadata``, which is then needed for few users only.
    """
    for folder in sys.path:
        try:
            # The folders of metadata: NAME.dist-info or NAME.egg-info.
            packages = [item.path for item in scandir(folder) if item.name.endswith("-info")]
        except OSError:  # the entry is a zip file or does not exist
            continue
        for package in packages:
            try:
                with open(f"{package}/entry_points.txt", "rb") as file:  # noqa: PTH123 - faster than pathlib
                    if b"[trainmark." in file.read():
                        return True
            except OSError:  # most packages have no entry points
                continue
    return False


def find_entry_points(group: str) -> list[EntryPoint]:
    """Return the entry points of ``group``, which begins with ``trainmark.``."""
    if not _has_any_plugin():  # saves most users the slow import below
        return []
    from importlib.metadata import entry_points

    return list(entry_points(group=group))
