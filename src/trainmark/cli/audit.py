"""``trainmark audit``: what is wrong or doubtful with results, and whether they keep the rules."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from trainmark.cli.output import say, say_json, say_refuted
from trainmark.errors import EXIT_FAILED

EXAMPLES = """\
  trainmark audit                           the newest run under ./runs
  trainmark audit runs/A runs/B --json
  trainmark audit runs --rule ordering --rule mfu
  trainmark audit runs/RUN --rules          does it comply with the division it claims?
  trainmark list audit-rules                what is checked; `list divisions`: what --rules asks
"""


def command(
    results: Annotated[list[str] | None, typer.Argument(help="Runs, records, folders.")] = None,
    rule: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    rules: Annotated[
        bool, typer.Option("--rules", help="Check the rules of a division in place of figures.")
    ] = False,
    division: Annotated[
        Literal["closed", "open"] | None,
        typer.Option(help="With --rules; default: the one that the records claim."),
    ] = None,
    lang: Annotated[Literal["en", "zh"], typer.Option(help="Language of the findings.")] = "en",
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Find errors and doubts in results; exit 1 where there is an error."""
    if rules:
        _check_rules(results or [], division, lang, as_json=as_json)
        return
    from trainmark.api import audited
    from trainmark.judge.audit.subject import workload_of
    from trainmark.library.selection.words import select

    chosen = select(results or [])
    found, count = audited(chosen, only=rule or ()), len(chosen.records) + len(chosen.rows)
    findings = [one.as_dict(lang) for one in found]
    if as_json:
        say_json({"findings": findings, "audited": count})
    for one in () if as_json else findings:
        place = f"{one['file']}:{one['line']}" if one["line"] else one["file"]
        say(f"{one['severity']} {one['rule']} {place} {one['configuration']}\n  {one['message']}")
    say(f"audited {count}, not read {len(chosen.unread)}, findings {len(found)}", err=True)
    unknown = sum(not workload_of(row.case, row.model).names for row in chosen.rows)
    if unknown:
        say(f"of unknown models {unknown}: rules about their data and FLOPs left out", err=True)
    say_refuted(chosen.refuted)
    if any(one.severity == "error" for one in found):
        raise typer.Exit(EXIT_FAILED)


def _check_rules(
    runs: list[str], division: Literal["closed", "open"] | None, lang: str, *, as_json: bool
) -> None:
    """Print whether launches comply with a division; exit 1 where they do not."""
    from trainmark.judge.compliance import check
    from trainmark.library.selection.words import select
    from trainmark.pages.judgements import compliance_lines
    from trainmark.record.work import groups

    found = [check(group) for group in groups(select(runs, rows=False).records)]
    if as_json:
        say_json([one.as_dict() for one in found])
    for one in () if as_json else found:
        for line in compliance_lines(one, lang):
            say(line)
    if not all(one.compliant(division) for one in found):
        raise typer.Exit(EXIT_FAILED)
