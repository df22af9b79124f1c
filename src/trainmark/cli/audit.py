"""``trainmark audit``: what is wrong or doubtful with results, with the arithmetic."""

from __future__ import annotations

import gc
from typing import Annotated, Literal

import typer

from trainmark.cli.output import say, say_json, say_refuted
from trainmark.errors import EXIT_FAILED

NAME = "audit"
EXAMPLES = """\
  trainmark audit                           the newest run under ./runs
  trainmark audit runs/A runs/B --json
  trainmark audit runs --rule ordering --rule mfu
  trainmark list audit-rules                what is checked
"""


def command(
    results: Annotated[list[str] | None, typer.Argument(help="Runs, records, folders.")] = None,
    rule: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    lang: Annotated[Literal["en", "zh"], typer.Option(help="Language of the findings.")] = "en",
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    verify: Annotated[bool, typer.Option(help="Hold records against their evidence.")] = True,
) -> None:
    """Hold results against rules; exit 1 where one finds an error."""
    from trainmark.api import audited
    from trainmark.judge.audit.subject import workload_of
    from trainmark.library.selection.words import select

    gc.disable()  # records are trees without cycles: to look for some takes a quarter of the time
    try:
        chosen = select(results or [], verify=verify)
        found, count = audited(chosen, only=rule or ()), len(chosen.records) + len(chosen.rows)
    finally:
        gc.enable()
    told = [one.as_dict(lang) for one in found]
    if as_json:
        say_json({"findings": told, "audited": count})
    for one in () if as_json else told:
        place = f"{one['file']}:{one['line']}" if one["line"] else one["file"]
        say(f"{one['severity']} {one['rule']} {place} {one['configuration']}\n  {one['message']}")
    say(f"audited {count}, not read {len(chosen.unread)}, findings {len(found)}", err=True)
    unknown = sum(not workload_of(row.case, row.model).names for row in chosen.rows)
    if unknown:
        say(f"of unknown models {unknown}: rules about their data and FLOPs left out", err=True)
    say_refuted(chosen.refuted)
    if any(one.severity == "error" for one in found):
        raise typer.Exit(EXIT_FAILED)
