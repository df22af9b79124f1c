"""Read one cell: a number, a percentage, a memory, a quality with its target, a formula.

Owns the grammar of other people's cells. Every figure keeps its text; what does not follow the
grammar is refused with a reason, never guessed.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from trainmark.published.audit.qualities import is_quality
from trainmark.published.importers.headers import column_of_unit
from trainmark.published.importers.units import SECONDS, parse_unit
from trainmark.published.importers.vocabulary import WORDS, is_nothing, plain
from trainmark.published.log import DIGITS
from trainmark.record.work import Reading
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.published.importers.headers import Column
    from trainmark.published.importers.units import Unit
    from trainmark.spec import Message

_NUMBER = re.compile(rf"[+-]?(?:{DIGITS}|\.[0-9]+)")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,(?:[0-9]{1,2}|[0-9]{4,})(?![0-9,.])")
_UNCLEAR_COMMA = re.compile(r"[+-]?0+,")  # thousands do not begin with 0
_MAX_BYTES = 1 << 40  # of a device; a larger number without a unit is in another one
_TERM = re.compile(rf"(-?{DIGITS})\s*(?:\*\s*[0-9]{{1,6}})?\s*([A-Za-z]*)")  # 59.23*8G
# Of `304.3 +/- 0.5` and `110.95 GiB (60.2%)` the value counts.
_SPREAD = re.compile(r"\s*(?:\+/-|\+-|±).*|\s+\([^()]*%\)$")
_CLOCK = re.compile(r"([0-9]{1,4}):([0-5][0-9]):([0-5][0-9](?:\.[0-9]+)?)")
_PART_OF_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zµ\u4e00-\u9fff]+)\s*")
_OF_DEVICES = re.compile(r"/\s*([0-9]{1,6})\s*=")  # `17.23 * 2048 / 8 = 4410 tokens/s`
_TIME: dict[str, float] = WORDS["units"]["time"]
_MEMORY: dict[str, float] = {"": 1073741824, **WORDS["units"]["memory"]}
_MULTIPLES = {"k": 1e3, "m": 1e6, "b": 1e9}  # of rates: `34.08M`
_PLAIN = {"": 1.0}
_SHARE, _POINTS = _PLAIN | {"%": 0.01}, _PLAIN | {"%": 1.0}


class CellError(ValueError):
    """A cell that cannot be read; ``reason`` says why."""

    def __init__(self, reason: Message) -> None:
        super().__init__(reason.code)
        self.reason = reason


def with_commas(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[Column]:
    """Return the columns of a table with the mark of those that print decimal commas.

    Those whose cells have commas and no points, one of which at least is no comma of thousands.
    """
    marked = []
    for place, column in enumerate(columns):
        numbers = [x for row in rows if re.search("[0-9]", x := plain(row[place]))]
        commas = len(numbers) > 1 and any(map(_DECIMAL_COMMA.match, numbers))
        marked.append(replace(column, decimal_comma=commas and "." not in "".join(numbers)))
    return marked


def read(text: str, column: Column, *, world_size: int | None = None) -> dict[str, Reading]:
    """Return the figures of one cell by their names.

    Args:
        world_size: devices of the row, by which a formula may divide.

    Raises:
        CellError: the cell has something else than what its column holds.
    """
    cell = _SPREAD.sub("", plain(text).lstrip("~≈ "))
    if column.decimal_comma:
        cell = cell.replace(",", ".")
    if column.is_open and not is_nothing(text):
        column, cell = _with_own_unit(column, cell, world_size)
    values = _values(text, cell, column)
    return {key: Reading(value=x, unit=column.unit, raw=text) for key, x in values.items()}


def _values(text: str, cell: str, column: Column) -> Mapping[str, float | None]:
    """Return the figures of a cell by their names, in the units of records."""
    name = f"{column.name}_target" if column.role == "target" else column.name
    printed = column.printed.printed if column.printed else ""
    if is_nothing(text):
        return {name: None}
    if column.reads == "memory":
        return _memory(f"{cell} {printed}".strip())
    if column.reads == "quality":
        return _quality(f"{cell} {printed}".strip(), name)
    if column.reads == "percent":
        return {name: _percent(f"{cell} {printed}".strip())}
    return {name: _figure(cell, column)}


def _with_own_unit(column: Column, cell: str, world_size: int | None) -> tuple[Column, str]:
    """Return the column that a cell's own unit makes of one that is open, and its result."""
    result = cell.rpartition("=")[2].strip()  # of `17.23 * 2048 / 8 = 4410 tokens/s`
    seconds = _duration(result)
    if seconds is not None and len(_PART_OF_TIME.findall(result)) != 1:
        return column_of_unit(column.header, column.name, SECONDS), repr(seconds)
    match = _NUMBER.match(result)
    unit = parse_unit(result[match.end() :]) if match else None
    if unit is None:
        return column, result
    divided = _OF_DEVICES.search(cell)
    if divided and unit.quantity == "rate" and world_size in {None, int(divided[1])}:
        unit = replace(unit, per_device=True)
    named = column_of_unit(column.header, column.name, unit)
    if named.reads == "memory":  # the cell has the unit already
        named = replace(named, printed=None)
    return named, result


def _figure(cell: str, column: Column) -> float:
    """Return the value of a cell in the unit of its column."""
    if column.unit == "s" and (seconds := _duration(cell)) is not None:
        return seconds
    result = cell.rpartition("=")[2].strip()
    match = _NUMBER.match(result)
    if match is None or _UNCLEAR_COMMA.match(result):
        raise _no_number(cell, column)
    value, behind = float(match[0].replace(",", "")), result[match.end() :].strip()
    multiple = _MULTIPLES.get(behind.casefold())
    if multiple and column.measures and column.measures.quantity == "rate":
        value, behind = value * multiple, ""
    unit = column.printed
    if behind:
        unit = parse_unit(behind)
        if unit is None or not _fits(unit, column):
            raise _no_number(cell, column)
    if unit is not None and unit.factor != column.scale:
        value = value * unit.factor / column.scale
    if not math.isfinite(value):
        raise _no_number(cell, column)
    return value


def _fits(unit: Unit, column: Column) -> bool:
    """Tell whether a cell's own unit measures what its column does."""
    wanted = column.measures
    if wanted is None or (unit.quantity, unit.work) != (wanted.quantity, wanted.work):
        return False
    return wanted.per_device or not unit.per_device


def _no_number(cell: str, column: Column) -> CellError:
    wanted = column.measures.printed if column.measures else None
    return CellError(message("cell_is_no_number", text=cell[:60], units=wanted))


def _duration(cell: str) -> float | None:
    """Return the seconds of ``1h22min`` or ``03:19:59``; None: it is no such time."""
    text = cell.strip().casefold()
    if clock := _CLOCK.fullmatch(text):
        return 3600 * int(clock[1]) + 60 * int(clock[2]) + float(clock[3])
    parts = _PART_OF_TIME.findall(text)
    printed = "".join(match.group() for match in _PART_OF_TIME.finditer(text))
    if not parts or printed != text or not all(word in _TIME for _, word in parts):
        return None
    return sum(float(number) * _TIME[word] for number, word in parts)


def _number(text: str, units: Mapping[str, float]) -> tuple[float, str]:
    """Return a number in the wanted unit, and the unit that is printed behind it."""
    text = text.strip()
    match = _NUMBER.match(text)
    word = text[match.end() :].strip().casefold() if match else ""
    value = float(match[0].replace(",", "")) * units.get(word, math.nan) if match else math.nan
    if not math.isfinite(value) or _UNCLEAR_COMMA.match(text):
        known = ", ".join(filter(None, units)) or None
        raise CellError(message("cell_is_no_number", text=text[:60], units=known))
    return value, word


def _percent(cell: str) -> float:
    """Return per cent: without a sign, at most 1 is a share."""
    value, word = _number(cell, _POINTS)
    return 100 * value if not word and abs(value) <= 1 else value


def _quality(cell: str, name: str) -> dict[str, float]:
    """Read ``0.91``, ``0.91/0.90`` with the target, and both qualities of ``Accuracy / F1``."""
    names = [part.strip() for part in name.split("/")]
    are_two = len(names) == len(cell.split("/")) == 2 and all(map(is_quality, names))
    texts = cell.split("/", 1)
    signs = _SHARE if len({"%" in text for text in texts}) == 1 else _PLAIN  # of both, or not
    values = [_number(text, signs)[0] for text in texts]
    return dict(zip(names if are_two else (name, f"{name}_target"), values, strict=False))


def _memory(cell: str) -> dict[str, float]:
    """Read ``13.9/40.0``, ``59.2 GB``, ``59.23*8G`` and sums of such products, in GiB.

    A product is one device's memory times the devices; of a sum the largest device counts.
    """
    parts = re.split("[+/]", cell.replace("×", "*"))
    terms = [match.groups() for part in parts if (match := _TERM.fullmatch(part.strip()))]
    unit = terms[-1][1] if terms else ""  # also that of those before it which have none
    values = [_number(f"{number}{printed or unit}", _MEMORY)[0] for number, printed in terms]
    wrong = len(terms) < len(parts) or ("/" in cell and len(parts) != len(("used", "total")))
    if wrong or (not unit and max(values) > _MAX_BYTES):
        units = ", ".join(filter(None, _MEMORY))
        raise CellError(message("cell_is_no_number", text=cell[:60], units=units))
    if "/" in cell:
        return dict(zip(("mem", "mem_total"), values, strict=True))
    return {"mem": max(values)}
