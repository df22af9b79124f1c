"""Read one cell: a number, a percentage, a memory, a quality with its target, a formula.

Owns the vocabulary of other people's tables, ``columns.toml``, and the grammar of their cells.
Every figure keeps its text; what does not follow the grammar is refused with a reason, never
guessed.
"""

from __future__ import annotations

import html
import math
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.library.log import DIGITS
from trainmark.library.store.columns import column_name
from trainmark.record.figures import FIGURES
from trainmark.record.work import Reading
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.spec import Message

WORDS: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("columns.toml").read_text(encoding="utf-8")
)
_KNOWN = {
    header: (role, name)
    for role, names in WORDS["columns"].items()
    for name, headers in names.items()
    for header in headers
}
_EXPORTED = {column_name(x.name, x.unit, x).casefold(): x for x in FIGURES.values()}  # in our CSV
_READS = {"mem": "memory", "MFU": "percent"}
_NUMBER = re.compile(rf"[+-]?(?:{DIGITS}|\.[0-9]+)")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,(?:[0-9]{1,2}|[0-9]{4,})(?![0-9,.])")
_UNCLEAR_COMMA = re.compile(r"[+-]?0+,")  # thousands do not begin with 0
_MOST_BYTES = 1 << 40  # of a device; a larger number without a unit is in another one
_TERM = re.compile(rf"(-?{DIGITS})\s*(?:\*\s*[0-9]{{1,6}})?\s*([A-Za-z]*)")  # 59.23*8G
_HALF_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: " "}
_EMPHASIS = re.compile(r"(\*{1,3}|_{1,2}|`)([^*_`].*)\1")
_NOTHING = {*WORDS["nothing"], *WORDS["out_of_memory"]}
_PLAIN = {"": 1.0}
_SHARE, _POINTS = _PLAIN | {"%": 0.01}, _PLAIN | {"%": 1.0}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        role: ``figure``, ``quality``, ``target``, or what its text is.
        name: of the figure; of a quality its metric.
        reads: how a cell is read: ``number``, ``memory``, ``percent``, ``quality``.
        unit: of the figure in a record.
        printed_unit: of its cells, where the header has one: ``e2e_time (h)``.
        decimal_comma: its cells have one: ``0,125``.
    """

    header: str
    role: str
    name: str = ""
    reads: str = "number"
    unit: str = ""
    printed_unit: str = ""
    decimal_comma: bool = False

    @property
    def is_figure(self) -> bool:
        """Tell whether its cells are figures of any kind."""
        return self.role in {"figure", "quality", "target"}


class CellError(ValueError):
    """A cell that cannot be read; ``reason`` says why."""

    def __init__(self, reason: Message) -> None:
        super().__init__(reason.code)
        self.reason = reason


def plain(text: str) -> str:
    """Return ``text`` with full-width forms as half-width ones, without Markdown's marks."""
    # Not NFKC, which makes digits of superscripts: `361²` is not 3612.
    printed = html.unescape(text).translate(_HALF_WIDTH).strip()
    printed = _EMPHASIS.sub(r"\2", printed) if _EMPHASIS.fullmatch(printed) else printed
    return re.sub(r"\\([*_|~`\[\]\\])", r"\1", printed)


def folded(text: str) -> str:
    """Return ``text`` as headers and marks are compared: no case, spaces or emphasis."""
    word = re.sub(r"[\s`]+", "", plain(text)).casefold()
    return word.strip("*") or word[:1]


def nothing(text: str) -> bool:
    """Tell whether a cell says that there is no figure."""
    return folded(text) in _NOTHING


def columns(headers: Sequence[str], *, unknown: str) -> list[Column]:
    """Return what each header says.

    Args:
        unknown: the role of a header that nobody knows: ``quality`` in pages, where each
            case has its own, else ``ignored``; ``final_…`` is a quality everywhere, and one with a
            unit a figure of that unit.
    """
    found = [_column(header.strip(), unknown) for header in headers]
    qualities = [column.name for column in found if column.role == "quality"]
    if len(qualities) == 1:  # a table's only target is that of its only quality
        found = [replace(c, name=qualities[0]) if c.role == "target" else c for c in found]
    return found


def _column(header: str, unknown: str) -> Column:
    own = re.sub(r"\s+", " ", plain(header).strip("*` "))
    word, printed = folded(header), ""
    base, _, unit = word.removesuffix(")").partition("(")
    if word in _EXPORTED:
        return Column(header, "figure", _EXPORTED[word].name, unit=_EXPORTED[word].unit)
    if word not in _KNOWN and _KNOWN.get(base, ("",))[0] == "figure":
        word, printed = base, unit
    if word not in _KNOWN and (unit in WORDS["other_units"] or unit.endswith("/s")):
        name, _, unit = own.rstrip(")").rpartition("(")
        return Column(header, "figure", name.strip(), unit=unit.strip())
    other = "quality" if own.startswith("final_") else unknown if own else "ignored"
    role, name = _KNOWN.get(word, (other, own))
    if role == "figure":
        unit = (
            FIGURES[name].unit if name in FIGURES else name if name in ("steps", "epochs") else ""
        )
        return Column(header, role, name, _READS.get(name, "number"), unit, printed)
    reads = "quality" if role in {"quality", "target"} else "number"
    return Column(header, name if role == "other" else role, name, reads)


def with_commas(known: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[Column]:
    """Return the columns of a table, told which of them print decimal commas.

    Those whose cells have commas and no points, one of which at least is no comma of thousands.
    """
    found = []
    for place, column in enumerate(known):
        numbers = [x for row in rows if re.search("[0-9]", x := plain(row[place]))]
        commas = len(numbers) > 1 and any(map(_DECIMAL_COMMA.match, numbers))
        found.append(replace(column, decimal_comma=commas and "." not in "".join(numbers)))
    return found


def read(text: str, column: Column) -> dict[str, Reading]:
    """Return the figures of one cell by their names.

    Raises:
        CellError: the cell has something else than what its column holds.
    """
    cell = f"{plain(text)} {column.printed_unit}".strip()
    cell = cell.replace(",", ".") if column.decimal_comma else cell
    name = column.name + "_target" * (column.role == "target")
    found: dict[str, float | None]
    if nothing(text):
        found = {name: None}
    elif column.reads == "memory":
        found = {**_memory(cell)}
    elif column.reads == "quality":
        found = {**_quality(cell, name)}
    elif column.reads == "percent":
        value, word = _number(cell, _POINTS)
        found = {name: 100 * value if not word and abs(value) <= 1 else value}
    else:  # of `17.23 * 2048 / 8 = 4410 tokens/s` the result
        units = WORDS["units"].get(column.unit, _PLAIN | {column.unit.casefold(): 1.0})
        found = {name: _number(cell.rpartition("=")[2], units)[0]}
    return {key: Reading(value=x, unit=column.unit, raw=text) for key, x in found.items()}


def _number(text: str, units: dict[str, float]) -> tuple[float, str]:
    """Return a number in the wanted unit, and the unit that is printed behind it."""
    text = text.strip()
    found = _NUMBER.match(text)
    word = text[found.end() :].strip().casefold() if found else ""
    value = float(found[0].replace(",", "")) * units.get(word, math.nan) if found else math.nan
    if not math.isfinite(value) or _UNCLEAR_COMMA.match(text):
        known = ", ".join(filter(None, units)) or None
        raise CellError(message("cell_is_no_number", text=text[:60], units=known))
    return value, word


def _quality(cell: str, name: str) -> dict[str, float]:
    """Read ``0.91``, and ``0.91/0.90`` with the target."""
    texts = cell.split("/", 1)
    signs = _SHARE if len({"%" in text for text in texts}) == 1 else _PLAIN  # of both, or not
    values = [_number(text, signs)[0] for text in texts]
    return dict(zip((name, f"{name}_target"), values, strict=False))


def _memory(cell: str) -> dict[str, float]:
    """Read ``13.9/40.0``, ``59.2 GB``, ``59.23*8G`` and sums of such products, in GiB.

    A product is one device's memory times the devices; of a sum the largest device counts.
    """
    units, parts = WORDS["units"]["memory"], re.split("[+/]", cell.replace("×", "*"))
    terms = [found.groups() for part in parts if (found := _TERM.fullmatch(part.strip()))]
    unit = terms[-1][1] if terms else ""  # also that of those before it which have none
    values = [_number(f"{number}{own or unit}", units)[0] for number, own in terms]
    wrong = len(terms) < len(parts) or ("/" in cell and len(parts) != len(("used", "total")))
    if wrong or (not unit and max(values) > _MOST_BYTES):
        raise CellError(message("cell_is_no_number", text=cell[:60], units=", ".join(units)))
    return (
        dict(zip(("mem", "mem_total"), values, strict=True))
        if "/" in cell
        else {"mem": max(values)}
    )
