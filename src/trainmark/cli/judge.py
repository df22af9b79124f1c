"""Verdicts on results: ``compare``, ``gate`` by a baseline or history, ``audit`` by rules."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmark.cli.options import Json, Lang, words_of
from trainmark.cli.output import say, say_faults, say_json, say_refuted, say_remark, write_text
from trainmark.errors import EXIT_FAILED, EnvironmentFault, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.launch.series import CheckedEntry
    from trainmark.record.record import Record

EXAMPLES = {
    "compare": """\
  trainmark compare runs/A runs/B                   is B slower than A?
  trainmark compare "runs/A1 runs/A2" runs/B        several words for one side
  trainmark compare runs/A runs/B --figure step_time_p50 --threshold 5%
  trainmark compare --run "toy bs=16 --nproc 2" "toy bs=32 --nproc 2" --allow bs
""",
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


def _share(word: str) -> float:
    """Return a share that is written as 3% or 0.03."""
    try:
        return float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        raise typer.BadParameter(f"{word!r} is no share, as 3% or 0.03") from None


def compare(
    a: Annotated[str, typer.Argument(help="Runs, folders, bundles; quote several.")],
    b: Annotated[str, typer.Argument(help="The same; with --run: the words of a `run`.")],
    figure: Annotated[
        list[str] | None, typer.Option(help="Figure to compare; default: the throughputs.")
    ] = None,
    threshold: Annotated[str, typer.Option(help="What a change must exceed, as 3%.")] = "3%",
    allow: Annotated[
        list[str] | None, typer.Option(help="Key of the work in which A and B may differ.")
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Run both first, in turns.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="With --run: folder of the runs; again: what is left.")
    ] = None,
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """Tell whether B is slower or worse than A, with an interval.

    Ends with 0: it is not, 1: it is, 2: other work, 3: too noisy or too little data to tell.
    """
    from trainmark.api import run_entries
    from trainmark.judge.comparison import compare as compared
    from trainmark.judge.comparison import known_figures
    from trainmark.judge.comparison.sides import refuse_other_work
    from trainmark.pages.judgements import comparison
    from trainmark.pages.terminal import show
    from trainmark.record.work import planned_work, with_all_names

    allowed, share = allow or [], _share(threshold)
    if out and not run:
        raise UsageError("goes with --run", where="--out", remedy="leave it out")
    if run:
        checked, order = _in_turns((a, b), out)
        works = with_all_names([planned_work(entry.plan) for entry in checked if entry.plan])
        refuse_other_work(works[:1], works[1:], allowed)
        pages = [entry.plan.about.page for entry in checked if entry.plan]
        known_figures(figure or (), share, pages[0])
        outcomes, stopped = run_entries(checked, order, quiet=False, say=say_remark)
        if stopped:
            say(f"trainmark: stopped by {stopped}; the same with --out goes on", err=True)
            raise typer.Exit(EXIT_FAILED)
        sides: list[Sequence[Record]] = [outcome.records for outcome in outcomes]
    else:  # a path with blanks in it is one word
        words = [[word] if Path(word).exists() else shlex.split(word) for word in (a, b)]
        sides = [_launches(side) for side in words]
    found = compared(sides[0], sides[1], figures=figure, threshold=share, allow=allowed)
    if as_json:
        say_json(found.as_dict())
    else:
        typer.echo(show(comparison(found), lang=lang))
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _launches(words: Sequence[str]) -> list[Record]:
    """Return the records that words name; what cannot be read is told."""
    from trainmark.library.selection import select

    found = select(words, rows=False)
    say_faults(found.skipped)
    return found.records


def _in_turns(sides: tuple[str, str], out: Path | None) -> tuple[list[CheckedEntry], str]:
    """Return the two runs, checked, and the order A B, B A, A B …; nothing is started."""
    from trainmark import devices
    from trainmark.cli.app import command as verb
    from trainmark.launch.series import check
    from trainmark.plan.overrides import parse_assignments
    from trainmark.plan.plan import RUNS_DIR
    from trainmark.plan.plan_file import Entry, PlanFile
    from trainmark.plan.request import RunRequest

    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = out or RUNS_DIR / f"{stamp}-compare"
    entries = []
    for name, words in zip("AB", sides, strict=True):
        given = words_of(verb("run"), shlex.split(words))
        fields = {key: given[key] for key in RunRequest.model_fields}
        fields |= {
            "overrides": parse_assignments(given["overrides"] or []),
            "device": given["device"] or devices.choose(None).name,
            "repeat": given["repeat"] or 5,
            "out": folder / name,
        }
        entries.append(Entry.of(name=name, where=f"--run {words!r}", **fields))
    file = PlanFile(name=folder.name, out=folder, entries=tuple(entries))
    checked = check(file)
    for entry in checked:
        if entry.plan is None:
            raise EnvironmentFault(entry.skipped or "cannot run here", where=f"--run, {entry.name}")
    return checked, file.order


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
) -> None:
    """Judge runs by a baseline, or by earlier runs of the same work.

    Ends with 0: passed, 1: failed, 2: other work, 3: too noisy or too little data.
    """
    from trainmark.judge.comparison import gate as gating
    from trainmark.pages import judgements as report
    from trainmark.pages.terminal import show
    from trainmark.record.work import each_once

    if bool(write) == bool(baseline or history):
        remedy = "give --baseline FILE or --history WORD; --write FILE alone makes a baseline"
        raise UsageError("gate judges, or makes the baseline", remedy=remedy)
    if figure and not (write or history):
        raise UsageError("a baseline names its figures itself", where="--figure")
    records = _launches(runs)
    for record in records:
        if record.verification == "unverified" and not unverified:
            rule = "only records that agree with their events are judged"
            raise UsageError("unverified", where=record.run_id, rule=rule, remedy="--unverified")
    if write:
        _write(records, write, figure or [])
        return
    each_once(record.run_id for record in records)
    judged = list(gating.against_baseline(records, gating.read(baseline))) if baseline else []
    if history:
        judged += gating.against_history(records, _launches(history), figure or ())
    code = gating.exit_code(judged)
    if junit:
        write_text(junit, report.junit(judged, lang))
    if as_json:
        documents = report.documents(judged, lang)
        say_json({"schema_version": 1, "exit_code": code, "judgements": documents})
    else:
        typer.echo(show([report.gate_table(judged, lang)], lang=lang))
    raise typer.Exit(code)


def _write(records: Sequence[Record], file: Path, figures: list[str]) -> None:
    """Write the baseline that ``runs`` make."""
    from trainmark.judge.comparison.gate import dumps, read, take
    from trainmark.record.trust import MOST_CV

    new = take(records, figures, read(file) if file.is_file() else None)
    for entry in new.entries:
        wide = [name for name, found in entry.figures.items() if found.worse_by > MOST_CV]
        if wide:
            advice = "measure on an idle machine, or set worse_by"
            say_remark(f"{entry.name}: wide tolerance of {', '.join(wide)}: {advice}")
    stdout = str(file) == "-"
    write_text(None if stdout else file, dumps(new))
    if not stdout:
        say(str(file), err=True)


def audit(
    results: Annotated[list[str] | None, typer.Argument(help="Runs, records, folders.")] = None,
    rule: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    rules: Annotated[
        bool, typer.Option("--rules", help="Check the rules of the division that runs claim.")
    ] = False,
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
        raise typer.Exit(0 if all(one.compliant for one in checked) else EXIT_FAILED)
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
