"""Build commands: help that begins with examples, and options from the fields of request models."""

from __future__ import annotations

import re
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

from trainmark.pages.wrapping import wrap

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

    Verb = Callable[..., None]


def complete_with(name: str) -> Callable[[str], list[tuple[str, str]]]:
    """Return a function for a shell's completion; it imports ``cli.completion`` when it is called.

    Args:
        name: a function of ``cli.completion``.
    """

    def complete(incomplete: str) -> list[tuple[str, str]]:
        from trainmark.cli import completion

        candidates: list[tuple[str, str]] = getattr(completion, name)(incomplete)
        return candidates

    return complete


SETTINGS = {"help_option_names": ["-h", "--help"]}
# Arguments and options that several commands have.
Assignments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Recipe fields to change.",
        autocompletion=complete_with("complete_field"),
    ),
]
# Options of request models whose values a shell completes.
_COMPLETIONS: dict[str, Any] = {
    "recipe": complete_with("complete_recipe"),
    "device": complete_with("complete_device"),
    "launcher": complete_with("complete_launcher"),
    "follow": complete_with("complete_backend"),
}
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Lang = Annotated[Literal["en", "zh"], typer.Option(help="Language of the output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress and remarks.")]
Store = Annotated[str | None, typer.Option(help="Folder of runs; default: ./runs.")]


Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Output file; default: print the text."),
]


def lay_out_examples(examples: str, width: int) -> str:
    """Return examples within ``width`` columns.

    A note is on the line of its command if it fits there, else below. A command that is too long
    continues on the next line, after a backslash.

    Args:
        examples: lines with a command and, after three blanks or more, perhaps a note.
        width: columns of the terminal.
    """
    rows = [re.split(r"\s{3,}", line.strip(), maxsplit=1) for line in examples.splitlines()]
    widths = [len(command) for command, *note in rows if note]
    column = max(widths, default=0) + 5
    lines: list[str] = []
    for command, *note in rows:
        if note and column + len(note[0]) <= width:
            lines.append(f"  {command}".ljust(column) + note[0])
            continue
        first, *others = wrap(command, width - 4)
        lines.append("  " + " \\\n      ".join([first, *others]))
        lines += [f"      {line}" for line in wrap(note[0], width - 6)] if note else []
    return "\n".join(lines) + "\n"


def build_class_with_examples(examples: str, base: type[Any] = TyperCommand) -> type[Any]:
    """Return a command class whose help prints ``examples`` first."""

    class WithExamples(base):  # type: ignore[misc]
        def format_help(self, ctx: typer.Context, formatter: Any) -> None:
            formatter.write("Examples:\n" + lay_out_examples(examples, formatter.width) + "\n")
            super().format_help(ctx, formatter)

    return WithExamples


def add_model_options(model: type[BaseModel], *names: str) -> Callable[[Verb], Verb]:
    """Return a decorator that adds an option to a command for each named field of ``model``.

    The command gets the options that the user gave as keyword arguments.

    Args:
        model: a request model.
        names: of fields; none: all optional fields that have a description.
    """
    chosen = names or tuple(
        name
        for name, field in model.model_fields.items()
        if field.description and not field.is_required()
    )

    def decorate(verb: Verb) -> Verb:
        def call(**arguments: Any) -> None:
            fields = {name: arguments.pop(name) for name in chosen}
            given_fields = {name: value for name, value in fields.items() if value is not None}
            verb(**arguments, **given_fields)

        verb_parameters = [
            parameter
            for parameter in signature(verb, eval_str=True).parameters.values()
            if parameter.kind is not Parameter.VAR_KEYWORD
        ]
        model_parameters = [_build_option(model, name) for name in chosen]
        call.__signature__ = signature(verb).replace(  # type: ignore[attr-defined]
            parameters=[*verb_parameters, *model_parameters], return_annotation=None
        )
        call.__annotations__ = {}  # typer takes the signature's
        call.__doc__ = verb.__doc__
        return call

    return decorate


def _build_option(model: type[BaseModel], name: str) -> Parameter:
    """Return the parameter from which typer makes the option of a field."""
    field = model.model_fields[name]
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind != NoneType]
    kind = get_args(kinds[0])[0] if get_origin(kinds[0]) is Annotated else kinds[0]
    default = "" if field.default is None else f" Default: {field.default:g}."
    option = typer.Option(
        "--" + name.replace("_", "-"),
        help=f"{field.description}{default}",
        autocompletion=_COMPLETIONS.get(name),
    )
    annotation: Any = Annotated[kind | None, option]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def build_command(name: str, examples: str, verb: Verb) -> Any:
    """Return the command of one verb."""
    program = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    program.command(name, cls=build_class_with_examples(examples), context_settings=SETTINGS)(verb)
    return typer.main.get_command(program)
