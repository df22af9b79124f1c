"""``trainmark results``: records of many runs, listed, filtered and kept in an index."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmark.cli.output import say, say_json, say_remark
from trainmark.errors import UsageError

EXAMPLES = """\
  trainmark results                                       the newest runs under ./runs
  trainmark results case=distilbert_sst2 device~H100 since=2026-11-01
  trainmark results 'p_core>100' 'status!=passed' --sort -p_core --limit 10
  trainmark results env.torch~2.13 --columns path,p_core,MFU
  trainmark results history p_core case=toy               over time, for each piece of work
  trainmark results add /mnt/others/runs published.md --store postgresql://team@host/results
  trainmark results rebuild                               the index anew from the records
"""
_VERBS = ("history", "add", "rebuild")
_COLUMNS = "path,device,world,precision,status,trust,verification,p_core"


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Filters KEY OPERATOR VALUE, after history FIGURE or nothing; add PATH…, rebuild."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", help="Folder of runs, or URL of a database; default: ./runs."),
    ] = None,
    sort: Annotated[str, typer.Option(help="Key to sort by; -KEY: greatest first.")] = "-started",
    limit: Annotated[int | None, typer.Option(min=0, help="Runs; default: 50, 0: all.")] = None,
    columns: Annotated[
        str | None, typer.Option(help=f"Keys with commas; default: {_COLUMNS}, with --json all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find runs among many: list, filter, history of a figure."""
    from trainmark.library.selection.indexing import add, opened
    from trainmark.library.store.query import listing, unread
    from trainmark.pages import results as display

    verb, rest = (words[0], words[1:]) if words and words[0] in _VERBS else ("", words or [])
    if (verb == "rebuild" and rest) or (verb in ("add", "history") and not rest):
        raise UsageError(f"results {' '.join([verb, *rest])}", rule="add PATH…, history FIGURE")
    index, unreached = opened(store, rebuild=verb == "rebuild")
    database = index.database
    for source in unreached:
        say_remark(f"{source}: not here; `trainmark results` reads it when it is")
    if verb == "add":
        add(index, rest)
    if verb == "history":
        pieces = display.history(database, rest[0], rest[1:])
        say_json(pieces) if as_json else typer.echo(display.history_text(pieces))
        if not pieces:
            say_remark(f"no run has a value of {rest[0]}")
        return
    usual = None if as_json else _COLUMNS.split(",")
    most = 50 if limit is None else limit or None
    found = listing(
        database,
        rest if verb == "" else [],
        columns=columns.split(",") if columns else usual,
        sort=sort,
        limit=most,
    )
    if as_json:
        say_json(display.document(found, unread(database)))
    else:
        typer.echo(display.table(found))
        for line in display.remarks(found, unread(database)):
            say(line, err=True)
