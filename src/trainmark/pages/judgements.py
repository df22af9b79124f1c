"""What comparisons, gates, the rules and ``ceilings`` say: tables, JSON, JUnit XML.

Names in judgements come from records of others: each output escapes them for itself.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from trainmark.errors import EXIT_FAILED, EXIT_NOISY, EXIT_USAGE, to_one_line
from trainmark.judge.comparison import INCONCLUSIVE, REGRESSIONS
from trainmark.pages import cells
from trainmark.pages.document import Block, Paragraph, Table, build_table
from trainmark.pages.rendering import render_template
from trainmark.pages.texts import (
    TONES,
    Phrase,
    Tone,
    count_in_words,
    grade_line,
    join,
    or_none,
    phrase,
    term,
    translate,
    translate_headings,
)
from trainmark.record.findings import BUSY_SHARE
from trainmark.record.messages import render, shorten
from trainmark.spec import Message, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trainmark.judge.comparison import ComparedFigure, Comparison
    from trainmark.judge.comparison.gate import Judgement
    from trainmark.judge.comparison.scaling import Scaling
    from trainmark.judge.comparison.sides import Difference
    from trainmark.judge.compliance import Compliance

    Kind = Mapping[str, Any]

_IN_UNIT = ("value", "expected")  # arguments of a message
_SCALING = ("world", "launches", "samples_per_rank", "throughput", "efficiency")
_MAX_PAIRS = 28  # of eight devices
_LINKS = ("pair", "median", "max", "unit", "swing", "of_median")
_CEILINGS = ("work", "size", "median", "max", "unit", "swing", "of_peak")


def build_comparison(result: Comparison, b: str = "B") -> list[Block]:
    """Return the verdict first, then what it is made of, then what else differs.

    Args:
        b: what the other side is called than A.
    """
    tone: Tone = "bad" if result.verdict in REGRESSIONS else "good"
    tone = "warn" if result.verdict in (*INCONCLUSIVE, "other_world") else tone
    shown: list[Block] = [Paragraph(_name_side(result.sentence, b), tone)]
    if result.scaling:
        shown += build_scaling(result.scaling)
    else:
        name, unit, *rest = translate_headings(
            "name", "unit", "interval", "launches", "compare.said"
        )
        columns = (name, "A", b, unit, f"{b}/A", *rest)
        shown.append(build_table(columns, map(_build_row, result.figures)))
    quality = result.quality
    if quality:
        shown.append(Paragraph(_name_side(quality, b)))
    sides = (("A", result.a), (b, result.b))
    for name, side in sides:
        marks = grade_line(side.trust, side.verification)
        if side.is_witnessed:
            marks = join((marks, phrase("division.witnessed")))
        line = join((phrase("trust.of", side=name), marks), "colon")
        shown.append(Paragraph(line, TONES[side.trust.grade]))
    reasons = _list_reasons(result)
    if reasons:
        shown.append(
            build_table([phrase("compare.doubts", side=side) for side in ("A", b)], reasons)
        )
    if not result.scaling:
        shown.append(Paragraph(phrase(f"compare.{'in_pairs' if result.paired else 'apart'}")))
    shown += [
        Paragraph(
            phrase("compare.left_out", side=name, run=launch.name, reason=launch.reason), "warn"
        )
        for name, side in sides
        for launch in side.left_out
    ]
    if result.allowed:
        shown.append(Paragraph(phrase("compare.allowed"), "warn"))
        shown.append(_build_facts_table(result.allowed, b))
    if result.differences:
        shown.append(Paragraph(phrase("compare.differences")))
        shown.append(_build_facts_table(result.differences, b))
    return shown


def _build_facts_table(facts: Iterable[Difference], b: str) -> Table:
    """Return a row for each fact in which two sides differ."""

    def describe(values: Sequence[Any]) -> Phrase:
        return join(map(or_none, values), "semicolon") if values else None

    rows = [(term("work", fact.name), describe(fact.a), describe(fact.b)) for fact in facts]
    return build_table((phrase("compare.fact"), "A", b), rows)


def _list_reasons(result: Comparison) -> list[list[Phrase]]:
    """Return a row for each reason to doubt a side, with what it says of A and of the other."""
    sides = [
        {reason.code: shorten(reason) for reason in side.trust.reasons}
        for side in (result.a, result.b)
    ]
    codes = dict.fromkeys(code for side in sides for code in side)
    return [[side.get(code) for side in sides] for code in codes]


def _name_side(sentence: Message, b: str) -> Message:
    """Return a sentence with the letter of its side."""
    return replace(sentence, args=sentence.args | {"side": b})


def build_scaling(scaling: Scaling) -> list[Block]:
    """Return throughput and efficiency of each world, what they are, and doubts of them."""
    rows: list[list[Phrase]] = []
    alone = count_in_words("launches", 1)
    for world in scaling.worlds:
        rate = world.throughput
        ends = f"{cells.format_rate(rate.low)} – {cells.format_rate(rate.high)}"
        efficiency = f"{world.efficiency:.1%}"
        if world.low is not None and world.high is not None:
            efficiency += f" ({world.low:.1%} – {world.high:.1%})"
        throughput = (cells.format_rate(rate.mean), " (", ends if rate.launches > 1 else alone, ")")
        rows.append([world.name, rate.launches, world.samples_per_rank, throughput, efficiency])
    names = (phrase(f"scaling.{name}", unit=scaling.unit) for name in _SCALING)
    means = Paragraph(phrase("scaling.means", first=scaling.worlds[0].name))
    return [build_table(names, rows), *(Paragraph(x, "warn") for x in scaling.doubts), means]


def _build_row(figure: ComparedFigure) -> tuple[Phrase, ...]:
    (a, b), unit = cells.scale_to_unit([figure.a, figure.b], figure.unit)
    ratio = None if figure.ratio is None else f"{figure.ratio:.3f}"
    ends = (
        None
        if figure.low is None or figure.high is None
        else f"{figure.low:.3f} – {figure.high:.3f}"
    )
    verdict = phrase(f"compare.{figure.verdict}")
    return figure.name, a, b, unit, ratio, ends, "{}, {}".format(*figure.launches), verdict


def build_gate_rows(judgements: Sequence[Judgement], lang: str = "en") -> Table:
    """Return a row a judgement: verdict, figure, work and the sentence, in a language."""
    rows = (
        (phrase(f"judgement.{x.verdict}"), x.figure, x.work, _scale_values(x)) for x in judgements
    )
    shown = ([to_one_line(translate(cell, lang)) for cell in row] for row in rows)
    return build_table(translate_headings("judgement", "name", "configuration", "remark"), shown)


def _scale_values(judgement: Judgement) -> Message:
    """Return the message with its values in a readable unit."""
    args, code = judgement.message.args, judgement.message.code
    values = {x: v for x in _IN_UNIT if isinstance(v := args.get(x), int | float)}
    if "unit" in args and values:
        factor, unit = cells.scale(max(map(abs, values.values())), str(args["unit"]))
        args = args | {name: value / factor for name, value in values.items()} | {"unit": unit}
    return Message(code, args)


def to_json_documents(judgements: Sequence[Judgement], lang: str = "en") -> list[dict[str, Any]]:
    """Return the judgements as JSON has them."""
    return [
        asdict(judgement)
        | {"exit_code": judgement.exit_code, "sentence": render(_scale_values(judgement), lang)}
        for judgement in judgements
    ]


def to_junit(judgements: Sequence[Judgement], lang: str = "en") -> str:
    """Return a report in JUnit XML with one test case a judgement."""
    kinds = {EXIT_FAILED: "failure", EXIT_USAGE: "error", EXIT_NOISY: "skipped"}
    rows = build_gate_rows(judgements, lang).rows
    outcomes = [kinds.get(judgement.exit_code, "") for judgement in judgements]
    return render_template("junit.xml.j2", lang, rows=rows, found=outcomes, counted=outcomes.count)


def to_compliance_document(compliance: Compliance, lang: str) -> dict[str, Any]:
    """Return how launches comply with the division that they claim, as JSON has it."""
    rules = [
        {"rule": x.rule, "kept": x.kept, "sentence": render(x.sentence, lang)}
        for x in compliance.rules
    ]
    return {
        "case": compliance.case,
        "division": compliance.division,
        "compliant": compliance.compliant,
        "run_ids": compliance.run_ids,
        "rules": rules,
    }


def describe_compliance(compliance: Compliance, lang: str) -> str:
    """Return whether launches comply with the division that they claim."""
    about = {
        "case": compliance.case,
        "launches": len(compliance.run_ids),
        "division": compliance.division,
    }
    return to_one_line(
        translate(phrase(f"compliance.{'yes' if compliance.compliant else 'no'}", **about), lang)
    )


def list_compliance_rules(compliance: Compliance, lang: str) -> Iterator[tuple[str, str]]:
    """Yield for each rule a mark whether it is kept, and the sentence."""
    for rule in compliance.rules:
        mark = translate(phrase(f"compliance.{'kept' if rule.kept else 'broken'}"), lang)
        yield mark, to_one_line(render(rule.sentence, lang))


def build_ceilings(document: Mapping[str, Any]) -> list[Block]:
    """Return a row for the size that counts of each kind, and what was not measured and why."""
    rows: list[list[Phrase]] = []
    for kinds in zip(*(rank["measurements"] for rank in document["ranks"]), strict=True):
        kind = min(kinds, key=_find_best_rate)  # a step waits for the slowest rank
        if kind["best"] is None:
            continue
        point = kind["points"][kind["best"]]
        rates, unit = cells.scale_to_unit(
            [point["rate"][x] for x in ("median", "max")], kind["unit"]
        )
        shares = (
            None if x is None else f"{x:.1%}" for x in (point["swing"], kind["share_of_peak"])
        )
        named = _name_ceiling(kind)
        if kind["bus_factor"]:
            named = phrase("ceilings.bus", kind=named)
        rows.append([named, _format_size(point["size"]), *rates, unit, *shares])
    notes: dict[str, tuple[Phrase, list[str]]] = {}  # each line once, with its ranks
    for rank in document["ranks"]:
        for line in (line for kind in rank["measurements"] for line in _list_remarks(kind)):
            notes.setdefault(translate(line, "en"), (line, []))[1].append(str(rank["rank"]))
    first: list[Phrase] = list(dict.fromkeys(x["device"]["name"] for x in document["ranks"]))
    if document["nproc"] > 1:
        first.append(phrase("ceilings.ranks", n=document["nproc"]))
    share = document["others_cpu_share"] or 0.0
    return [
        Paragraph(join(first)),
        *(
            [build_table(translate_headings(*(f"ceilings.{name}" for name in _CEILINGS)), rows)]
            if rows
            else []
        ),
        *(
            Paragraph(join((f"rank {', '.join(numbers)}", line), "colon"))
            for line, numbers in notes.values()
        ),
        *_lay_out_links(document.get("links")),
        *([Paragraph(phrase("ceilings.busy", share=f"{share:.0%}"))] if share > BUSY_SHARE else []),
    ]


def _lay_out_links(links: Mapping[str, Any] | None) -> Iterator[Block]:
    """Yield the slowest pair of ranks and a table of pairs, the slowest first.

    Args:
        links: None: an older document, which has none.
    """
    if links is None:
        return
    if links["pairs"] is None:
        yield Paragraph(join((phrase("ceiling_kind.links"), _explain_missing_size(links)), "colon"))
        return
    measured = [pair for pair in links["pairs"] if pair["point"]["rate"]]
    if measured:
        measured.sort(key=_format_link_rate)
        middle = median(map(_format_link_rate, measured))
        slowest = measured[0]
        (rate,), unit = cells.scale_to_unit([_format_link_rate(slowest)], "bytes/s")
        yield Paragraph(
            phrase(
                "ceilings.slowest",
                a=slowest["ranks"][0],
                b=slowest["ranks"][1],
                rate=rate,
                unit=unit,
                share=f"{_format_link_rate(slowest) / middle:.0%}",
                pairs=len(measured),
                size=_format_size(slowest["point"]["size"]),
            )
        )
        rows = [_lay_out_link(pair, middle) for pair in measured[:_MAX_PAIRS]]
        yield build_table(translate_headings(*(f"ceilings.{name}" for name in _LINKS)), rows)
        if len(measured) > _MAX_PAIRS:
            yield Paragraph(phrase("ceilings.more_pairs", n=len(measured) - _MAX_PAIRS))
    for pair in links["pairs"]:
        if pair["point"]["status"] == "measured":
            continue
        first, second = pair["ranks"]
        named = phrase("ceilings.link", a=first, b=second)
        yield Paragraph(join((named, _explain_missing_size(pair["point"])), "colon"))


def _format_link_rate(pair: Mapping[str, Any]) -> float:
    rate: float = pair["point"]["rate"]["max"]
    return rate


def _lay_out_link(pair: Mapping[str, Any], median_rate: float) -> list[Phrase]:
    """Return the row of a pair of ranks."""
    first, second = pair["ranks"]
    point = pair["point"]
    rates, unit = cells.scale_to_unit(
        [point["rate"][name] for name in ("median", "max")], "bytes/s"
    )
    swing = None if point["swing"] is None else f"{point['swing']:.1%}"
    share = f"{_format_link_rate(pair) / median_rate:.0%}"
    return [phrase("ceilings.link", a=first, b=second), *rates, unit, swing, share]


def has_wrong_results(document: Mapping[str, Any]) -> bool:
    """Tell whether a rank computed something wrongly."""
    kinds = (kind for rank in document["ranks"] for kind in rank["measurements"])
    points = [point for kind in kinds for point in kind["points"]]
    points += [pair["point"] for pair in (document.get("links") or {}).get("pairs") or ()]
    return any(point["status"] == "wrong" for point in points)


def _find_best_rate(kind: Kind) -> float:
    return 0.0 if kind["best"] is None else kind["points"][kind["best"]]["rate"]["max"]


def _format_size(size: Sequence[int]) -> str:
    """Return ``4096x768x768``, or bytes as ``16 MiB``."""
    if len(size) > 1:
        return "x".join(map(str, size))
    (text,), unit = cells.scale_to_unit(size, "bytes")
    return f"{float(text):g} {unit}"


def _name_ceiling(kind: Kind) -> Phrase:
    name: str = kind["name"]
    work, _, precision = name.partition("_")
    if work == "matmul":
        return phrase("ceiling_kind.matmul", precision=precision)
    return term("ceiling_kind", name)


def _explain_missing_size(entry: Mapping[str, Any]) -> Phrase:
    """Return why a kind or a size was not measured; older documents have no code for it."""
    why = entry.get("why")
    if not why:
        return entry["reason"]
    return Text(entry["reason"], render(Message(why["code"], why["args"]), "zh"))


def _list_remarks(kind: Kind) -> list[Phrase]:
    """Return why something was not measured, is wrong, or cannot be."""
    lines: list[Phrase] = []
    if kind["reason"]:
        lines.append(join((_name_ceiling(kind), _explain_missing_size(kind)), "colon"))
    for status in ("skipped", "wrong"):
        points = [point for point in kind["points"] if point["status"] == status]
        if points:
            sizes = [
                phrase("ceilings.point", size=_format_size(x["size"]), why=_explain_missing_size(x))
                for x in points
            ]
            lines.append(phrase(f"ceilings.{status}", kind=_name_ceiling(kind), points=join(sizes)))
    if (kind["share_of_peak"] or 0) > 1:
        lines.append(join((_name_ceiling(kind), phrase("ceilings.above")), "colon"))
    return lines
