"""Lists of numbers in the form in which the Linux kernel lists cores: ``0-3,8-11``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def parse_ranges(text: str) -> list[int]:
    """Return the numbers in a list that ``format_ranges`` wrote, such as ``0-3,8-11``.

    Both ends of a range belong to it. An empty list has no numbers.
    """
    if not text:
        return []
    numbers: list[int] = []
    for item in text.split(","):
        first, _, last = item.partition("-")
        if not last:  # a single number
            last = first
        numbers += range(int(first), int(last) + 1)
    return numbers


def format_ranges(values: Iterable[int]) -> str:
    """Return numbers of ranks, nodes or cores as a list of the form ``0-3,8-11``."""
    numbers = set(values)
    # The first and the last number of each sequence of consecutive numbers.
    firsts = sorted(number for number in numbers if number - 1 not in numbers)
    lasts = sorted(number for number in numbers if number + 1 not in numbers)
    return ",".join(
        f"{first}" if first == last else f"{first}-{last}"
        for first, last in zip(firsts, lasts, strict=True)
    )
