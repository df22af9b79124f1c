"""``trainmark bundle``: runs in one file that others can verify, or sent to a server."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmark.cli.output import say, say_faults, say_remark
from trainmark.errors import EXIT_FAILED, RecordError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXAMPLES = """\
  trainmark bundle runs/RUN -o run.trainmark.zip
  trainmark bundle runs/PLAN -o all.trainmark.zip --sign ~/.ssh/id_ed25519
  trainmark verify run.trainmark.zip
  trainmark bundle runs/RUN other.trainmark.zip --push https://results.example.org
"""


def command(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Runs, folders of runs; for --push also bundles; default: newest."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write or replace: ….trainmark.zip."),
    ] = None,
    sign: Annotated[
        Path | None, typer.Option(metavar="KEY", help="ssh key that signs the manifest.")
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="URL", help="Send each run to this server.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="With --push; default: TRAINMARK_TOKEN.")
    ] = None,
    insecure_http: Annotated[
        bool, typer.Option("--insecure-http", help="Send the token without TLS.")
    ] = False,
) -> None:
    """Put runs with their evidence into one file, redacted, signed; or send them.

    With --push it prints the runs' pages. What the server has already is not stored again. Ends
    with 1 if a run cannot be packed or the server refuses it.
    """
    from trainmark.library.bundle import pack
    from trainmark.library.selection.runs import find_runs, newest_run

    if (output is None) == (push is None):
        raise UsageError("give -o FILE, or --push URL")
    words = runs or [newest_run()]
    if push is not None:
        _push(words, push, token_file, sign, insecure_http=insecure_http)
        return
    assert output is not None
    found = [launches for run in words for launches in find_runs(run)]
    made = pack(found, output, key=sign, replace=True)
    say(str(output))
    size, signed = output.stat().st_size / 1e6, "signed" if sign else "not signed"
    say_remark(f"{len(made.files)} files, {size:,.1f} MB, {signed}")


def _push(
    words: Sequence[Path], url: str, token_file: Path | None, key: Path | None, *,
    insecure_http: bool,
) -> None:  # fmt: skip
    """Send a bundle of each run, so that each is small and sent once; print their pages."""
    from trainmark.library.bundle import BundleError, pack
    from trainmark.library.bundle.archive import ENDING
    from trainmark.server.client import Client, RefusedBundleError, token_of

    failed, secret = False, token_of(token_file)
    client = Client(url, secret, insecure_http=insecure_http, waiting=say_remark)
    with closing(client), tempfile.TemporaryDirectory() as place:
        for path, launches in (found for word in words for found in _found(word)):
            try:
                file = path
                if launches:
                    file = Path(place) / f"run{ENDING}"
                    pack([launches], file, key=key, replace=True)
                for run in client.send(file).runs:
                    say(run.page)
            except (BundleError, RefusedBundleError) as error:
                error.where = f"{path}: {error.where}" if error.where else str(path)
                say_faults([error])
                failed = True
    if failed:
        raise typer.Exit(EXIT_FAILED)


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
