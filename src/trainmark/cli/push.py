"""``trainmark push``: runs to a server, for others to see."""

from __future__ import annotations

import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmark.cli.output import say, say_faults, say_json, say_remark
from trainmark.errors import EXIT_FAILED, EXIT_PASSED, RecordError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NAME = "push"
EXAMPLES = """\
  trainmark push runs/RUN --to https://results.example.org
  trainmark push runs/PLAN other.trainmark.zip --to https://results.example.org --token-file token
  TRAINMARK_TOKEN=… trainmark push --to http://127.0.0.1:8722
"""


def command(
    to: Annotated[str, typer.Option(metavar="URL", help="Address of the server.")],
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Runs, folders of runs, bundles; default: newest.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File of the token; default: TRAINMARK_TOKEN.")
    ] = None,
    insecure_http: Annotated[
        bool, typer.Option("--insecure-http", help="Send the token without TLS.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is stored as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not report retries.")] = False,
) -> None:
    """Send runs to a server of `trainmark serve`; print their pages.

    What the server has already is not stored again. Ends with 1 if a run cannot be packed
    or the server refuses it.
    """
    from trainmark.library.bundle import BundleError
    from trainmark.library.selection.runs import newest_run
    from trainmark.server.client import Client, RefusedBundleError, token_of

    waiting = (lambda _: None) if quiet else say_remark
    secret, stored, codes = token_of(token_file), [], {EXIT_PASSED}
    with closing(Client(to, secret, insecure_http=insecure_http, waiting=waiting)) as client:
        for path, launches in (x for word in runs or [newest_run()] for x in _found(word)):
            try:
                with _bundle(path, launches) as file:
                    found = client.send(file)
            except (BundleError, RefusedBundleError) as error:
                if str(path) not in (error.where or ""):
                    error.where = f"{path}: {error.where}" if error.where else str(path)
                say_faults([error])
                codes.add(EXIT_FAILED)
                continue
            stored.append({"path": str(path), **found.model_dump()})
            for run in () if as_json else found.runs:
                say(run.page)
    if as_json:
        say_json(stored)
    raise typer.Exit(max(codes))


def _found(word: Path) -> Iterator[tuple[Path, Sequence[Path]]]:
    """Yield what a word names: each run with its launches; a bundle without any."""
    from trainmark.library.bundle.archive import ENDING
    from trainmark.library.selection.runs import find_runs

    if word.name.endswith(ENDING):
        if not word.is_file():
            raise RecordError("no such bundle", where=str(word))
        yield word, ()
        return
    for launches in find_runs(word):
        yield launches[0] if len(launches) == 1 else launches[0].parent, launches


@contextmanager
def _bundle(path: Path, launches: Sequence[Path]) -> Iterator[Path]:
    """Give the bundle itself, or pack one run, so that each is small and sent once."""
    from trainmark.library.bundle import pack
    from trainmark.library.bundle.archive import ENDING

    with tempfile.TemporaryDirectory() as place:
        if launches:
            path = Path(place) / f"run{ENDING}"
            pack([launches], path)
        yield path
