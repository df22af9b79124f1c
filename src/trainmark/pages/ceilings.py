"""Show what ``trainmark ceilings`` measured, from its document alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.pages import cells
from trainmark.pages.document import Block, Paragraph, Table, table
from trainmark.record.run.findings import BUSY_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Kind = Mapping[str, Any]

_RATES = ("median", "max")
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def blocks(document: Mapping[str, Any]) -> list[Block]:
    """Return tables of the size that counts in each kind, and what was not measured and why."""
    groups: dict[str, list[Kind]] = {}
    for kinds in zip(*(rank["measurements"] for rank in document["ranks"]), strict=True):
        kind = min(kinds, key=_best_rate)  # a step waits for the slowest rank
        title = "bus bandwidth" if kind["bus_factor"] else "memory"
        if kind["best"] is not None:
            title = "matmul" if kind["unit"] == "FLOP/s" else title
            groups.setdefault(title, []).append(kind)
    products = dict.fromkeys(rank["device"]["name"] for rank in document["ranks"])
    ranks = f", {document['nproc']} ranks, the slowest of each" if document["nproc"] > 1 else ""
    share = document["others_cpu_share"] or 0.0
    way_out = "`trainmark doctor` says what to do, then measure again"
    busy = [f"others used {share:.0%} of the cores meanwhile: rates are too low; {way_out}"]
    busy *= share > BUSY_SHARE
    return [
        Paragraph(f"{', '.join(products)}{ranks}"),
        *(_table(title, some) for title, some in groups.items()),
        *map(Paragraph, [*_of_ranks(document, _remarks), *busy]),
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
    return [
        line if len(ranks) == len(document["ranks"]) else f"rank {', '.join(ranks)}: {line}"
        for line, ranks in found.items()
    ]


def _best_rate(kind: Kind) -> float:
    return 0.0 if kind["best"] is None else kind["points"][kind["best"]]["rate"]["max"]


def _size(size: Sequence[int]) -> str:
    """Return ``4096x768x768``, or bytes as ``16 MiB``."""
    if len(size) > 1:
        return "x".join(map(str, size))
    unit, name = next(pair for pair in _SIZES if size[0] % pair[0] == 0)
    return f"{size[0] // unit} {name}"


def _table(title: str, kinds: Sequence[Kind]) -> Table:
    """Return a row for each kind with the size that counts, all in one unit."""
    points = [kind["points"][kind["best"]] for kind in kinds]
    rates = [point["rate"][name] for point in points for name in _RATES]
    texts, unit = cells.scaled(rates, kinds[0]["unit"])
    rows = (
        (
            _name(kind), _size(point["size"]), *texts[len(_RATES) * place :][: len(_RATES)],
            *("" if x is None else f"{x:.1%}" for x in (point["swing"], kind["share_of_peak"])),
        )
        for place, (kind, point) in enumerate(zip(kinds, points, strict=True))
    )  # fmt: skip
    return table((f"{title}, {unit}", "size", *_RATES, "swing", "of peak"), rows)


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
    points = (point for point in kind["points"] if point["status"] == status)
    said = [f"{_size(point['size'])} ({point['reason']})" for point in points]
    return [f"{kind['name'].replace('_', ' ')} {status}: {', '.join(said)}"] if said else []
