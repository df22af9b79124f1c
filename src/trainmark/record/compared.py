"""A value of a record, compared with the value or the range that follows from other values."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

_Ordered = TypeVar("_Ordered", float, datetime)


class ComparedValue(NamedTuple):
    """A value of a record, and the value that follows from others. If they differ, one is wrong.

    Args:
        place: path of the value in the record, ``quality.history[0].step``.
        recorded: as the record has it.
        expected: as it follows from other values; if only its range follows, the end of the range
            that is nearer to ``recorded``.
    """

    place: str
    recorded: Any
    expected: Any


def cut_around_difference(text: str, other: str, max_characters: int) -> tuple[str, str]:
    """Return two different texts, cut so that both show their first difference.

    Args:
        max_characters: of each text, without the ellipses where it is cut.
    """
    if max(len(text), len(other)) <= max_characters:
        return text, other
    first_difference = 0
    for character, other_character in zip(text, other, strict=False):
        if character != other_character:
            break
        first_difference += 1
    begin = max(0, first_difference - max_characters // 2)

    def cut(whole: str) -> str:
        part = whole[begin : begin + max_characters]
        is_cut_behind = begin + max_characters < len(whole)
        return ("…" if begin else "") + part + ("…" if is_cut_behind else "")

    return cut(text), cut(other)


def format_measured_quality(value: float, *, target: float | None = None) -> str:
    """Return a quality with four decimals, more where rounding would hide a missed target.

    Zeros at the end are left out, as on the pages where others publish results: ``0.908``. One
    decimal always stays.

    Args:
        target: the quality that a run must reach; None: it has no target.
    """
    text = f"{value:.4f}"
    if target is not None:
        for digits in range(4, 7):  # six decimals at most
            text = f"{value:.{digits}f}"
            rounded = float(text)
            # Rounding hides nothing if the rounded value is on the value's side of the target.
            is_same_above = (rounded > target) == (value > target)
            is_same_below = (rounded < target) == (value < target)
            if is_same_above and is_same_below:
                break
    whole, point, decimals = text.partition(".")
    return whole + point + (decimals.rstrip("0") or "0")


def move_into_range(value: _Ordered, low: _Ordered, high: _Ordered) -> _Ordered:
    """Return a value that lies in its range unchanged; else the nearer end of the range."""
    return max(low, min(value, high))


def check_range(
    place: str, value: float | None, low: float, high: float
) -> Iterator[ComparedValue]:
    """Yield a value that is outside of its range, with the nearer end of the range.

    Args:
        place: path of the value in the record, such as ``quality.history[0].step``.
        value: None: the record does not have it, and nothing is checked.
        low: lowest value that it may have.
        high: highest value that it may have.
    """
    if value is None:
        return
    nearest = move_into_range(value, low, high)
    if value != nearest:
        yield ComparedValue(place, value, nearest)


def check_at_most(place: str, value: float, high: float) -> Iterator[ComparedValue]:
    """Yield a value that is too high, with the highest value that it may have.

    Args:
        place: path of the value in the record, such as ``quality.history[0].step``.
        high: highest value that it may have.
    """
    if value > high:
        yield ComparedValue(place, value, high)


def check_at_least(place: str, value: float, low: float) -> Iterator[ComparedValue]:
    """Yield a value that is too low, with the lowest value that it may have.

    Args:
        place: path of the value in the record, such as ``quality.history[0].step``.
        low: lowest value that it may have.
    """
    if value < low:
        yield ComparedValue(place, value, low)
