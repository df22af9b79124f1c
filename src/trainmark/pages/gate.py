"""What a gate says: a table, Markdown, JUnit XML, annotations of GitHub's workflows.

Names in judgements come from records of others: each output escapes them for itself.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trainmark.errors import EXIT_FAILED, EXIT_NOISY, EXIT_USAGE
from trainmark.pages import cells
from trainmark.pages.document import Table
from trainmark.pages.texts import text
from trainmark.record.messages import render
from trainmark.spec import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.judge.comparison.gate import Judgement

_IN_UNIT = ("value", "median", "at_least", "at_most")  # arguments of a message


def table(judgements: Sequence[Judgement], lang: str = "en") -> Table:
    """Return a row a judgement: verdict, figure, work and the sentence."""
    rows = (
        (text(f"judgement.{one.verdict}", lang), one.figure, one.work, _sentence(one, lang))
        for one in judgements
    )
    shown = (tuple(_inert(cells.clean(cell)) for cell in row) for row in rows)
    heads = (
        text(f"head.{name}", lang) for name in ("judgement", "name", "configuration", "remark")
    )
    return Table(tuple(heads), tuple(shown))


def _sentence(one: Judgement, lang: str) -> str:
    """Return the message with its values in a readable unit."""
    args, code = one.message.args, one.message.code
    found = ((name, args.get(name)) for name in _IN_UNIT)
    values = {name: value for name, value in found if isinstance(value, int | float)}
    if "unit" in args and values:
        factor, unit = cells.scale(max(map(abs, values.values())), str(args["unit"]))
        shown = {name: value / factor for name, value in values.items()}
        args = args | shown | {"unit": unit}
    return render(Message(code, args), lang)


def _inert(line: str) -> str:
    """Return text that is no command to the runner of GitHub, which reads every line of a log."""
    return line.replace("::", ": :").replace("##[", "## [")


def documents(judgements: Sequence[Judgement], lang: str = "en") -> list[dict[str, Any]]:
    """Return the judgements as JSON has them."""
    return [
        asdict(one) | {"exit_code": one.exit_code, "sentence": _sentence(one, lang)}
        for one in judgements
    ]


def markdown(found: Table) -> str:
    """Return a table in Markdown, as a summary of a workflow has it."""
    rows = (found.headers, ("---",) * len(found.headers), *found.rows)
    return "".join(f"| {' | '.join(map(cells.markdown, row))} |\n" for row in rows)


def junit(judgements: Sequence[Judgement], lang: str = "en") -> str:
    """Return a report in JUnit XML with one test case a judgement."""
    from junitparser import Error, Failure, Skipped, TestCase, TestSuite

    kinds = {EXIT_FAILED: Failure, EXIT_USAGE: Error, EXIT_NOISY: Skipped}
    suite = TestSuite("trainmark gate")
    for one, row in zip(judgements, table(judgements, lang).rows, strict=True):
        case = TestCase(row[1], row[2], 0.0)
        if one.exit_code in kinds:
            case.result = [kinds[one.exit_code](row[3], one.verdict)]
        suite.add_testcase(case)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + str(suite.tostring(), "utf-8")


def workflow_commands(judgements: Sequence[Judgement], file: str, lang: str = "en") -> list[str]:
    """Return a command of GitHub's workflows for each judgement that is not passed.

    Escaped as its toolkit does:
    https://github.com/actions/toolkit/blob/main/packages/core/src/command.ts (2026-11-22).

    Args:
        file: where a pull request shows them: the baseline; empty: nowhere in particular.
    """
    lines = []
    for one, row in zip(judgements, table(judgements, lang).rows, strict=True):
        kind = "error" if one.exit_code in (EXIT_FAILED, EXIT_USAGE) else "warning"
        title = _escaped(f"{row[0]}: {row[1]}, {row[2]}")
        place = f"file={_escaped(file)}," if file else ""
        said = row[3].replace("%", "%25")  # on one line already
        if one.verdict != "passed":
            lines.append(f"::{kind} {place}title={title}::{said}")
    return lines


def _escaped(value: str) -> str:
    """Return the value of a property of a command."""
    line = cells.clean(value).replace("%", "%25")
    return line.replace(":", "%3A").replace(",", "%2C")
