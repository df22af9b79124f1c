"""The result of ``trainmark ceilings``: the highest rates that devices and links reach.

Its input is the JSON document that the command prints, also one of an older version.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from trainmark.pages import cells
from trainmark.pages.document import Block, Paragraph, build_table
from trainmark.pages.texts import Phrase, join, phrase, term, translate, translate_headings
from trainmark.record.findings import BUSY_SHARE
from trainmark.record.messages import render
from trainmark.spec import Message, Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Kind = Mapping[str, Any]  # the measurement of one kind of ceiling on a rank, as JSON has it

_LINK_COLUMNS = ("pair", "median", "max", "unit", "swing", "of_median")
_CEILING_COLUMNS = ("work", "size", "median", "max", "unit", "swing", "of_peak")
_MAX_PAIRS = 28  # that are listed; eight devices have so many


def build_ceilings(document: Mapping[str, Any]) -> list[Block]:
    """Return what ``trainmark ceilings`` measured: the highest rates that devices and links reach.

    First come the names of the devices and the number of ranks, then a table with a row for each
    kind of ceiling. A kind is one kind of work, such as a matmul in one precision, a memory copy or
    an all-reduce, which each rank measures at several sizes. The row shows one size as the slowest
    rank measured it: the fastest size or, for memory, the largest. Then come remarks on what was
    not measured or wrong, the rates between pairs of ranks, and a remark if other programs kept the
    processor busy, which makes rates too low.

    Args:
        document: the JSON that the command prints.
    """
    # The name of each device product once.
    products = list(dict.fromkeys(rank["device"]["name"] for rank in document["ranks"]))
    heading: list[Phrase] = [*products]
    if document["nproc"] > 1:
        heading.append(phrase("ceilings.ranks", n=document["nproc"]))
    blocks: list[Block] = [Paragraph(join(heading))]
    rows = _list_ceiling_rows(document)
    if rows:
        columns = translate_headings(*(f"ceilings.{name}" for name in _CEILING_COLUMNS))
        blocks.append(build_table(columns, rows))
    blocks += _list_ceiling_remarks(document)
    blocks += _lay_out_links(document.get("links"))
    # The share of the cores that other programs used during the measurement; None: not known.
    others_share = document["others_cpu_share"] or 0.0
    if others_share > BUSY_SHARE:
        blocks.append(Paragraph(phrase("ceilings.busy", share=f"{others_share:.0%}")))
    return blocks


def _list_ceiling_rows(document: Mapping[str, Any]) -> list[list[Phrase]]:
    """Return the row of each kind of ceiling that all ranks measured.

    A kind of ceiling is one kind of work whose highest rate is measured, at several sizes.

    Args:
        document: the JSON of the command ``ceilings``.
    """
    rows: list[list[Phrase]] = []
    # The measurements of each rank are in the same order: `kinds` has one kind, of every rank.
    for kinds in zip(*(rank["measurements"] for rank in document["ranks"]), strict=True):
        kind = min(kinds, key=_get_best_rate)  # a step waits for the slowest rank
        # A rank that measured no size of the kind counts as the slowest; then there is no row.
        if kind["best"] is None:
            continue
        # `best` is the index of the fastest size; for memory, of the largest size.
        point = kind["points"][kind["best"]]
        rates, unit = cells.scale_to_unit(
            [point["rate"]["median"], point["rate"]["max"]], kind["unit"]
        )
        # How much less time the faster half of the repetitions took than the slower half.
        swing = None if point["swing"] is None else f"{point['swing']:.1%}"
        share_of_peak = None if kind["share_of_peak"] is None else f"{kind['share_of_peak']:.1%}"
        name = _name_ceiling(kind)
        # Only a collective has a bus factor: the bytes on a rank's link for each byte of a message.
        # Its rate counts the bytes on the link, so its name gets the addition "(bus)".
        if kind["bus_factor"]:
            name = phrase("ceilings.bus", kind=name)
        rows.append([name, _format_size(point["size"]), *rates, unit, swing, share_of_peak])
    return rows


def _list_ceiling_remarks(document: Mapping[str, Any]) -> list[Block]:
    """Return each remark on a kind of ceiling once, with the ranks that it is about.

    A kind of ceiling is one kind of work, such as a memory copy, whose highest rate is measured.

    Args:
        document: the JSON of the command ``ceilings``, with the measurements of each rank.
    """
    remarks: dict[str, Phrase] = {}  # by the remark in English
    ranks_by_remark: dict[str, list[str]] = {}
    for rank in document["ranks"]:
        for kind in rank["measurements"]:
            for remark in _list_remarks(kind):
                text = translate(remark, "en")
                remarks.setdefault(text, remark)
                ranks_by_remark.setdefault(text, []).append(str(rank["rank"]))
    blocks: list[Block] = []
    for text, remark in remarks.items():
        label = f"rank {', '.join(ranks_by_remark[text])}"
        blocks.append(Paragraph(join((label, remark), "colon")))
    return blocks


def _lay_out_links(links: Mapping[str, Any] | None) -> Iterator[Block]:
    """Yield the slowest pair of ranks, a table of the slowest pairs, and the pairs without a rate.

    The two ranks of a pair send data to each other. The rate of a pair is compared with the median
    over all pairs.

    Args:
        links: from the JSON of the command ``ceilings``: each pair with its ``point``, which is the
            size of the transfer and what was measured. None: an older document without pairs.
    """
    if links is None:
        return
    if links["pairs"] is None:  # no pair was measured, for a reason that the document states
        yield Paragraph(join((phrase("ceiling_kind.links"), _get_reason(links)), "colon"))
        return
    # Pairs without a rate were skipped, or transferred wrong data; the last loop names them.
    measured = [pair for pair in links["pairs"] if pair["point"]["rate"]]
    if measured:
        measured.sort(key=_get_link_rate)
        median_rate = median(map(_get_link_rate, measured))  # with which each pair is compared
        slowest = measured[0]
        (rate,), unit = cells.scale_to_unit([_get_link_rate(slowest)], "bytes/s")
        yield Paragraph(
            phrase(
                "ceilings.slowest",
                a=slowest["ranks"][0],
                b=slowest["ranks"][1],
                rate=rate,
                unit=unit,
                share=f"{_get_link_rate(slowest) / median_rate:.0%}",
                pairs=len(measured),
                size=_format_size(slowest["point"]["size"]),
            )
        )
        rows = [_lay_out_link(pair, median_rate) for pair in measured[:_MAX_PAIRS]]
        yield build_table(translate_headings(*(f"ceilings.{name}" for name in _LINK_COLUMNS)), rows)
        if len(measured) > _MAX_PAIRS:
            yield Paragraph(phrase("ceilings.more_pairs", n=len(measured) - _MAX_PAIRS))
    for pair in links["pairs"]:
        if pair["point"]["status"] == "measured":
            continue
        first, second = pair["ranks"]
        pair_name = phrase("ceilings.link", a=first, b=second)
        yield Paragraph(join((pair_name, _get_reason(pair["point"])), "colon"))


def _get_link_rate(pair: Mapping[str, Any]) -> float:
    """Return the rate at which two ranks sent data to each other, in bytes per second.

    It is the highest of the repetitions, which was disturbed least.

    Args:
        pair: the measurement of the two ranks, from the JSON of the command ``ceilings``.
    """
    rate: float = pair["point"]["rate"]["max"]
    return rate


def _lay_out_link(pair: Mapping[str, Any], median_rate: float) -> list[Phrase]:
    """Return the row of two ranks that sent data to each other.

    Its cells are the ranks, the median and the highest rate of the repetitions, their unit, how
    much the repetitions differ, and the highest rate as a share of ``median_rate``.

    Args:
        pair: the two ranks, and the measurement of their transfers as ``point``.
        median_rate: median over all pairs of their highest rates, in bytes per second.
    """
    first, second = pair["ranks"]
    point = pair["point"]
    rates, unit = cells.scale_to_unit(
        [point["rate"][name] for name in ("median", "max")], "bytes/s"
    )
    # How much less time the faster half of the repetitions took than the slower half.
    swing = None if point["swing"] is None else f"{point['swing']:.1%}"
    share = f"{_get_link_rate(pair) / median_rate:.0%}"
    return [phrase("ceilings.link", a=first, b=second), *rates, unit, swing, share]


def has_wrong_results(document: Mapping[str, Any]) -> bool:
    """Tell whether a rank computed or received something wrong.

    Args:
        document: the JSON of the command ``ceilings``.
    """
    points = []  # what was measured: of a kind of work at one size, or between two ranks
    for rank in document["ranks"]:
        for kind in rank["measurements"]:
            points += kind["points"]
    links = document.get("links") or {}  # older documents have no links between ranks
    points += [pair["point"] for pair in links.get("pairs") or ()]
    return any(point["status"] == "wrong" for point in points)


def _get_best_rate(kind: Kind) -> float:
    """Return the highest rate of a kind of work at the size that counts; 0: none was measured.

    The fastest size counts; for memory the largest, because smaller ones may fit into a cache.

    Args:
        kind: measurement of one kind of work, such as a memory copy, at several sizes on a rank.
    """
    if kind["best"] is None:  # index of the size that counts
        return 0.0
    rate: float = kind["points"][kind["best"]]["rate"]["max"]
    return rate


def _format_size(size: Sequence[int]) -> str:
    """Return the shape of a matmul as ``4096x768x768``, or bytes as ``16 MiB``.

    Args:
        size: the three dimensions of a matmul, or one number of bytes.
    """
    if len(size) > 1:
        return "x".join(map(str, size))
    (text,), unit = cells.scale_to_unit(size, "bytes")
    # `:g` removes decimals that are zero: `16` instead of `16.00`.
    return f"{float(text):g} {unit}"


def _name_ceiling(kind: Kind) -> Phrase:
    """Return the name of a kind of ceiling in words.

    Args:
        kind: measurement of one kind of work on a rank; ``name`` is for example ``matmul_bf16``,
            where a precision follows the work, or ``all_reduce``.
    """
    name: str = kind["name"]
    work, _, precision = name.partition("_")
    if work == "matmul":
        return phrase("ceiling_kind.matmul", precision=precision)
    return term("ceiling_kind", name)


def _get_reason(entry: Mapping[str, Any]) -> Phrase:
    """Return why something was not measured, or what is wrong with its result.

    Args:
        entry: part of the JSON of the command ``ceilings``: what was measured of one kind of work,
            at one of its sizes, or between pairs of ranks. ``reason`` is the text in English, and
            ``why`` is the same as a code with arguments.
    """
    why = entry.get("why")
    if not why:  # an older document, which has no code for the reason
        return entry["reason"]
    # The code and its arguments give the Chinese text.
    return Text(entry["reason"], render(Message(why["code"], why["args"]), "zh"))


def _list_remarks(kind: Kind) -> list[Phrase]:
    """Return remarks on a kind of ceiling: what was not measured, wrong results, too high a rate.

    A rate is too high if it is above the published peak of the device.

    Args:
        kind: measurement of one kind of work, such as a matmul in bf16, on one rank. It has a
            point for each size, and the share of the peak that its best rate reaches.
    """
    lines: list[Phrase] = []
    # There is a reason if the kind is not measured at all, as when the device lacks the precision.
    if kind["reason"]:
        lines.append(join((_name_ceiling(kind), _get_reason(kind)), "colon"))
    for status in ("skipped", "wrong"):
        points = [point for point in kind["points"] if point["status"] == status]
        if points:
            sizes = [
                phrase("ceilings.point", size=_format_size(x["size"]), why=_get_reason(x))
                for x in points
            ]
            lines.append(phrase(f"ceilings.{status}", kind=_name_ceiling(kind), points=join(sizes)))
    if (kind["share_of_peak"] or 0) > 1:  # None: no rate was measured, or no peak is known
        lines.append(join((_name_ceiling(kind), phrase("ceilings.above")), "colon"))
    return lines
