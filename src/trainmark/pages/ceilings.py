"""Show what ``trainmark ceilings`` measured, from its document alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.pages import cells
from trainmark.pages.document import Block, Paragraph, table
from trainmark.record.run.findings import BUSY_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainmark.pages.texts import Phrase

    Kind = Mapping[str, Any]

_RATES = ("median", "max")
_HEADS = ("work", "size", *_RATES, "unit", "swing", "of peak")


def blocks(document: Mapping[str, Any]) -> list[Block]:
    """Return a row for the size that counts of each kind, and what was not measured and why."""
    rows: list[list[Phrase]] = []
    for kinds in zip(*(rank["measurements"] for rank in document["ranks"]), strict=True):
        kind = min(kinds, key=_best_rate)  # a step waits for the slowest rank
        if kind["best"] is None:
            continue
        point = kind["points"][kind["best"]]
        rates, unit = cells.scaled([point["rate"][name] for name in _RATES], kind["unit"])
        shares = (
            None if x is None else f"{x:.1%}" for x in (point["swing"], kind["share_of_peak"])
        )
        bus = " (bus)" if kind["bus_factor"] else ""
        rows.append([f"{_name(kind)}{bus}", _size(point["size"]), *rates, unit, *shares])
    names = dict.fromkeys(rank["device"]["name"] for rank in document["ranks"])
    ranks = f", {document['nproc']} ranks, the slowest of each" if document["nproc"] > 1 else ""
    share = document["others_cpu_share"] or 0.0
    busy = f"others used {share:.0%} of the cores meanwhile: rates are too low; measure again"
    return [
        Paragraph(f"{', '.join(names)}{ranks}"),
        *([table(_HEADS, rows)] if rows else []),
        *map(Paragraph, _of_ranks(document, _remarks)),
        *([Paragraph(busy)] if share > BUSY_SHARE else []),
    ]


def wrong_results(document: Mapping[str, Any]) -> list[str]:
    """Return a line for each kind of which a rank computed something wrongly, with sizes."""
    return _of_ranks(document, lambda kind: _not_measured(kind, "wrong"))


def _of_ranks(document: Mapping[str, Any], lines: Callable[[Kind], list[str]]) -> list[str]:
    """Return each line about a kind once, with its ranks."""
    found: dict[str, list[str]] = {}
    for rank in document["ranks"]:
        for line in (line for kind in rank["measurements"] for line in lines(kind)):
            found.setdefault(line, []).append(str(rank["rank"]))
    return [f"rank {', '.join(ranks)}: {line}" for line, ranks in found.items()]


def _best_rate(kind: Kind) -> float:
    return 0.0 if kind["best"] is None else kind["points"][kind["best"]]["rate"]["max"]


def _size(size: Sequence[int]) -> str:
    """Return ``4096x768x768``, or bytes as ``16 MiB``."""
    if len(size) > 1:
        return "x".join(map(str, size))
    (text,), unit = cells.scaled(size, "bytes")
    return f"{float(text):g} {unit}"


def _name(kind: Kind) -> str:
    name: str = kind["name"]
    return name.replace("_", " ")


def _remarks(kind: Kind) -> list[str]:
    """Return why something was not measured, is wrong, or cannot be."""
    lines = [f"{_name(kind)}: {kind['reason']}"] if kind["reason"] else []
    lines += [*_not_measured(kind, "skipped"), *_not_measured(kind, "wrong")]
    if (kind["share_of_peak"] or 0) > 1:
        lines.append(f"{_name(kind)}: above the published peak: the times or that peak are wrong")
    return lines


def _not_measured(kind: Kind, status: str) -> list[str]:
    """Return a line with the sizes of a status and their reasons, if there are any."""
    points = (point for point in kind["points"] if point["status"] == status)
    said = [f"{_size(point['size'])} ({point['reason']})" for point in points]
    return [f"{_name(kind)} {status}: {', '.join(said)}"] if said else []
