"""Lists of numbers in the form in which the Linux kernel lists cores: ``0-3,8-11``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def parse_ranges(text: str) -> list[int]:
    """Return the numbers in a list that ``format_ranges`` wrote, such as ``0-3,8-11``.

    Both ends of a range belong to it. An empty list has no numbers.
    """
    return [number for numbers in _split_ranges(text) for number in numbers]


def count_numbers(text: str) -> int:
    """Return how many numbers ``parse_ranges`` would return, without listing them."""
    return sum(len(numbers) for numbers in _split_ranges(text))


def _split_ranges(text: str) -> list[range]:
    """Return a range of numbers for each item of a list such as ``0-3,8-11``."""
    if not text:
        return []
    ranges: list[range] = []
    for item in text.split(","):
        first, _, last = item.partition("-")
        if not last:  # a single number
            last = first
        ranges.append(range(int(first), int(last) + 1))
    return ranges


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
