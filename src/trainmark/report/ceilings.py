"""Show what ``trainmark ceilings`` measured, from its document alone."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from trainmark.report import cells
from trainmark.report.document import Block, Grid, Paragraph, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Kind = Mapping[str, Any]

_RATES = ("cold", "min", "median", "max")
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def blocks(document: Mapping[str, Any]) -> list[Block]:
    """Return tables of what counts and of all sizes, and what was not measured and why."""
    of_ranks = (rank["measurements"] for rank in document["ranks"])
    kinds = [_slowest(kinds) for kinds in zip(*of_ranks, strict=True)]
    groups: dict[str, list[Kind]] = {"matmul": [], "memory": [], "bus bandwidth": []}
    for kind in kinds:
        flops, bus = kind["unit"] == "FLOP/s", kind["bus_factor"] is not None
        groups["matmul" if flops else "bus bandwidth" if bus else "memory"].append(kind)
    products = dict.fromkeys(rank["device"]["name"] for rank in document["ranks"])
    ranks = f", {document['nproc']} ranks, the slowest of each" if document["nproc"] > 1 else ""
    found: list[Block] = [Paragraph(f"{', '.join(products)}{ranks}")]
    measured = {
        title: [kind for kind in some if kind["best"] is not None] for title, some in groups.items()
    }
    found += [Grid(_table(title, some)) for title, some in measured.items() if some]
    found += [Grid(sizes_table(some)) for some in measured.values() if some]
    return [*found, *(Paragraph(line) for line in _remarks(kinds))]


def _best(kind: Kind) -> Mapping[str, Any] | None:
    return None if kind["best"] is None else kind["points"][kind["best"]]


def _slowest(kinds: Iterable[Kind]) -> Kind:
    """Return the rank's measurement whose best rate is the lowest: a step waits for that rank."""

    def rate(kind: Kind) -> float:
        point = _best(kind)
        return point["rate"]["max"] if point else float("inf")

    return min(kinds, key=rate)


def size_text(size: Sequence[int]) -> str:
    """Return ``4096x768x768``, or bytes as ``16 MiB``."""
    if len(size) > 1:
        return "x".join(map(str, size))
    unit, name = next(pair for pair in _SIZES if size[0] % pair[0] == 0)
    return f"{size[0] // unit} {name}"


def _table(title: str, kinds: Sequence[Kind]) -> Table:
    """Return a row for each measurement with the size that counts, all in one unit."""
    points = [kind["points"][kind["best"]] for kind in kinds]
    numbers = [point["rate"][name] for point in points for name in _RATES]
    texts, unit = cells.scaled(numbers, kinds[0]["unit"])
    rows = [
        (
            _name(kind),
            size_text(point["size"]),
            *texts[len(_RATES) * place : len(_RATES) * (place + 1)],
            "" if point["swing"] is None else f"{point['swing']:.0%}",
            "" if kind["share_of_peak"] is None else f"{kind['share_of_peak']:.1%}",
        )
        for place, (kind, point) in enumerate(zip(kinds, points, strict=True))
    ]
    return Table((f"{title}, {unit}", "size", *_RATES, "swing", "of peak"), tuple(rows))


def sizes_table(kinds: Sequence[Kind]) -> Table:
    """Return the fastest repetition of each size in each kind; empty: not measured.

    Of collectives both bandwidths, of matmuls the layers that have the shape.
    """
    columns: dict[str, dict[tuple[int, ...], float]] = {}
    names: dict[tuple[int, ...], str] = {}
    for kind in kinds:
        for field, what in (("rate", _name(kind)), ("algorithm_rate", f"{_name(kind)} algorithm")):
            for point in kind["points"]:
                size = tuple(point["size"])
                names.setdefault(size, point["name"])
                if point[field]:
                    columns.setdefault(what, {})[size] = point[field]["max"]
    sizes = sorted(names, key=prod)
    texts, unit = cells.scaled(
        [column.get(size) for size in sizes for column in columns.values()], kinds[0]["unit"]
    )
    rows = [
        (size_text(size), *_filled(texts[place * len(columns) :][: len(columns)]), names[size])
        for place, size in enumerate(sizes)
    ]
    named = any(names.values())
    heads = (f"max, {unit}", *columns, *(["layer of"] if named else []))
    return Table(heads, tuple(row if named else row[:-1] for row in rows))


def _filled(texts: Sequence[str]) -> list[str]:
    return ["" if text == cells.NOTHING else text for text in texts]


def _name(kind: Kind) -> str:
    name: str = kind["name"]
    return name.removeprefix("matmul_").replace("_", " ")


def _remarks(kinds: Sequence[Kind]) -> list[str]:
    """Return why something was not measured, is wrong, or cannot be."""
    lines = []
    for kind in kinds:
        name = kind["name"].replace("_", " ")
        if kind["reason"]:
            lines.append(f"{name}: {kind['reason']}")
        for status in ("skipped", "wrong"):
            said = [
                f"{size_text(point['size'])} ({point['reason']})"
                for point in kind["points"]
                if point["status"] == status
            ]
            if said:
                lines.append(f"{name} {status}: {', '.join(said)}")
        if kind["share_of_peak"] is not None and kind["share_of_peak"] > 1:
            lines.append(f"{name}: above the published peak: the times or that peak are wrong")
    return lines
