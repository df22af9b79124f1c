"""A value of a record, compared with the value that it must have."""

from __future__ import annotations

from typing import Any, NamedTuple


class ComparedValue(NamedTuple):
    """A value of a record, and the value that follows from others. If they differ, one is wrong.

    Args:
        place: path of the value in the record, ``quality.history[0].step``.
        recorded: as the record has it.
        expected: as it follows from other values.
    """

    place: str
    recorded: Any
    expected: Any
