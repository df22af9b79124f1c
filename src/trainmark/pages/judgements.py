"""What a gate and the rules say: a table, JSON, JUnit XML.

Names in judgements come from records of others: each output escapes them for itself.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trainmark.errors import EXIT_FAILED, EXIT_NOISY, EXIT_USAGE
from trainmark.pages import cells
from trainmark.pages.document import Table, table
from trainmark.pages.phrases import heads
from trainmark.pages.texts import say, t
from trainmark.record.messages import render
from trainmark.spec import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.judge.comparison.gate import Judgement
    from trainmark.judge.compliance import Compliance

_IN_UNIT = ("value", "expected")  # arguments of a message


def gate_table(judgements: Sequence[Judgement], lang: str = "en") -> Table:
    """Return a row a judgement: verdict, figure, work and the sentence, in a language."""
    rows = ((t(f"judgement.{x.verdict}"), x.figure, x.work, _scaled(x)) for x in judgements)
    shown = ([cells.clean(say(cell, lang)) for cell in row] for row in rows)
    return table(heads("judgement", "name", "configuration", "remark"), shown)


def _scaled(one: Judgement) -> Message:
    """Return the message with its values in a readable unit."""
    args, code = one.message.args, one.message.code
    values = {x: v for x in _IN_UNIT if isinstance(v := args.get(x), int | float)}
    if "unit" in args and values:
        factor, unit = cells.scale(max(map(abs, values.values())), str(args["unit"]))
        args = args | {name: value / factor for name, value in values.items()} | {"unit": unit}
    return Message(code, args)


def documents(judgements: Sequence[Judgement], lang: str = "en") -> list[dict[str, Any]]:
    """Return the judgements as JSON has them."""
    return [
        asdict(one) | {"exit_code": one.exit_code, "sentence": render(_scaled(one), lang)}
        for one in judgements
    ]


def junit(judgements: Sequence[Judgement], lang: str = "en") -> str:
    """Return a report in JUnit XML with one test case a judgement."""
    from junitparser import Error, Failure, Skipped, TestCase, TestSuite

    kinds = {EXIT_FAILED: Failure, EXIT_USAGE: Error, EXIT_NOISY: Skipped}
    suite = TestSuite("trainmark gate")
    for one, row in zip(judgements, gate_table(judgements, lang).rows, strict=True):
        verdict, figure, work, said = map(str, row)
        case = TestCase(figure, work, 0.0)
        if one.exit_code in kinds:
            case.result = [kinds[one.exit_code](said, verdict)]
        suite.add_testcase(case)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + str(suite.tostring(), "utf-8")


def compliance_lines(found: Compliance, lang: str) -> Iterator[str]:
    """Yield how launches comply with the divisions of their case, a line a rule."""
    about = {"case": found.case, "launches": len(found.run_ids), "division": found.claimed}
    yield cells.clean(say(t("compliance.of", **about), lang))
    for name, rules in found.divisions.items():
        kept = "yes" if found.compliant(name) else "no"
        yield say(t(f"compliance.{kept}", division=name), lang)
        for rule in rules:
            mark = say(t(f"compliance.{'kept' if rule.kept else 'broken'}"), lang)
            yield f"  {mark} {cells.clean(render(rule.found, lang))}"
