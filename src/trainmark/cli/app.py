"""The program: its verbs, how they fail, and nothing else.

Verbs are imported here, what they need only when they run, so that help starts fast.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from trainmark.cli import (
    analyze,
    attach,
    audit,
    baseline,
    bundle,
    ceilings,
    check,
    compare,
    doctor,
    export,
    gate,
    import_,
    list_,
    prepare,
    push,
    record,
    report,
    results,
    rules,
    run,
    schema,
    serve,
    show,
    site,
    token,
    verify,
)
from trainmark.cli.help_ import with_examples
from trainmark.errors import EXIT_FAILED, EXIT_USAGE, EnvironmentFault, TrainmarkError

_CTRL_C = 130  # what typer ends with then, without a word; no verb of ours ends so

app = typer.Typer(
    name="trainmark",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

EXAMPLES = """\
  trainmark run distilbert_sst2                measure on generated data, here and now
  trainmark run distilbert_sst2 --nproc 2 bs=16 precision=bf16
  trainmark list                               cases, recipes and devices present
  trainmark doctor                             what stops a run or spoils its figures here
  trainmark report runs/RUN --format html -o page.html
"""
VERBS = {
    "Measure": (run, attach, list_, doctor, ceilings, prepare),
    "Read results": (show, report, results, serve, site, export, record),
    "Judge results": (compare, baseline, gate, audit, rules),
    "Exchange results": (bundle, verify, push, import_, analyze),
    "Extend": (check, schema),
}


def _version(wanted: bool) -> None:
    if wanted:
        from trainmark import __version__

        typer.echo(f"trainmark {__version__}")
        raise typer.Exit


@app.callback(
    cls=with_examples(EXAMPLES, groups={x: [y.NAME for y in z] for x, z in VERBS.items()})
)
def trainmark(
    _version_wanted: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Measure how fast an accelerator really trains."""


for verb in (one for group in VERBS.values() for one in group):
    kind = with_examples(verb.EXAMPLES)
    if verb is prepare:
        kind = prepare.with_options_of_cases(kind)
    if verb is serve:
        app.add_typer(token.below(serve.NAME, serve.EXAMPLES, serve.command))
        continue
    app.command(verb.NAME, cls=kind)(verb.command)


def main() -> None:
    """Run the program; every fault of ours ends in one message and its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us, as daemons are
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - until the process ends
    try:
        app()
    except SystemExit as end:
        if end.code != _CTRL_C:
            raise
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough
        print("trainmark: interrupted", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    except TrainmarkError as error:
        print(f"trainmark: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output went away, as `head` does: no fault of the run's.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
        sys.exit(EXIT_FAILED)
    except PermissionError as error:  # a folder on the way to a file may be closed to this user
        fault = EnvironmentFault(
            "not permitted for this user",
            where=str(error.filename),
            remedy="choose another folder, or ask for the permission",
        )
        print(f"trainmark: {fault}", file=sys.stderr)
        sys.exit(fault.exit_code)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            print(f"trainmark: {error.strerror}: {str(error.filename)[:80]}", file=sys.stderr)
            sys.exit(EXIT_USAGE)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
        print("trainmark: the disk is full; free some space and call again", file=sys.stderr)
        sys.exit(EXIT_FAILED)
