"""Build commands: help that begins with examples, and options from the fields of request models."""

from __future__ import annotations

import re
import textwrap
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
    """Return a function for a shell's completion: from the start of a word, the words that fit.

    Each word comes with its description. ``cli.completion`` is imported when the function is
    called, so that a command does not load it otherwise.

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
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress and notes.")]
Store = Annotated[str | None, typer.Option(help="Folder of runs; default: ./runs.")]


Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Output file; default: standard output."),
]


def lay_out_examples(examples: str, width: int) -> str:
    """Return examples laid out for ``width`` columns.

    A note is on the line of its command if it fits there, else below. A command that is too long
    continues on the next line, after a backslash. Its words are not split, because the shell would
    take a split word for two. So a line with a single long word may be wider than ``width``.

    Args:
        examples: lines with a command and, after three blanks or more, perhaps a note.
        width: columns of the terminal.
    """
    rows: list[tuple[str, str]] = []  # a command and its note, which may be empty
    for line in examples.splitlines():
        command, *notes = re.split(r"\s{3,}", line.strip(), maxsplit=1)
        rows.append((command, notes[0] if notes else ""))
    widths = [len(command) for command, note in rows if note]
    # The column in which notes begin: two blanks, the longest command, three blanks.
    note_column = max(widths, default=0) + 5
    lines: list[str] = []
    for command, note in rows:
        if note and note_column + len(note) <= width:
            lines.append(f"  {command}".ljust(note_column) + note)
            continue
        lines_of_command = textwrap.wrap(
            command,
            width - 2,  # a blank and a backslash may follow
            initial_indent="  ",
            subsequent_indent="      ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines.append(" \\\n".join(lines_of_command))
        if note:  # below the command, indented by 6 blanks
            lines += [f"      {line}" for line in wrap(note, width - 6)]
    return "\n".join(lines) + "\n"


def build_class_with_examples(examples: str, base: type[Any] = TyperCommand) -> type[Any]:
    """Return a command class whose help prints ``examples`` first.

    Args:
        examples: as ``lay_out_examples`` takes them.
        base: the class of commands, or of groups of commands, to which this is added.
    """

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
    field_names = names or tuple(
        name
        for name, field in model.model_fields.items()
        if field.description and not field.is_required()
    )

    def decorate(verb: Verb) -> Verb:
        """Return the function of a command with the parameters from which typer makes options."""

        def call(**arguments: Any) -> None:
            """Call the command with the options that the user gave; typer has None for others."""
            fields = {name: arguments.pop(name) for name in field_names}
            given_fields = {name: value for name, value in fields.items() if value is not None}
            verb(**arguments, **given_fields)

        # typer builds the command from this signature: the parameters of the function, with one
        # for each field in place of `**fields`. `eval_str`: with types in place of their texts.
        verb_signature = signature(verb, eval_str=True)
        verb_parameters = [
            parameter
            for parameter in verb_signature.parameters.values()
            if parameter.kind is not Parameter.VAR_KEYWORD
        ]
        model_parameters = [_build_option(model, name) for name in field_names]
        call.__signature__ = verb_signature.replace(  # type: ignore[attr-defined]
            parameters=[*verb_parameters, *model_parameters], return_annotation=None
        )
        call.__annotations__ = {}  # typer reads those of the signature
        call.__doc__ = verb.__doc__
        return call

    return decorate


def _build_option(model: type[BaseModel], name: str) -> Parameter:
    """Return the parameter from which typer makes the option of a field."""
    field = model.model_fields[name]
    value_type = _find_value_type(field.annotation)
    # Of the fields that become options, a default other than None is a number.
    default = "" if field.default is None else f" Default: {field.default:g}."
    option = typer.Option(
        "--" + name.replace("_", "-"),
        help=f"{field.description}{default}",
        autocompletion=_COMPLETIONS.get(name),
    )
    annotation: Any = Annotated[value_type | None, option]
    # None also in place of the field's default, so that the request knows what the user gave.
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _find_value_type(annotation: Any) -> Any:
    """Return the type of a field's value without None and without pydantic's constraints.

    For example ``int`` of ``Annotated[int, Gt(0)] | None``.

    Args:
        annotation: a type without arguments, or a union of any type and None. Fields that become
            options have no other ones, such as ``list[str]`` without a union.
    """
    union_members = get_args(annotation) or (annotation,)
    value_type = next(member for member in union_members if member is not NoneType)
    if get_origin(value_type) is Annotated:
        return get_args(value_type)[0]
    return value_type


def build_command(name: str, examples: str, verb: Verb) -> Any:
    """Return one command of the program, for example ``run``.

    Args:
        examples: for the help, as ``lay_out_examples`` takes them.
        verb: the function of the command; its parameters are the arguments and options.
    """
    program = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    program.command(name, cls=build_class_with_examples(examples), context_settings=SETTINGS)(verb)
    return typer.main.get_command(program)
