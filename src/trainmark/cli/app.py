"""The command line program: its commands, and how errors end it.

The module of a command is imported only when the command is called.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from trainmark.cli.options import SETTINGS, build_class_with_examples, build_command
from trainmark.cli.streams import LostOutputError, drop_output, flush_output
from trainmark.errors import (
    EXIT_FAILED,
    EnvironmentFault,
    TrainmarkError,
    UsageError,
    suggest_nearest,
)

if TYPE_CHECKING:
    from types import ModuleType

# Optional packages that commands need, with the extra of this project that installs them.
_EXTRAS = {
    "httpx2": "server",
    "markdown_it": "published",
    "pyarrow": "published",
    "starlette": "server",
    "uvicorn": "server",
    "vl_convert": "pages",
}
_CTRL_C = 130  # typer's exit code after Ctrl-C; no command of this program uses it
EXAMPLES = """\
  trainmark run distilbert_sst2    measure this machine with generated data
  trainmark run distilbert_sst2 --nproc 2 bs=16 precision=bf16
  trainmark list                   list cases, recipes and devices
  trainmark doctor                 find problems before a run
  trainmark report runs/RUN --format html -o page.html
"""
VERBS = {
    "Measure": {
        "run": "Run and measure a case or a plan file, and write a record.",
        "accept": "Find devices, nodes and links that are slow or give wrong results.",
        "list": "List cases, recipes and devices, or print a single section or the record schema.",
        "doctor": "Find problems that would make a run fail or skew its results.",
        "ceilings": "Measure matmul, memory, transfer and collective rates.",
        "prepare": "Check raw data and convert it to the format that a case reads.",
    },
    "Read results": {
        "report": "Show the results of runs in the terminal, as Markdown or as HTML.",
        "results": "List, filter and sort many runs.",
        "serve": "Serve a folder of runs over HTTP: pages, JSON and uploads.",
        "site": "Write a static website from a folder of runs.",
        "export": "Write records in the formats of other programs.",
        "follow": "Send runs to TensorBoard, W&B, MLflow or OpenMetrics, live or afterwards.",
    },
    "Compare results": {
        "compare": "Compare run B with run A: is B slower or worse?",
        "gate": "Check runs against a baseline or earlier runs of the same work.",
        "audit": "Find errors and suspicious values in results; check a division's rules.",
    },
    "Exchange results": {
        "bundle": "Pack runs with their evidence into one file, or upload them.",
        "verify": "Verify checksums and recompute every figure.",
        "import": "Read figures from result pages, logs and tables of other projects.",
        "analyze": "Read figures from another program's training log.",
    },
    "Extend": {
        "check": "Check your case by running it with one rank and with two.",
    },
}
_NAMES = [name for group in VERBS.values() for name in group]
_SHADOWS_PYTHON = ("list", "import")  # their modules and functions end in an underscore


def import_verb(name: str) -> ModuleType:
    """Import the module of a verb."""
    return import_module(f"trainmark.cli.{_convert_to_python_name(name)}")


def load_command(name: str) -> Any:
    """Return the command ``name``, such as ``run``; its module is imported only now."""
    module = import_verb(name)
    if name == "serve":  # the one command with a subcommand
        return module.build(name)
    function = getattr(module, _convert_to_python_name(name))
    verb_command = build_command(name, module.EXAMPLES, function)
    # `analyze` reads `--KEY VALUE` from its words itself, so that the parser must not refuse it as
    # an unknown option.
    if name == "analyze":
        verb_command.context_settings |= {"ignore_unknown_options": True}
    return verb_command


def _convert_to_python_name(verb: str) -> str:
    return f"{verb}_" if verb in _SHADOWS_PYTHON else verb


class _Program(TyperGroup):
    """The program with its commands, each of which is loaded when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's interface
        return _NAMES

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        return load_command(cmd_name) if cmd_name in _NAMES else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names; an unknown one is a UsageError."""
        if args[0] not in _NAMES and not ctx.resilient_parsing:  # not while a shell completes words
            raise UsageError(f"no such command {args[0]!r}", fix=suggest_nearest(args[0], _NAMES))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the commands of the program's help in sections."""
        # `write_dl` aligns the texts of one section. Names are padded to the longest name of all
        # sections, so that the texts of all sections begin in the same column.
        width = max(map(len, _NAMES))
        for title, verbs in VERBS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", text) for name, text in verbs.items()])


def _print_version(is_wanted: bool) -> None:
    """Print the version and end, if ``--version`` is given; typer calls this in any case."""
    if is_wanted:
        from trainmark import __version__

        typer.echo(f"trainmark {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="trainmark",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
)


@app.callback(cls=build_class_with_examples(EXAMPLES, _Program))
def trainmark(
    _version_wanted: Annotated[  # not used here: `_print_version` is called with it
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Measure how fast an accelerator really trains."""


def main() -> None:
    """Run the program; an expected error becomes one message and an exit code.

    Other errors are raised: they are faults of this program, and their traceback is needed.

    Raises:
        KeyboardInterrupt: the user pressed Ctrl-C.
    """
    try:
        try:
            app()  # raises SystemExit at its end
        finally:
            flush_output()  # raises LostOutputError, which is handled below
        return
    except SystemExit as end:
        # typer turns a KeyboardInterrupt into this exit code. Raise it again, so that the caller
        # handles it as everywhere else: it prints what stopped the program, and exits with code 1.
        if end.code == _CTRL_C:
            raise KeyboardInterrupt from None
        raise
    except LostOutputError as error:
        drop_output()
        if not error.has_reader:  # the reader of the pipe has ended, as `head` does
            sys.exit(EXIT_FAILED)
        fault: TrainmarkError = error
    except TrainmarkError as error:
        fault = error
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "trainmark":  # no installation would help
            raise
        # `_EXTRAS` has the extra of this project that installs the package.
        requirement = f"'trainmark[{_EXTRAS[package]}]'" if package in _EXTRAS else package
        fix = f"pip install {requirement}"
        fault = EnvironmentFault(f"{error.name} is not installed", fix=fix)
    except OSError as error:
        name = str(error.filename or "")[:80]  # only the start of a very long name
        fault = EnvironmentFault(str(error.strerror or error), where=name)
    print(f"trainmark: {fault}", file=sys.stderr)
    sys.exit(fault.exit_code)
