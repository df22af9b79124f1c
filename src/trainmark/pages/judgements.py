"""The results of comparisons, gates and the rules: tables, JSON, JUnit XML.

Names in judgements may come from other people's records, so each format escapes them itself.
"""

from __future__ import annotations

from dataclasses import asdict, replace
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
from trainmark.record.messages import render, shorten
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainmark.judge.comparison import ComparedFigure, Comparison, ComparisonVerdict
    from trainmark.judge.comparison.gate import Judgement
    from trainmark.judge.comparison.scaling import Scaling
    from trainmark.judge.comparison.sides import Difference, Side
    from trainmark.judge.compliance import Compliance, RuleResult

# Arguments of a message that are values in the unit that its argument `unit` names.
_ARGS_IN_UNIT = ("value", "expected")
_SCALING_COLUMNS = ("world", "launches", "samples_per_rank", "throughput", "efficiency")


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
    """Return a table with a row for each judgement of a run against its history.

    The cells of a row are the verdict, the figure that is judged, what ran, and a sentence with
    the numbers. Each cell is one line of text in the language ``lang``, because a report in XML has
    the rows without a table. The headings are phrases; whatever shows the table translates them.
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
        {"rule": x.rule, "kept": x.kept, "sentence": _render_rule(x, lang)}
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
        yield word, to_one_line(_render_rule(rule, lang))


def _render_rule(result: RuleResult, lang: str) -> str:
    """Return the sentence of a rule's result, in which reasons for doubt have their sentences."""
    if not result.doubts:
        return render(result.sentence, lang)
    texts = [render(shorten(doubt), lang) for doubt in result.doubts]
    separator = translate(phrase("sep.semicolon"), lang)
    return render(message(result.sentence.code, found=separator.join(texts)), lang)
