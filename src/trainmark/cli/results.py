"""``trainmark results``: list, filter and sort many runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainmark.cli.options import Json, Lang, Store, complete_with
from trainmark.cli.output import print_json, print_remark, print_text
from trainmark.errors import EXIT_FAILED

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.results.store.query import Listing

EXAMPLES = """\
  trainmark results                                       list the newest runs under ./runs
  trainmark results case=distilbert_sst2 device~H100 'started_utc>=2026-11'
  trainmark results 'p_core>100' 'status!=passed' --sort -p_core --limit 10
  trainmark results torch~2.13 --columns path,p_core,MFU
"""

_COLUMNS = "case,device,world,precision,status,trust,verification,p_core,path"

# `settings` is replaced by a column for each setting that differs.
_WITH_SETTINGS = _COLUMNS.replace("precision,", "precision,recipe,settings,")


def results(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Filters of the form KEY OPERATOR VALUE, or the name of a case.",
            autocompletion=complete_with("complete_filter"),
        ),
    ] = None,
    store: Store = None,
    sort: Annotated[
        str, typer.Option(help="Sort key; -KEY sorts in descending order.")
    ] = "-started_utc",
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of rows; 0: all rows.")] = 50,
    columns: Annotated[
        str | None,
        typer.Option(
            help=(
                f"Comma-separated columns; default: {_COLUMNS} and the settings that differ "
                "(with --json: all columns)."
            )
        ),
    ] = None,
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """List, filter and sort many runs. Each row is one launch.

    Each recipe field that differs between launches of a case gets its own column. The exit code is
    1 if a record cannot be read; all other records are still listed.
    """
    from trainmark.pages import results as display
    from trainmark.results.store.index import Index
    from trainmark.results.store.query import list_runs, list_unreadable

    index = Index(store)
    index.refresh()
    failed = list_unreadable(index)
    listing = list_runs(
        index,
        words or [],
        columns=_choose_columns(columns, as_json=as_json),
        sort=sort,
        limit=limit or None,
    )
    if as_json:
        print_json(display.to_listing_json(listing, failed))
    else:
        _print_table(
            listing, index.folder, lang, has_filters=bool(words), are_columns_chosen=bool(columns)
        )
        for line in display.list_remarks(listing, failed, lang):
            print_text(line, err=True)
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _print_table(
    listing: Listing, store: Path, lang: str, *, has_filters: bool, are_columns_chosen: bool
) -> None:
    """Print the rows of a listing, or a remark if there are none.

    Args:
        store: folder of the runs, for the remark.
        has_filters: whether the user gave filters.
        are_columns_chosen: whether the user chose the columns; if not, each setting of the recipe
            that differs between launches of a case gets a column.
    """
    from trainmark.pages import results as display

    if not listing.rows:
        no_match = f"no run in {store} matches the filters"
        print_remark(no_match if has_filters else f"{store}: no runs found")
        return
    if not are_columns_chosen:
        listing = display.add_differing_settings(listing)
    typer.echo(display.build_listing_table(listing, lang, are_columns_chosen=are_columns_chosen))


def _choose_columns(columns: str | None, *, as_json: bool) -> list[str] | None:
    """Return the names of the columns to read; None: all, which JSON has by default.

    Args:
        columns: the option, names separated by commas; None: it is not given.
    """
    if columns:
        return columns.split(",")
    if as_json:
        return None
    # The default columns, and the settings of the recipe: those that differ between runs get a
    # column each before the table is printed.
    return _WITH_SETTINGS.split(",")
