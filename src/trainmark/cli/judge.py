"""Verdicts on results: ``compare``, ``gate`` by a baseline or history, ``audit`` by rules."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmark.cli.options import Json, Lang
from trainmark.cli.output import (
    counted,
    fail_if_damaged,
    say,
    say_faults,
    say_json,
    say_lines,
    write_text,
)
from trainmark.errors import EXIT_FAILED, EXIT_PASSED, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainmark.library.selection import Selection
    from trainmark.record.work import Row

EXAMPLES = {
    "compare": """\
  trainmark compare runs/A runs/B                   is B slower than A?
  trainmark compare "runs/A1 runs/A2" runs/B        several runs on one side
  trainmark compare runs/A runs/B --figure step_time_p50 --threshold 0.05
  trainmark compare runs/PLAN/a runs/PLAN/b --allow bs   two runs of a plan, launched alternately
""",
    "gate": """\
  trainmark gate runs/RUN --baseline runs/FIRST            against good runs
  trainmark gate runs/RUN --history runs                   against earlier runs of the same work
  trainmark gate runs/RUN --baseline first.trainmark.zip --junit gate.xml
""",
    "audit": """\
  trainmark audit                           the newest run under ./runs
  trainmark audit runs/A runs/B --json
  trainmark audit runs/RUN --rules          are the rules of its division kept?
  trainmark list audit-rules                what is checked
""",
}
_AUDITED = "Runs, records, folders; pages, tables and logs of others."


def compare(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="The baseline: runs, folders, bundles; several in quotes."
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="What is compared with it, likewise.")],
    figure: Annotated[
        list[str] | None, typer.Option(help="Figure to compare; default: all throughputs.")
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="Smallest change that counts (0.03 = 3%).")
    ] = 0.03,
    allow: Annotated[
        list[str] | None, typer.Option(help="Setting in which A and B may differ, as bs.")
    ] = None,
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """Compare two runs: is B slower or worse than A, and by how much?

    Ends with 0: no, 1: yes, or a record cannot be read, 2: the work differs, 3: too noisy or too
    little data to tell.
    """
    from trainmark.judge.comparison import compare as compared
    from trainmark.pages.judgements import comparison
    from trainmark.pages.terminal import show

    # A path with blanks in it is one word.
    words = [[word] if Path(word).exists() else shlex.split(word) for word in (a, b)]
    sides = [_selected(of_side) for of_side in words]
    found = compared(
        *(side.records for side in sides), figures=figure, threshold=threshold, allow=allow or ()
    )
    code = _exit_code(found.exit_code, sides)
    if as_json:
        say_json(found.as_dict() | {"exit_code": code})
    else:
        typer.echo(show(comparison(found), lang=lang))
    raise typer.Exit(code)


def _selected(words: Sequence[str]) -> Selection:
    """Return the records that words name; those that cannot be read are named."""
    from trainmark.library.selection import select

    found = select(words, rows=False)
    say_faults(found.skipped)
    return found


def _exit_code(code: int, selections: Iterable[Selection]) -> int:
    """Return ``code``, or 1 if a record could not be read."""
    return EXIT_FAILED if any(one.skipped for one in selections) else code


def gate(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs to check.")],
    baseline: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Runs or bundles to check against.")
    ] = None,
    history: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Earlier runs to check against.")
    ] = None,
    figure: Annotated[list[str] | None, typer.Option(help="Figure to check.")] = None,
    worse_by: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Allowed loss (0.05 = 5%); default: from the spread of the baseline."
        ),
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Also accept unverified records.")
    ] = False,
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """Check runs against baseline runs, or against earlier runs of the same work.

    Ends with 0: passed, 1: failed, or a record cannot be read, 2: the work differs, 3: too noisy
    or too little data to tell.
    """
    from trainmark.judge.comparison import gate as gating
    from trainmark.library.selection import Selection
    from trainmark.pages import judgements as report
    from trainmark.pages.terminal import show
    from trainmark.record.work import each_once

    if not (baseline or history):
        raise UsageError("nothing to check against", fix="give --baseline WORD or --history WORD")
    if junit and not junit.absolute().parent.is_dir():
        raise UsageError("no such folder", where=f"--junit {junit}", fix="make it, or name another")
    given = [_selected(words) if words else Selection() for words in (runs, baseline, history)]
    records, expected, earlier = (one.records for one in given)
    for record in (*records, *expected, *earlier):
        if record.verification == "unverified" and not unverified:
            rule = "only records that match their raw events are checked"
            raise UsageError("unverified", where=record.run_id, rule=rule, fix="--unverified")
    each_once(record.run_id for record in records)
    judged = (
        list(gating.against_baseline(records, expected, figure or (), worse_by=worse_by))
        if baseline else []
    )  # fmt: skip
    if history:
        judged += gating.against_history(records, earlier, figure or ())
    judged += [gating.unreadable(one) for one in given[0].skipped]
    code = _exit_code(gating.exit_code(judged), given)
    if junit:
        write_text(junit, report.junit(judged, lang))
    if as_json:
        documents = report.documents(judged, lang)
        say_json({"schema_version": 1, "exit_code": code, "judgements": documents})
    else:
        typer.echo(show([report.gate_table(judged, lang)], lang=lang))
    raise typer.Exit(code)


_SKIPPED_RULES = "rules about data and FLOPs do not apply"
_SHOWN_MODELS = 5  # names of models that are not known


def audit(
    results: Annotated[list[str] | None, typer.Argument(help=_AUDITED)] = None,
    rules: Annotated[
        bool, typer.Option("--rules", help="Check the rules of the division that the runs claim.")
    ] = False,
    lang: Lang = "en",
    as_json: Json = False,
) -> None:
    """Find errors and doubts in results.

    Ends with 1 if there is an error, a broken rule or a record that cannot be read.
    """
    from trainmark.api import audit_selection
    from trainmark.library.selection import select
    from trainmark.record.messages import render

    chosen = select(results or [], rows=not rules)
    if rules:
        raise typer.Exit(_judge_rules(chosen, lang, as_json=as_json))
    found, count = audit_selection(chosen), len(chosen.records) + len(chosen.rows)
    documents = [finding.as_dict(lang) for finding in found]
    if as_json:
        say_json({"findings": documents, "audited": count})
    for it in () if as_json else documents:
        place = f"{it['file']}:{it['line']}" if it["line"] else it["file"]
        say_lines([f"{it['severity']} {it['rule']} {place} {it['configuration']}"])
        say_lines([it["message"]], before="  ")
    summary = f"{counted(count, 'result')} audited, {counted(len(found), 'finding')}"
    if chosen.unread:
        summary += f"; {counted(len(chosen.unread), 'place')} not read"
    say(summary, err=True)
    for row in chosen.rows:
        for note in row.notes:
            if note.code == "log_not_checkable":
                say(f"{row.file}:{row.line} {render(note, lang)}", err=True)
    _say_unknown_models(chosen.rows)
    fail_if_damaged(chosen)
    if any(finding.severity == "error" for finding in found):
        raise typer.Exit(EXIT_FAILED)


def _judge_rules(chosen: Selection, lang: str, *, as_json: bool) -> int:
    """Print how results comply with the rules of their division; return the exit code."""
    from trainmark.judge.compliance import check
    from trainmark.pages.judgements import (
        compliance_document,
        compliance_rules,
        compliance_title,
    )
    from trainmark.record.work import groups

    say_faults(chosen.skipped)
    checked = [check(group) for group in groups(chosen.records)]
    if as_json:
        say_json([compliance_document(one, lang) for one in checked])
    for one in () if as_json else checked:
        say_lines([compliance_title(one, lang)])
        for mark, sentence in compliance_rules(one, lang):
            say_lines([sentence], before=f"  {mark} ")
    code = EXIT_PASSED if all(one.compliant for one in checked) else EXIT_FAILED
    return _exit_code(code, [chosen])


def _say_unknown_models(rows: Sequence[Row]) -> None:
    """Name the models to which the rules about data and FLOPs cannot be applied."""
    from trainmark.judge.audit.workloads import unknown_models

    unnamed, unknown = unknown_models(rows)
    if unnamed:
        nameless = counted(unnamed, "row")
        say(f"no model is named in {nameless}: {_SKIPPED_RULES}; add a column `model`", err=True)
    if unknown:
        names = ", ".join(list(unknown)[:_SHOWN_MODELS])
        more = f" and {len(unknown) - _SHOWN_MODELS} more" if len(unknown) > _SHOWN_MODELS else ""
        fix = "a size in the name (`qwen3_8b`) or a column `parameters` helps"
        say(
            f"{counted(sum(unknown.values()), 'row')} of unknown models ({names}{more}): "
            f"{_SKIPPED_RULES}; {fix}",
            err=True,
        )
