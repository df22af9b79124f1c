"""Show what ``trainmark ceilings`` measured, from its document alone."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from trainmark.pages import cells
from trainmark.pages.document import Block, Grid, Paragraph, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Kind = Mapping[str, Any]

_RATES = ("cold", "min", "median", "max")
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def blocks(document: Mapping[str, Any]) -> list[Block]:
    """Return tables of what counts and of all sizes, and what was not measured and why."""
    of_ranks = (rank["measurements"] for rank in document["ranks"])
    kinds = [_slowest(kinds) for kinds in zip(*of_ranks, strict=True)]
    groups: dict[str, list[Kind]] = {}
    for kind in kinds:
        flops, bus = kind["unit"] == "FLOP/s", kind["bus_factor"] is not None
        title = "matmul" if flops else "bus bandwidth" if bus else "memory"
        if kind["best"] is not None:
            groups.setdefault(title, []).append(kind)
    products = dict.fromkeys(rank["device"]["name"] for rank in document["ranks"])
    ranks = f", {document['nproc']} ranks, the slowest of each" if document["nproc"] > 1 else ""
    return [
        Paragraph(f"{', '.join(products)}{ranks}"),
        *(Grid(_table(title, some)) for title, some in groups.items()),
        *(Grid(_sizes_table(some)) for some in groups.values()),
        *map(Paragraph, _of_ranks(document, _remarks)),
    ]


def wrong_results(document: Mapping[str, Any]) -> list[str]:
    """Return a line for each kind of which a rank computed something wrongly, with sizes."""
    return _of_ranks(document, lambda kind: _not_measured(kind, "wrong"))


def _of_ranks(document: Mapping[str, Any], lines: Callable[[Kind], Iterable[str]]) -> list[str]:
    """Return each line about a kind once, with its ranks if it is not about all."""
    found: dict[str, list[str]] = {}
    for rank in document["ranks"]:
        for line in (line for kind in rank["measurements"] for line in lines(kind)):
            found.setdefault(line, []).append(str(rank["rank"]))
    of_all = len(document["ranks"])
    return [
        line if len(ranks) == of_all else f"rank {', '.join(ranks)}: {line}"
        for line, ranks in found.items()
    ]


def _slowest(kinds: Iterable[Kind]) -> Kind:
    """Return the rank's measurement whose best rate is the lowest: a step waits for that rank.

    Of one that has no rate nobody knows how long.
    """

    def rate(kind: Kind) -> float:
        best = kind["best"]
        return 0.0 if best is None else kind["points"][best]["rate"]["max"]

    return min(kinds, key=rate)


def size_text(size: Sequence[int]) -> str:
    """Return ``4096x768x768``, or bytes as ``16 MiB``."""
    if len(size) > 1:
        return "x".join(map(str, size))
    unit, name = next(pair for pair in _SIZES if size[0] % pair[0] == 0)
    return f"{size[0] // unit} {name}"


def _table(title: str, kinds: Sequence[Kind]) -> Table:
    """Return a row for each kind with the size that counts, all in one unit."""
    points = [kind["points"][kind["best"]] for kind in kinds]
    numbers = [point["rate"][name] for point in points for name in _RATES]
    texts, unit = cells.scaled(numbers, kinds[0]["unit"])
    rows = []
    for place, (kind, point) in enumerate(zip(kinds, points, strict=True)):
        rates = texts[len(_RATES) * place :][: len(_RATES)]
        shares = (point["swing"], kind["share_of_peak"])
        rest = ("" if share is None else f"{share:.1%}" for share in shares)
        rows.append((_name(kind), size_text(point["size"]), *rates, *rest))
    return Table((f"{title}, {unit}", "size", *_RATES, "swing", "of peak"), tuple(rows))


def _sizes_table(kinds: Sequence[Kind]) -> Table:
    """Return the fastest repetition of each size in each kind; empty: not measured.

    Of collectives both bandwidths, of matmuls the layers that have the shape.
    """
    layers = {tuple(point["size"]): point["name"] for kind in kinds for point in kind["points"]}
    measured = {
        (_name(kind) + more, tuple(point["size"])): point["rate"]["max"] / factor
        for kind in kinds
        for more, factor in (("", 1.0), (" algorithm", kind["bus_factor"]))
        for point in kind["points"]
        if point["rate"] and factor
    }
    texts, unit = cells.scaled([*measured.values()], kinds[0]["unit"])
    shown = dict(zip(measured, texts, strict=True))
    heads = tuple(dict.fromkeys(head for head, _ in measured))
    rows = [
        (size_text(size), *(shown.get((head, size), "") for head in heads), layers[size])
        for size in sorted(layers, key=prod)
    ]
    end = None if any(layers.values()) else -1  # without the column of layers
    return Table((f"max, {unit}", *heads, "layer of")[:end], tuple(row[:end] for row in rows))


def _name(kind: Kind) -> str:
    name: str = kind["name"]
    return name.removeprefix("matmul_").replace("_", " ")


def _remarks(kind: Kind) -> list[str]:
    """Return why something was not measured, is wrong, or cannot be."""
    name = kind["name"].replace("_", " ")
    lines = [f"{name}: {kind['reason']}"] if kind["reason"] else []
    lines += [*_not_measured(kind, "skipped"), *_not_measured(kind, "wrong")]
    if (kind["share_of_peak"] or 0) > 1:
        lines.append(f"{name}: above the published peak: the times or that peak are wrong")
    return lines


def _not_measured(kind: Kind, status: str) -> list[str]:
    """Return a line with the sizes of a status and their reasons, if there are any."""
    said = [
        f"{size_text(point['size'])} ({point['reason']})"
        for point in kind["points"]
        if point["status"] == status
    ]
    return [f"{kind['name'].replace('_', ' ')} {status}: {', '.join(said)}"] if said else []
