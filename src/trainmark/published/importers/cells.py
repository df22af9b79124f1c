"""Read one cell: a number, a percentage, a memory, a quality with its target, or a formula.

Owns the grammar of other people's cells. A figure keeps its text. A cell that does not follow the
grammar is refused with a reason; nothing is guessed.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from trainmark.published.audit.qualities import is_quality
from trainmark.published.importers.column import make_unit_column
from trainmark.published.importers.units import SECONDS, parse_unit
from trainmark.published.importers.vocabulary import WORDS, is_without_value, strip_markup
from trainmark.published.log import DIGITS
from trainmark.record.work import Reading
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.published.importers.column import Column
    from trainmark.published.importers.units import Unit
    from trainmark.spec import Message

_NUMBER = re.compile(rf"[+-]?(?:{DIGITS}|\.[0-9]+)")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,(?:[0-9]{1,2}|[0-9]{4,})(?![0-9,.])")
_UNCLEAR_COMMA = re.compile(r"[+-]?0+,")  # thousands do not begin with 0
_MAX_BYTES = 1 << 40  # of a device; a larger number without a unit is in another one
_MEMORY_TERM = re.compile(rf"(-?{DIGITS})\s*(?:\*\s*[0-9]{{1,6}})?\s*([A-Za-z]*)")  # 59.23*8G
# Of `304.3 +/- 0.5` and `110.95 GiB (60.2%)` the value counts.
_SPREAD = re.compile(r"\s*(?:\+/-|\+-|±).*|\s+\([^()]*%\)$")
_CLOCK = re.compile(r"([0-9]{1,4}):([0-5][0-9]):([0-5][0-9](?:\.[0-9]+)?)")
_PART_OF_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zµ\u4e00-\u9fff]+)\s*")
# The devices by which a formula divides: `17.23 * 2048 / 8 = 4410 tokens/s`.
_DIVISOR = re.compile(r"/\s*([0-9]{1,6})\s*=")
# Factors by the unit behind a number; an empty text stands for no unit.
_TIME_UNITS: dict[str, float] = WORDS["units"]["time"]  # to seconds
_GIB = 1 << 30
_MEMORY_UNITS: dict[str, float] = {"": _GIB, **WORDS["units"]["memory"]}  # to bytes
_RATE_MULTIPLES = {"k": 1e3, "m": 1e6, "b": 1e9}  # of rates: `34.08M`
_NO_UNIT = {"": 1.0}
_MAX_TEXT = 60  # characters of a cell in messages
_FRACTION_UNITS = {"": 1.0, "%": 0.01}  # to a fraction of 1
_PERCENT_UNITS = {"": 1.0, "%": 1.0}  # to per cent


class CellError(ValueError):
    """A cell that cannot be read; ``reason`` says why."""

    def __init__(self, reason: Message) -> None:
        super().__init__(reason.code)
        self.reason = reason


def mark_decimal_commas(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[Column]:
    """Return the columns of a table, with ``decimal_comma`` set if they print decimal commas.

    A column prints them if its numbers have no points, and at least one comma cannot separate
    thousands: ``0,12``.

    Args:
        columns: of the table, read from its headers.
        rows: the cells of each line, at least as many as there are columns.
    """
    marked_columns = []
    for index, column in enumerate(columns):
        texts = [strip_markup(row[index]) for row in rows]
        numbers = [text for text in texts if re.search("[0-9]", text)]
        has_decimal_comma = any(_DECIMAL_COMMA.match(number) for number in numbers)
        has_point = any("." in number for number in numbers)
        # One number alone is not enough to tell.
        prints_decimal_commas = len(numbers) > 1 and has_decimal_comma and not has_point
        marked_columns.append(replace(column, decimal_comma=prints_decimal_commas))
    return marked_columns


def read_cell(text: str, column: Column, *, world_size: int | None = None) -> dict[str, Reading]:
    """Return the figures of one cell by their names.

    Most cells have one figure. ``0.91/0.90`` has two, a quality with its target or two qualities,
    and ``13.9/40.0`` the used and the total memory.

    Args:
        text: the cell as printed.
        column: what the header says of the cells: figure, unit, and how to read them.
        world_size: devices of the row: a formula that divides by them has the rate of one device;
            None: not known.

    Raises:
        CellError: the cell cannot be read as a value of its column: no number, or another unit.
    """
    # Of `304.3 +/- 0.5` the value counts. `~` is not lost: the audit reads it in the text, which
    # the reading keeps.
    cell = _SPREAD.sub("", strip_markup(text).lstrip("~≈ "))
    if column.decimal_comma:  # the column prints `0,12` for 0.12
        cell = cell.replace(",", ".")
    # The header has no unit, so the unit in the cell decides which figure it is.
    if column.has_unit_in_cells and not is_without_value(text):
        column, cell = _apply_cell_unit(column, cell, world_size)
    return {
        name: Reading(value=value, unit=column.unit, raw=text)
        for name, value in _read_values(text, cell, column).items()
    }


def _read_values(text: str, cell: str, column: Column) -> Mapping[str, float | None]:
    """Return the figures of a cell by their names, in the units of records; None: without a value.

    Args:
        text: the cell as printed.
        cell: the same without markup, a leading ``~`` and the spread behind the value, ``+/- 0.5``.
        column: what the header says of the cells. Its ``role`` is ``target`` if they print the
            wanted value of a quality, which gets the name ``accuracy_target``.
    """
    name = f"{column.name}_target" if column.role == "target" else column.name
    if is_without_value(text):
        return {name: None}
    # Memory, qualities and percentages have parsers of their own, which read a unit only behind the
    # number: the header's unit is put there.
    if column.cell_kind == "memory":  # of `13.9/40.0` the unit at the end holds for both
        return _parse_memory(_add_header_unit(cell, column))
    if column.cell_kind == "quality":
        numbers = [_add_header_unit(part, column) for part in cell.split("/")]
        return _parse_quality("/".join(numbers), name)
    if column.cell_kind == "percent":
        return {name: _parse_percent(_add_header_unit(cell, column))}
    return {name: _read_figure(cell, column)}


def _add_header_unit(text: str, column: Column) -> str:
    """Return a number with the unit of its column's header, unless it has a unit of its own.

    Args:
        text: of a cell or a part of it.
        column: its ``printed_unit`` is the unit in the header, `%` of `MFU (%)`; None: it has none.
    """
    text = text.strip()
    if column.printed_unit is None or not text[-1:].isdigit():  # a unit stands behind the number
        return text
    return f"{text} {column.printed_unit.printed}"


def _apply_cell_unit(column: Column, cell: str, world_size: int | None) -> tuple[Column, str]:
    """Return the column as the unit in a cell defines it, and the text of the cell's value.

    The header has no unit, so the unit in the cell decides which figure it is. The value of a
    formula is behind its last ``=``.

    Args:
        column: whose header has no unit; its ``name`` is the header without words for precisions:
            ``throughput`` of ``throughput (bf16)``.
        cell: a number with a unit, or a formula: ``17.23 * 2048 / 8 = 4410 tokens/s``, which has
            the rate of one device if it divides by the number of devices.
        world_size: devices of the row; None: not known.
    """
    result = cell.rpartition("=")[2].strip()  # of a formula; else the whole cell
    seconds = _parse_duration(result)
    # `1h22min` has two parts with a unit, `03:19:59` has none. `82min` has one: it is a number with
    # a unit, and is read below.
    if seconds is not None and len(_PART_OF_TIME.findall(result)) != 1:
        seconds_column = make_unit_column(column.header, column.name, SECONDS)
        return seconds_column, repr(seconds)  # the duration as a number
    match = _NUMBER.match(result)
    unit = parse_unit(result[match.end() :]) if match else None
    if unit is None:  # a bare number stays a figure without a unit
        return column, result
    divisor = _DIVISOR.search(cell)  # `/ 8 =`; the group is `8`
    if divisor and unit.quantity == "rate":
        # A formula that divides by the devices has the rate of one device. If their number is not
        # known, the divisor is taken for it.
        divides_by_devices = world_size is None or int(divisor[1]) == world_size
        # A formula that divides by something else keeps the rate that its unit says.
        if divides_by_devices:
            unit = replace(unit, per_device=True)
    # The figure follows from both: `throughput` in `tokens/s` is the rate of tokens.
    return make_unit_column(column.header, column.name, unit), result


def _read_figure(cell: str, column: Column) -> float:
    """Return the value of a cell in the unit in which records have the figure of its column.

    Args:
        cell: a number with or without a unit, a duration such as ``1h22min``, or a formula whose
            result is behind its last ``=``.
        column: its ``unit`` is the unit of the returned value, ``unit_factor`` the factor of that
            to the base unit, ``printed_unit`` the unit in the header, and ``cell_unit`` the one
            that cells may repeat behind their number.

    Raises:
        CellError: the cell is not a number, or has a unit that measures something else.
    """
    if column.unit == "s":
        seconds = _parse_duration(cell)
        if seconds is not None:
            return seconds
    result = cell.rpartition("=")[2].strip()  # of a formula; else the whole cell
    match = _NUMBER.match(result)
    if match is None or _UNCLEAR_COMMA.match(result):  # `0,5`: its comma separates no thousands
        raise _make_error(cell, column)
    value = float(match[0].replace(",", ""))
    text_behind = result[match.end() :].strip()
    multiple = _RATE_MULTIPLES.get(text_behind.casefold())  # 1e6 of `34.08M`
    # Only of rates: behind a time, `m` stands for minutes.
    if multiple and column.cell_unit and column.cell_unit.quantity == "rate":
        value *= multiple
        text_behind = ""
    unit = column.printed_unit  # the unit in the header counts unless the cell has its own
    if text_behind:
        unit = parse_unit(text_behind)
        if unit is None or not _is_same_quantity(unit, column):
            raise _make_error(cell, column)
    # Both factors convert to the same base unit: seconds, bytes, work a second.
    if unit is not None and unit.factor != column.unit_factor:
        value = value * unit.factor / column.unit_factor
    if not math.isfinite(value):
        raise _make_error(cell, column)
    return value


def _is_same_quantity(unit: Unit, column: Column) -> bool:
    """Tell whether the unit in a cell measures what its column does.

    Args:
        unit: the one in the cell.
    """
    expected = column.cell_unit  # that of the header; else that of records; None: neither has one
    if expected is None:
        return False
    # `quantity` is `time`, `memory`, `rate` or the like. `work` is what a rate counts: samples,
    # tokens or steps.
    if unit.quantity != expected.quantity or unit.work != expected.work:
        return False
    # A cell may leave out that a rate is that of one device if the column says it. A cell must not
    # say it if the column does not.
    return expected.per_device or not unit.per_device


def _make_error(cell: str, column: Column) -> CellError:
    """Return the error that a cell is not a number in the unit that its column expects."""
    return _make_number_error(cell, column.cell_unit.printed if column.cell_unit else "")


def _make_number_error(text: str, units: str) -> CellError:
    """Return the error that a text is not a number, with the units that it may have.

    Args:
        units: separated by commas; empty: no unit is known.
    """
    text = text[:_MAX_TEXT]
    if not units:
        return CellError(message("cell_is_no_plain_number", text=text))
    return CellError(message("cell_is_no_number", text=text, units=units))


def _parse_duration(cell: str) -> float | None:
    """Return the seconds of ``1h22min`` or ``03:19:59``; None: the cell has no such form."""
    text = cell.strip().casefold()
    clock = _CLOCK.fullmatch(text)  # its groups: hours, minutes, seconds
    if clock:
        return 3600 * int(clock[1]) + 60 * int(clock[2]) + float(clock[3])
    # The groups of each part are its number and its unit: `22` and `min`.
    parts = list(_PART_OF_TIME.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:  # there is other text besides
        return None
    if not all(part[2] in _TIME_UNITS for part in parts):
        return None
    return sum(float(part[1]) * _TIME_UNITS[part[2]] for part in parts)


class _ParsedNumber(NamedTuple):
    """A number in a base unit, and the unit that is printed behind it; empty: none."""

    value: float
    unit: str


def _parse_number(text: str, units: Mapping[str, float]) -> _ParsedNumber:
    """Parse a number with a unit.

    Args:
        units: factor of each allowed unit to the base unit; the key ``""`` allows no unit.

    Raises:
        CellError: the text is not a number with one of these units.
    """
    text = text.strip()
    match = _NUMBER.match(text)
    if match and not _UNCLEAR_COMMA.match(text):  # `0,5`: its comma separates no thousands
        unit = text[match.end() :].strip().casefold()
        # A unit that is not allowed makes the value NaN. It is refused then, as is infinity, which
        # a number that is too large becomes.
        value = float(match[0].replace(",", "")) * units.get(unit, math.nan)
        if math.isfinite(value):
            return _ParsedNumber(value, unit)
    raise _make_number_error(text, ", ".join(filter(None, units)))


def _parse_percent(cell: str) -> float:
    """Return per cent: 45 of ``45``, ``45%`` and ``0.45``.

    A number without the sign ``%`` whose amount is at most 1 is taken for a fraction.
    """
    value, unit = _parse_number(cell, _PERCENT_UNITS)
    is_fraction = not unit and abs(value) <= 1
    return 100 * value if is_fraction else value


def _parse_quality(cell: str, name: str) -> dict[str, float]:
    """Return the qualities in a cell by their names; ``91%`` is 0.91.

    ``0.91`` is a quality, ``0.91/0.90`` a quality and its target, which is named ``…_target``. If
    the header names two qualities, ``0.91/0.90`` has both of them and no target.

    Args:
        cell: its text.
        name: of the quality, or of two: ``Accuracy / F1``.

    Raises:
        CellError: a part of the cell is not a number.
    """
    names = [part.strip() for part in name.split("/")]
    texts = cell.split("/", 1)
    is_pair = len(names) == 2 and cell.count("/") == 1 and all(is_quality(x) for x in names)
    if not is_pair:  # the second number, if there is one, is the target
        names = [name, f"{name}_target"]
    # `%` is read if it stands behind all numbers. If it stands behind only one of two, it is not an
    # allowed unit, and the cell is refused: the scale of the other one is not known.
    are_signs_equal = len({"%" in text for text in texts}) == 1
    units = _FRACTION_UNITS if are_signs_equal else _NO_UNIT
    values = [_parse_number(text, units).value for text in texts]
    return dict(zip(names, values, strict=False))  # a single number has no target


def _parse_memory(cell: str) -> dict[str, float]:
    """Return the bytes of ``13.9/40.0``, ``59.2 GB``, ``59.23*8G`` and sums of such products.

    A number without a unit is in GiB. ``13.9/40.0`` is the used and the total memory. A product is
    the memory of one device times the number of devices; of a sum the largest device counts.

    Raises:
        CellError: the cell has another form, or a number that cannot be in GiB.
    """
    parts = re.split("[+/]", cell.replace("×", "*"))
    matches = [_MEMORY_TERM.fullmatch(part.strip()) for part in parts]
    # The groups of a term are the memory of one device and the unit: `59.23` and `G` of `59.23*8G`.
    terms = [match for match in matches if match is not None]
    # Of `59.23+59.30G` the last unit is also that of the first term.
    last_unit = terms[-1][2] if terms else ""
    values = []
    for term in terms:
        number = term[1]
        unit = term[2] or last_unit
        values.append(_parse_number(f"{number}{unit}", _MEMORY_UNITS).value)
    has_total = "/" in cell
    has_wrong_form = len(terms) < len(parts) or (has_total and len(parts) != 2)
    # A cell without units is refused if no device can have so many GiB: it is in bytes or MiB.
    if has_wrong_form or (not last_unit and max(values) > _MAX_BYTES):
        raise _make_number_error(cell, ", ".join(filter(None, _MEMORY_UNITS)))
    if has_total:
        used, total = values
        return {"mem": used, "mem_total": total}
    return {"mem": max(values)}
