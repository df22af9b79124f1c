"""The results that words name, with a Python warning for each record that cannot be read."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from trainmark.results.selection import select_results

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.results.selection import Selection


def select(words: Sequence[str | Path], *, verify: bool = True, rows: bool = True) -> Selection:
    """Return the results that words name; warn about each record that cannot be read.

    Args:
        words: run directories, record files, bundles and so on; empty: the newest run.
        verify: whether to compare records with their events.
        rows: whether a word may also name figures that others published; each set of them is a row
            of the selection instead of a record. If false, ``reference:CASE`` is refused, and other
            published files count as files without a record.
    """
    selection = select_results([str(word) for word in words], verify=verify, rows=rows)
    for fault in selection.skipped:  # the errors of records that cannot be read
        warn(fault)
    return selection


def warn(remark: object) -> None:
    """Show a remark as a Python warning."""
    warnings.warn(str(remark), stacklevel=3)  # 3: the caller of the function that warns
