"""Verdicts on results: ``gate`` by a baseline or history, ``audit`` by rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trainmark.cli.options import Json, Lang, Quiet
from trainmark.cli.output import say, say_faults, say_json, say_refuted, say_remark, write_text
from trainmark.errors import EXIT_FAILED, UsageError

if TYPE_CHECKING:
    from trainmark.record.record import Record

EXAMPLES = {
    "gate": """\
  trainmark gate runs/RUN --write baseline.yaml            what is expected from now on
  trainmark gate runs/RUN --baseline baseline.yaml
  trainmark gate runs/RUN --history runs                   against the same work in earlier runs
  trainmark gate runs/RUN --baseline baseline.yaml --junit gate.xml
""",
    "audit": """\
  trainmark audit                           the newest run under ./runs
  trainmark audit runs/A runs/B --json
  trainmark audit runs --rule ordering --rule mfu
  trainmark audit runs/RUN --rules          does it comply with the division it claims?
  trainmark list audit-rules                what is checked; `list divisions`: what --rules asks
""",
}


def gate(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs to judge.")],
    baseline: Annotated[Path | None, typer.Option(help="File of `--write`.")] = None,
    history: Annotated[list[str] | None, typer.Option(metavar="WORD", help="Earlier runs.")] = None,
    figure: Annotated[
        list[str] | None, typer.Option(help="Figure to judge by history, or to write.")
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the runs' figures, with tolerances; in a file that is there, those of "
            "the same work are replaced. -: stdout.",
        ),
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Take records without evidence too.")
    ] = False,
    as_json: Json = False,
    lang: Lang = "en",
    quiet: Quiet = False,
) -> None:
    """Judge runs by a baseline, or by earlier runs of the same work; --quiet: what did not pass.

    Ends with 0: passed, 1: failed, 2: other work, 3: too noisy or too little data.
    """
    from trainmark.judge.comparison import gate as gating
    from trainmark.judge.comparison.baseline import read
    from trainmark.library.selection import select
    from trainmark.pages import judgements as report
    from trainmark.pages.terminal import show
    from trainmark.record.work import each_once

    if write is not None:
        if baseline or history:
            raise UsageError("--write makes the baseline", remedy="leave the other out")
        _write(_selected(runs, unverified=unverified), write, figure or [])
        return
    if baseline is None and not history:
        remedy = "give --baseline FILE or --history WORD; --write FILE makes a baseline"
        raise UsageError("nothing to judge by", remedy=remedy)
    if figure and not history:
        rule = "a baseline names its figures itself"
        raise UsageError("goes with --history", where="--figure", rule=rule, remedy="leave it out")
    records = _selected(runs, unverified=unverified)
    each_once(record.run_id for record in records)
    judged = list(gating.against_baseline(records, read(baseline))) if baseline else []
    if history:
        past = select(history, rows=False)
        say_faults(past.skipped)
        judged += gating.against_history(records, past.records, figure or ())
    code = gating.exit_code(judged)
    if junit:
        write_text(junit, report.junit(judged, lang))
    if as_json:
        documents = report.documents(judged, lang)
        say_json({"schema_version": 1, "exit_code": code, "judgements": documents})
    else:
        shown = [one for one in judged if not quiet or one.verdict != "passed"]
        typer.echo(show([report.gate_table(shown, lang)] if shown else [], lang=lang))
    raise typer.Exit(code)


def _selected(runs: list[str], *, unverified: bool) -> list[Record]:
    """Return the records of ``runs``; refuse those without their evidence unless asked."""
    from trainmark.library.selection import select

    found = select(runs, rows=False)
    say_faults(found.skipped)
    for record in found.records:
        if record.verification == "unverified" and not unverified:
            rule = "only records that agree with their events are judged"
            raise UsageError("unverified", where=record.run_id, rule=rule, remedy="--unverified")
    return found.records


def _write(records: list[Record], file: Path, figures: list[str]) -> None:
    """Write the baseline that ``runs`` make."""
    from trainmark.judge.comparison.baseline import dumps, read, take
    from trainmark.record.trust import MOST_CV

    new = take(records, figures, read(file) if file.is_file() else None)
    for entry in new.entries:
        wide = [name for name, found in entry.figures.items() if found.worse_by > MOST_CV]
        if wide:
            advice = "measure on an idle machine, or set worse_by"
            say_remark(f"{entry.name}: wide tolerance of {', '.join(wide)}: {advice}")
    if str(file) == "-":
        say(dumps(new), newline=False)
    else:
        write_text(file, dumps(new))
        say(str(file), err=True)


def audit(
    results: Annotated[list[str] | None, typer.Argument(help="Runs, records, folders.")] = None,
    rule: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    rules: Annotated[
        bool, typer.Option("--rules", help="Check the rules of a division in place of figures.")
    ] = False,
    division: Annotated[
        Literal["closed", "open"] | None,
        typer.Option(help="With --rules; default: the one that the records claim."),
    ] = None,
    lang: Lang = "en",
    as_json: Json = False,
) -> None:
    """Find errors and doubts in results; exit 1 where there is an error."""
    from trainmark.api import audited
    from trainmark.judge.audit.subject import workload_of
    from trainmark.library.selection import select

    chosen = select(results or [], rows=not rules)
    if rules:
        from trainmark.judge.compliance import check
        from trainmark.pages.judgements import compliance_lines
        from trainmark.record.work import groups

        say_faults(chosen.skipped)
        checked = [check(group) for group in groups(chosen.records)]
        if as_json:
            say_json([one.as_dict() for one in checked])
        for one in () if as_json else checked:
            say("\n".join(compliance_lines(one, lang)))
        raise typer.Exit(0 if all(one.compliant(division) for one in checked) else EXIT_FAILED)
    found, count = audited(chosen, only=rule or ()), len(chosen.records) + len(chosen.rows)
    documents = [finding.as_dict(lang) for finding in found]
    if as_json:
        say_json({"findings": documents, "audited": count})
    for it in () if as_json else documents:
        place = f"{it['file']}:{it['line']}" if it["line"] else it["file"]
        say(f"{it['severity']} {it['rule']} {place} {it['configuration']}\n  {it['message']}")
    say(f"audited {count}, not read {len(chosen.unread)}, findings {len(found)}", err=True)
    unknown = sum(not workload_of(row.case, row.model).names for row in chosen.rows)
    if unknown:
        say(f"of unknown models {unknown}: rules about their data and FLOPs left out", err=True)
    say_refuted(chosen)
    if any(finding.severity == "error" for finding in found):
        raise typer.Exit(EXIT_FAILED)
