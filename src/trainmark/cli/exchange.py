"""Results to and from others: ``bundle``, ``verify``, ``export``, ``import``, ``analyze``."""

from __future__ import annotations

import tempfile
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trainmark.cli.options import Json, Lang, Output
from trainmark.cli.output import (
    fail_if_damaged,
    say,
    say_faults,
    say_json,
    say_lines,
    say_remark,
    write_text,
    writing,
)
from trainmark.errors import EXIT_FAILED, EXIT_PASSED, RecordError, TrainmarkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES = {
    "bundle": """\
  trainmark bundle runs/RUN -o run.trainmark.zip
  trainmark bundle runs/PLAN -o all.trainmark.zip
  trainmark verify run.trainmark.zip
  trainmark bundle runs/RUN other.trainmark.zip --push https://results.example.org
""",
    "verify": """\
  trainmark verify run.trainmark.zip
  trainmark verify runs/RUN runs/OTHER
""",
    "export": """\
  trainmark export runs/* --to csv -o results.csv
  trainmark export runs/* --to parquet -o runs.parquet
  trainmark export runs/RUN --to index                         one JSON line each: speed, memory
  trainmark export runs/RUN --to perflog                       one run as a log; also mlperf
""",
    "import": """\
  trainmark import pages/README.md                its rows
  trainmark import results.csv logs/ --json > rows.json
  trainmark audit results.csv logs/               check the rows
""",
    "analyze": """\
  trainmark analyze train.log preset=auto
  trainmark analyze megatron.log preset=megatron skip_steps=20
  trainmark analyze --filename train.log --keyword ips: --model_mode -1 --ips_unit tokens/s
  trainmark analyze train.log "keyword=(ms):" time_unit=ms base_batch_size=8192 model_mode=-2
  kubectl logs job/train | trainmark analyze - preset=megatron
""",
}
_SIGNS = {"held": "ok   ", "noted": "-    ", "unverifiable": "?    ", "broken": "FAULT"}
Form = Literal["csv", "json", "index", "perflog", "mlperf", "parquet"]


def bundle(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Runs, folders of runs; for --push also bundles; default: newest."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write, unless --push sends the runs."),
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="URL", help="Send each run to this server.")
    ] = None,
) -> None:
    """Put runs with their evidence into one file, redacted; or send them.

    With --push it prints the runs' pages. What the server has already is not stored again. Ends
    with 1 if a run cannot be packed or the server refuses it.
    """
    from trainmark.library.bundle import pack
    from trainmark.library.selection import find_runs, newest_run

    if (output is None) == (push is None):
        what = (
            "neither -o nor --push is given" if output is None else "both -o and --push are given"
        )
        raise UsageError(what, where="bundle", fix="give -o FILE, or --push URL")
    words = runs or [newest_run()]
    if push is not None:
        _push(words, push)
        return
    assert output is not None
    found = [launches for run in words for launches in find_runs(run)]
    made = pack(found, output)
    say(str(output))
    say_remark(f"{len(made.files)} files, {output.stat().st_size / 1e6:,.1f} MB")


def _push(words: Sequence[Path], url: str) -> None:
    """Send a bundle of each run, so that each is small and sent once; print their pages."""
    from trainmark.library.archive import ENDING, BundleError
    from trainmark.library.bundle import pack
    from trainmark.library.selection import find_runs
    from trainmark.server.client import RefusedBundleError, connected, send

    failed = False
    with connected(url) as server, tempfile.TemporaryDirectory() as place:
        for word in words:
            bundle = word.name.endswith(ENDING)
            for launches in [[word]] if bundle else find_runs(word):
                try:
                    file = word if bundle else Path(place) / f"run{ENDING}"
                    if not bundle:
                        pack([launches], file)
                    for run in send(server, file).runs:
                        say(run.page)
                except (BundleError, RefusedBundleError) as error:
                    say_remark(f"{launches[0]}: {error}")
                    failed = True
    if failed:
        raise typer.Exit(EXIT_FAILED)


def verify(
    paths: Annotated[list[Path], typer.Argument(help="Bundles, run directories, records.")],
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """Verify checksums and recompute every figure from the raw events.

    Ends with 0: verified, 1: contradicted, 2: not a result of Trainmark, or incomplete.
    """
    from trainmark.library.bundle import verify as verified
    from trainmark.library.selection import find_runs
    from trainmark.record.messages import render

    found, codes = [], {EXIT_PASSED}
    for path in paths:
        try:
            for launch in chain(*find_runs(path)):
                found.append(verified(launch))
                codes.add(found[-1].exit_code)
        except TrainmarkError as error:
            say_faults([error])
            codes.add(error.exit_code)
    if as_json:
        say_json([item.as_dict() for item in found])
    for item in () if as_json else found:
        say(item.path)
        for check in item.checks:
            name = f"{check.name} {check.place}".strip()
            lines = [render(finding, lang) for finding in check.said]
            for line in [", ".join(lines)] if check.name == "trust" else lines:
                say_lines([f"{name}: {line}"], before=f"  {_SIGNS[check.state]} ")
    raise typer.Exit(EXIT_FAILED if EXIT_FAILED in codes else max(codes))


def export(
    form: Annotated[Form, typer.Option("--to", help="Format to write.")],
    runs: Annotated[list[str] | None, typer.Argument(help="Run directories or records.")] = None,
    output: Output = None,
) -> None:
    """Write records in the format of another program.

    Ends with 1 if a record cannot be read or does not match its raw events; the others are
    written.
    """
    from trainmark.library.selection import select
    from trainmark.pages.exports import to_text, write_parquet

    found = select(runs or [])
    if not found.records:
        raise RecordError("no record found", rule="rows of pages are not exported")
    if form == "parquet":
        if output is None:
            raise UsageError(f"--to {form} is no text", fix="give -o PATH")
        with writing(output):
            write_parquet(found.records, output)
        say(str(output), err=True)
    else:
        write_text(output, to_text(form, found.records, found.places))
    fail_if_damaged(found)


def import_(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Pages, logs, CSV, JSON, or folders.")
    ],
    as_json: Json = False,
) -> None:
    """Read figures from result pages, logs and tables of others."""
    from trainmark.library.importers import files
    from trainmark.pages.results import imported_summary, imported_table
    from trainmark.pages.terminal import show

    found = files.read(paths)
    if as_json:
        say_json(found.document())
    elif found.rows:
        typer.echo(show([imported_table(found.rows)]))
    for line in imported_summary(found.rows, found.unread):
        say(line, err=True)
    if not found.rows:
        raise typer.Exit(EXIT_FAILED)


def analyze(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG... [KEY=VALUE]...",
            help="Logs, plain or gzip (- is stdin); keys, also as --KEY VALUE: docs/analyze.md.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Read figures from a training log of another program; --json prints all of them."""
    from trainmark.library.analysis import analyze as analyze_log
    from trainmark.library.analysis import parse_options, summarize
    from trainmark.plan.overrides import parse_assignments

    logs, keys, left = [], [], iter(words)
    for word in left:
        public = word.startswith("--")  # as the public tool takes them
        key = f"{word[2:]}={next(left, '')}" if public and "=" not in word else word.lstrip("-")
        if key.startswith("filename=") and public:
            logs.append(key.removeprefix("filename="))
        elif public or ("=" in word and not Path(word).exists()):
            keys.append(key)
        else:
            logs.append(word)
    if not logs:
        raise UsageError("no log", where="LOG", fix="name one, or - for standard input")
    options = parse_options(parse_assignments(keys))
    analyses = [analyze_log(log, options) for log in logs]
    for analysis in analyses:
        say(summarize(analysis), err=True)
        if as_json:
            say_json(analysis.figures)
        say(analysis.record.to_json())
    if any(analysis.record.JOB_FAIL_FLAG for analysis in analyses):
        raise typer.Exit(EXIT_FAILED)
