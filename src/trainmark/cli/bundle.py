"""``trainmark bundle``: pack runs with their evidence into one file, or upload them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmark.cli.output import (
    print_remark,
    print_text,
)
from trainmark.errors import EXIT_FAILED, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


EXAMPLES = """\
  trainmark bundle runs/RUN -o run.trainmark.zip
  trainmark bundle runs/PLAN -o all.trainmark.zip
  trainmark verify run.trainmark.zip
  trainmark bundle runs/RUN other.trainmark.zip --push https://results.example.org
"""


def bundle(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Runs or folders of runs; with --push also bundles. Default: the newest run."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Output file; cannot be used with --push."),
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="URL", help="Send each run to this server.")
    ] = None,
) -> None:
    """Redact runs and pack them with their evidence into one file, or upload them.

    With --push, the URL of each run's page is printed; the server never stores a run twice. The
    exit code is 1 if a run cannot be packed or the server refuses it.
    """
    from trainmark.results.bundle import pack
    from trainmark.results.selection import find_newest_run, find_runs

    if (output is None) == (push is None):
        what = (
            "neither -o nor --push is given" if output is None else "both -o and --push are given"
        )
        raise UsageError(what, where="bundle", fix="use either -o FILE or --push URL")
    paths = runs or [find_newest_run()]
    if push is not None:
        _push(paths, push)
        return
    assert output is not None, "either -o or --push is given"
    runs_to_pack = [launches for path in paths for launches in find_runs(path)]
    manifest = pack(runs_to_pack, output)
    print_text(str(output))
    num_bytes = output.stat().st_size
    size = f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:.1f} kB"
    print_remark(f"{len(manifest.files)} files, {size}")


def _push(paths: Sequence[Path], url: str) -> None:
    """Send runs to a server, and print the address of each run's page.

    A bundle is sent as it is. Other runs are packed and sent one by one, so that each upload is
    small and a refused run does not keep the other runs back.

    Args:
        paths: runs, folders of runs and bundles.
        url: address of the server.
    """
    from trainmark.results.archive import ENDING, BundleError
    from trainmark.results.bundle import pack
    from trainmark.results.selection import find_runs
    from trainmark.server.client import RefusedBundleError, open_client, send_bundle

    has_failed = False
    with open_client(url) as server, tempfile.TemporaryDirectory() as folder:
        for path in paths:
            # A run is the list of its launches' folders; a bundle counts as a run with one launch.
            is_bundle = path.name.endswith(ENDING)
            runs = [[path]] if is_bundle else find_runs(path)
            for launches in runs:
                try:
                    if is_bundle:
                        file = path  # sent as it is
                    else:
                        file = Path(folder) / f"run{ENDING}"
                        pack([launches], file)
                    for stored_run in send_bundle(server, file).runs:
                        print_text(stored_run.page)
                except (BundleError, RefusedBundleError) as error:
                    print_remark(f"{launches[0]}: {error}")  # a folder, or the bundle
                    has_failed = True
    if has_failed:
        raise typer.Exit(EXIT_FAILED)
