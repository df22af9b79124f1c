"""Turn values into the strings that tables show, and escape strings for Markdown.

The functions take plain values, no records, and are the same for all languages.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainmark.errors import to_one_line
from trainmark.record.compared import format_measured_quality

if TYPE_CHECKING:
    from collections.abc import Sequence

NOTHING = "–"  # a value that is not known
GIB = 1024**3
# Texts that are aligned as numbers: with or without a mark in brackets, a sign, a power of ten or a
# percent sign; the marks for an unknown number; and several numbers with slashes, ``0.80/0.81``.
_NUMBER = re.compile(r"(\[\d+\] )?[-+−]?[\d,]+(\.\d+)?(e[-+]?\d+)?%?|[/–]|[\d.]+/[\d./]+")
_MARKDOWN_SYNTAX = re.compile(r"[\\|*`\[\]]|~~|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_START_OF_ENTITY = re.compile(r"&(?=#?\w+;)")  # of `&lt;`, which Markdown would show as `<`
_SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "bytes": ((GIB, "GiB"), (1024**2, "MiB"), (1024, "KiB")),
    "J": ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J")),
    "bytes/s": ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")),
    "FLOP/s": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"), (1e3, "kFLOP/s")),
}


def is_number(cell: str) -> bool:
    """Return whether a cell holds a number, or the mark of a number that is not known."""
    return _NUMBER.fullmatch(cell) is not None


def are_numbers(column: Sequence[str]) -> bool:
    """Return whether a column has cells with text, and each of those is a number."""
    filled = [cell for cell in column if cell]
    return bool(filled) and all(map(is_number, filled))


def escape_markdown(text: object) -> str:
    """Return ``text`` as one line of Markdown that shows it literally, also in a table's cell."""
    # HTML in the text, which Markdown would interpret: entities such as ``&lt;``, of which the
    # pattern matches the ampersand alone, and tags. Markdown shows any other ampersand as it is.
    line = _START_OF_ENTITY.sub("&amp;", to_one_line(text)).replace("<", "&lt;")
    return _MARKDOWN_SYNTAX.sub(lambda match: "\\" + match.group(), line)


def choose_code_fence(text: str) -> str:
    """Return a code fence that nothing in ``text`` can close."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    return "`" * max(3, longest + 1)


def format_rate(value: float | None) -> str:
    """Return a rate with one decimal, or below 10 with four significant digits."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:#.4g}"


def format_rounded(value: float, digits: int = 3) -> str:
    """Return a value with so many significant digits; a large one not as a power of ten."""
    rounded = float(f"{value:.{digits}g}")
    if rounded == 0:
        return "0"
    if abs(rounded) >= 10 ** (digits - 1):  # no digit after the point is significant
        return f"{rounded:,.0f}"
    return f"{rounded:#.{digits}g}"


def format_duration(seconds: float) -> str:
    """Return a duration in words: ``46.2 s``, ``11 min 40 s``, ``3 h 12 min``.

    Below 100 s, the three significant digits include a decimal. Below 2 h, the seconds are shown.
    """
    if seconds < 100:
        return f"{format_rounded(seconds)} s"
    minutes, remaining_s = divmod(round(seconds), 60)
    if minutes < 2 * 60:
        return f"{minutes} min {remaining_s} s"
    return f"{minutes // 60} h {minutes % 60} min"


def format_quality(value: float | None, *, target: float | None = None) -> str:
    """Return a quality, with more decimals where rounding would hide a missed target.

    Args:
        value: None: it is not known.
        target: the quality that a run must reach; None: it has no target.
    """
    return NOTHING if value is None else format_measured_quality(value, target=target)


def format_quality_and_target(value: float | None, target: float | None) -> str:
    """Return a quality with its target, ``0.8026/0.802``.

    Without a target it is the quality alone; without a quality it is ``NOTHING``.
    """
    if value is None or target is None:
        return format_quality(value)
    return f"{format_quality(value, target=target)}/{target:g}"


def format_memory(used_bytes: float | None, total_bytes: float | None) -> str:
    """Return used/total in GiB, one decimal each; used alone if the total is not known."""
    if used_bytes is None:
        return NOTHING
    used = f"{used_bytes / GIB:.1f}"
    return used if total_bytes is None else f"{used}/{total_bytes / GIB:.1f}"


def choose_readable_unit(largest: float, unit: str) -> tuple[float, str]:
    """Return the divisor that converts values to a readable unit, and that unit.

    Args:
        largest: the largest absolute value, in ``unit``. It is at least 1 in the readable unit, if
            a unit is small enough.
        unit: of the values, for example ``bytes``; one without a readable unit is kept.
    """
    scales = _SCALES.get(unit, ((1.0, unit),))
    if largest == 0:  # all values are 0, which any unit would show
        return scales[0]
    for divisor, readable_unit in scales:  # the largest divisor first
        if largest >= divisor:
            return divisor, readable_unit
    return scales[-1]


def scale_to_unit(values: Sequence[float | None], unit: str) -> tuple[list[str], str]:
    """Return values as texts in one common readable unit, and that unit.

    A text has one decimal, or below 10 four significant digits; that of None is ``NOTHING``.
    """
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    divisor, readable_unit = choose_readable_unit(largest, unit)
    texts = [format_rate(None if value is None else value / divisor) for value in values]
    return texts, readable_unit


def format_short_count(value: int) -> str:
    """Return a count, from 1000 with three significant digits: ``610``, ``12.7k``, ``67.0M``."""
    for factor, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * factor:  # 999,500 is rounded to `1.00M`, not to `1000k`
            return f"{format_rounded(value / factor)}{letter}"
    return str(value)


def format_integer(value: int) -> str:
    """Return an integer with commas between groups of three digits: ``1,234,567``."""
    return f"{value:,}"
