"""The results of comparisons, gates, the rules and ``ceilings``: tables, JSON, JUnit XML.

Names in judgements may come from other people's records, so each format escapes them itself.
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
    describe_grade,
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

    from trainmark.judge.comparison import ComparedFigure, Comparison, ComparisonVerdict
    from trainmark.judge.comparison.gate import Judgement
    from trainmark.judge.comparison.scaling import Scaling
    from trainmark.judge.comparison.sides import Difference, Side
    from trainmark.judge.compliance import Compliance

    Kind = Mapping[str, Any]  # the measurement of one kind of ceiling on a rank, as JSON has it

# Arguments of a message that are values in the unit that its argument `unit` names.
_ARGS_IN_UNIT = ("value", "expected")
# Columns of tables.
_SCALING_COLUMNS = ("world", "launches", "samples_per_rank", "throughput", "efficiency")
_LINK_COLUMNS = ("pair", "median", "max", "unit", "swing", "of_median")
_CEILING_COLUMNS = ("work", "size", "median", "max", "unit", "swing", "of_peak")
_MAX_PAIRS = 28  # that are listed; eight devices have so many


def build_comparison(result: Comparison, b: str = "B") -> list[Block]:
    """Return the verdict, the figures that it is based on, and what a reader must know of them.

    The latter are the quality, the trust in each side, excluded launches, and differences of the
    work, the machine and the software.

    Args:
        result: side B compared with side A, each of which is launches of one work.
        b: name of side B in headings and sentences: ``C`` if it is the second side that is compared
            with A.
    """
    verdict_tone = _choose_verdict_tone(result.verdict)
    # Messages about side B have a placeholder for its name.
    blocks: list[Block] = [Paragraph(_fill_in_name_of_b(result.sentence, b), verdict_tone)]
    if result.scaling:  # how throughput grows with the number of ranks, in place of the figures
        blocks += build_scaling(result.scaling)
    else:
        blocks.append(_build_figures_table(result.figures, b))
    if result.quality:  # how many launches of each side reached their target; None: no target
        blocks.append(Paragraph(_fill_in_name_of_b(result.quality, b)))
    side_by_name = {"A": result.a, b: result.b}
    blocks += [_describe_trust_in_side(name, side) for name, side in side_by_name.items()]
    reasons = _list_reasons(result)  # to doubt a side
    if reasons:
        headings = [phrase("compare.doubts", side=name) for name in side_by_name]
        blocks.append(build_table(headings, reasons))
    # A scaling is computed from all launches, never in pairs: then ``paired`` is False, whether or
    # not launches alternated.
    if not result.scaling:
        # in_pairs: launches of both sides alternated. apart: they did not, so a change of the
        # machine in between appears as a difference.
        blocks.append(Paragraph(phrase(f"compare.{'in_pairs' if result.paired else 'apart'}")))
    for name, side in side_by_name.items():
        for launch in side.left_out:
            text = phrase("compare.left_out", side=name, run=launch.name, reason=launch.reason)
            blocks.append(Paragraph(text, "warn"))
    if result.allowed:  # differences of the work that the user permitted by name
        blocks.append(Paragraph(phrase("compare.allowed"), "warn"))
        blocks.append(_build_facts_table(result.allowed, b))
    if result.differences:  # of machine and software
        blocks.append(Paragraph(phrase("compare.differences")))
        blocks.append(_build_facts_table(result.differences, b))
    return blocks


def _choose_verdict_tone(verdict: ComparisonVerdict) -> Tone:
    """Return the tone of the sentence with the verdict, by which a page colours it."""
    # INCONCLUSIVE: too much noise, or too little data. other_world: the numbers of ranks differ, so
    # only the efficiency of scaling is known.
    if verdict in (*INCONCLUSIVE, "other_world"):
        return "warn"
    return "bad" if verdict in REGRESSIONS else "good"


def _build_figures_table(figures: Iterable[ComparedFigure], b: str) -> Table:
    """Return a table with a row for each figure, such as throughput, of side A and side B.

    Args:
        figures: each with the values of both sides, their ratio, and what is concluded from it.
        b: name of side B in the headings.
    """
    name_heading, unit_heading = translate_headings("name", "unit")
    # "compare.verdict": what is concluded from each figure.
    last_headings = translate_headings("interval", "launches", "compare.verdict")
    headings = (name_heading, "A", b, unit_heading, f"{b}/A", *last_headings)
    return build_table(headings, map(_build_figure_row, figures))


def _describe_trust_in_side(name: str, side: Side) -> Paragraph:
    """Return how far the figures of a side can be trusted, and whether their evidence was checked.

    Args:
        name: of the side, such as ``A``.
        side: launches of one work.
    """
    trust = describe_grade(side.trust, side.verification)
    # Witnessed: a user's own program ran, which a probe measured from inside. The line says so, and
    # that its figures are not comparable with those of a case, whatever the grade.
    if side.is_witnessed:
        trust = join((trust, phrase("division.witnessed")))
    line = join((phrase("trust.of", side=name), trust), "colon")
    return Paragraph(line, TONES[side.trust.grade])


def _build_facts_table(facts: Iterable[Difference], b: str) -> Table:
    """Return a table with a row for each fact of work, machine or software in which sides differ.

    Args:
        facts: each with the distinct values among the launches of side A, and of side B.
        b: name of side B in the heading.
    """

    def join_values(values: Sequence[Any]) -> Phrase:
        # None: no launch of the side reported the fact. ``or_none`` names a reported empty value.
        return join(map(or_none, values), "semicolon") if values else None

    rows = [(term("work", fact.name), join_values(fact.a), join_values(fact.b)) for fact in facts]
    return build_table((phrase("compare.fact"), "A", b), rows)


def _list_reasons(result: Comparison) -> list[list[Phrase]]:
    """Return a row for each reason to doubt a side: its short text for side A, and for side B.

    The text is None for a side to which the reason does not apply. The texts of both sides may
    have different numbers in them, so reasons are matched by their code.
    """
    reasons_of_a = {reason.code: shorten(reason) for reason in result.a.trust.reasons}
    reasons_of_b = {reason.code: shorten(reason) for reason in result.b.trust.reasons}
    codes = list(dict.fromkeys([*reasons_of_a, *reasons_of_b]))  # each once
    return [[reasons_of_a.get(code), reasons_of_b.get(code)] for code in codes]


def _fill_in_name_of_b(sentence: Message, b: str) -> Message:
    """Return a sentence about side B with the name of that side filled in."""
    return replace(sentence, args=sentence.args | {"side": b})


def build_scaling(scaling: Scaling) -> list[Block]:
    """Return a table of throughput and efficiency, doubts about them, and what they mean.

    The table has a row for each world, a number of nodes and of ranks on each node with which the
    same work was measured.
    """
    rows: list[list[Phrase]] = []
    for world in scaling.worlds:
        # Of all ranks together: the mean over the launches, and the ends of its interval.
        rate = world.throughput
        interval: Phrase = f"{cells.format_rate(rate.low)} – {cells.format_rate(rate.high)}"
        if rate.launches == 1:  # a single launch has no interval
            interval = count_in_words("launches", 1)
        throughput = (cells.format_rate(rate.mean), " (", interval, ")")
        efficiency = f"{world.efficiency:.1%}"
        # The efficiency's interval. There is none if a world has a single launch, and none of the
        # smallest world, to which the others are compared.
        if world.low is not None and world.high is not None:
            efficiency += f" ({world.low:.1%} – {world.high:.1%})"
        # ``name``: for example ``2x8``. ``samples_per_rank``: in one step.
        rows.append([world.name, rate.launches, world.samples_per_rank, throughput, efficiency])
    # Only the heading of the throughput has a placeholder for the unit.
    headings = (phrase(f"scaling.{name}", unit=scaling.unit) for name in _SCALING_COLUMNS)
    doubts = [Paragraph(doubt, "warn") for doubt in scaling.doubts]
    # The efficiency is relative to the first world, which is the smallest.
    explanation = Paragraph(phrase("scaling.means", first=scaling.worlds[0].name))
    return [build_table(headings, rows), *doubts, explanation]


def _build_figure_row(figure: ComparedFigure) -> tuple[Phrase, ...]:
    """Return the row of a figure, such as throughput, in the table of a comparison of A and B.

    The cells are name, value of A, value of B, unit, ratio B/A, the 95% interval of the ratio from
    ``low`` to ``high``, the numbers of launches, and the verdict. The ratio is None if a side has
    no value, and the interval is None if there are too few launches for one.
    """
    (a, b), unit = cells.scale_to_unit([figure.a, figure.b], figure.unit)
    ratio = None if figure.ratio is None else f"{figure.ratio:.3f}"
    interval = None
    if figure.low is not None and figure.high is not None:
        interval = f"{figure.low:.3f} – {figure.high:.3f}"
    launches_of_a, launches_of_b = figure.launches
    launches = f"{launches_of_a}, {launches_of_b}"
    verdict = phrase(f"compare.{figure.verdict}")
    return figure.name, a, b, unit, ratio, interval, launches, verdict


def build_gate_rows(judgements: Sequence[Judgement], lang: str = "en") -> Table:
    """Return a table with a row for each judgement of a run against its history, in a language.

    The cells of a row are the verdict, the figure that is judged, what ran, and a sentence with
    the numbers. Each cell is one line of text.
    """
    rows = []
    for judgement in judgements:
        row = [
            phrase(f"judgement.{judgement.verdict}"),
            judgement.figure,
            judgement.work,
            _scale_message(judgement),  # its translation is the sentence
        ]
        rows.append([to_one_line(translate(cell, lang)) for cell in row])
    return build_table(translate_headings("judgement", "name", "configuration", "remark"), rows)


def _scale_message(judgement: Judgement) -> Message:
    """Return the message of a judgement with its values in a readable unit, as GiB for bytes.

    A message is the code of a sentence, and the arguments that fill it. Those named in
    ``_ARGS_IN_UNIT``, a figure and the one that was expected, have the unit that the argument
    ``unit`` names. Both get the same new unit, which suits the larger one. The other arguments stay
    as they are.
    """
    args = dict(judgement.message.args)
    values: dict[str, float] = {}
    for name in _ARGS_IN_UNIT:
        value = args.get(name)
        if isinstance(value, int | float):
            values[name] = value
    if "unit" in args and values:
        largest = max(abs(value) for value in values.values())
        divisor, unit = cells.choose_readable_unit(largest, str(args["unit"]))
        args |= {name: value / divisor for name, value in values.items()}
        args["unit"] = unit
    return Message(judgement.message.code, args)


def to_json_documents(judgements: Sequence[Judgement], lang: str = "en") -> list[dict[str, Any]]:
    """Return each judgement as JSON: its fields, its exit code, and its message as a sentence.

    The sentence, in the language ``lang``, has values in readable units. The fields keep theirs.
    """
    return [
        asdict(judgement)
        | {"exit_code": judgement.exit_code, "sentence": render(_scale_message(judgement), lang)}
        for judgement in judgements
    ]


def to_junit(judgements: Sequence[Judgement], lang: str = "en") -> str:
    """Return a report in JUnit XML with one test case for each judgement of a run.

    A test fails if the run failed or a figure regressed. It has an error if the run did other work
    than the runs to which it is compared. It counts as skipped if the judgement is not certain,
    because JUnit has no outcome for that.
    """
    outcome_of_code = {
        EXIT_FAILED: "failure",  # the run failed, or a figure regressed
        EXIT_USAGE: "error",  # the run did other work
        EXIT_NOISY: "skipped",  # too much noise, or too little data
    }
    rows = build_gate_rows(judgements, lang).rows
    # An empty text: the test passed.
    outcomes = [outcome_of_code.get(judgement.exit_code, "") for judgement in judgements]
    # `counted("failure")` in the template is the number of failures.
    return render_template(
        "junit.xml.j2", lang, rows=rows, outcomes=outcomes, counted=outcomes.count
    )


def to_compliance_document(compliance: Compliance, lang: str) -> dict[str, Any]:
    """Return how launches comply with the rules of the division that they claim, for JSON.

    Args:
        compliance: the result of checking launches against the division that they claim. A division
            is a set of rules: ``closed`` allows few settings to be changed, ``open`` allows any.
    """
    rules = [
        # `kept`: whether the launches obey the rule.
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
    """Return a line that says whether launches comply with the rules that they claim to obey.

    Args:
        compliance: the result of checking launches against the division that they claim. A division
            is a set of rules: ``closed`` allows few settings to be changed, ``open`` allows any.
    """
    sentence = phrase(
        f"compliance.{'yes' if compliance.compliant else 'no'}",
        case=compliance.case,
        launches=len(compliance.run_ids),
        division=compliance.division,
    )
    return to_one_line(translate(sentence, lang))


def list_compliance_rules(compliance: Compliance, lang: str) -> Iterator[tuple[str, str]]:
    """Yield a word and a sentence for each rule that launches must obey.

    The word, ``ok`` or ``FAULT``, says whether they obey it. The sentence says what the rule
    demands and what the records of the launches have.

    Args:
        compliance: the result of checking launches against the rules that they claim to obey.
    """
    for rule in compliance.rules:
        word = translate(phrase(f"compliance.{'kept' if rule.kept else 'broken'}"), lang)
        yield word, to_one_line(render(rule.sentence, lang))


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
