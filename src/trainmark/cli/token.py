"""``trainmark serve token``: who may upload to a server, and read where that needs a token."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trainmark.cli.options import SETTINGS, TyperGroup, with_examples
from trainmark.cli.output import say, say_remark, writing
from trainmark.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = """\
  trainmark serve token make ci --scope upload --expires 2027-01-01
  trainmark serve token make team --scope read --scope upload --data /var/lib/trainmark
  trainmark serve token list
  trainmark serve token revoke ci
"""


def below(name: str, examples: str, command: Callable[..., None]) -> typer.Typer:
    """Return a command that also has the verbs of tokens below it."""
    made = typer.Typer(
        name=name, cls=with_examples(examples, TyperGroup), callback=command,
        invoke_without_command=True, add_completion=False, rich_markup_mode=None,
        context_settings=SETTINGS,
    )  # fmt: skip
    made.command("token", cls=with_examples(EXAMPLES))(token)
    return made


def token(
    verb: Annotated[Literal["make", "list", "revoke"], typer.Argument()],
    name: Annotated[str, typer.Argument(help="Of a token.")] = "",
    scope: Annotated[
        list[str] | None, typer.Option(help="upload (default) or read; twice for both.")
    ] = None,
    expires: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="First day it is invalid (UTC).")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The server's --data, or its folder of runs; default: ./runs."),
    ] = None,
) -> None:
    """Make a token and print it, this once; list tokens; revoke one."""
    from trainmark.library.store.database import VARIABLE
    from trainmark.plan.plan import RUNS_DIR
    from trainmark.server.tokens import Tokens

    folder = data or Path(os.environ.get(VARIABLE) or RUNS_DIR)
    if not folder.is_dir():
        remedy = "name what the server has as --data, or its folder of runs: --data FOLDER"
        raise EnvironmentFault("no such folder", where=str(folder), remedy=remedy)
    if (verb == "list") == bool(name):
        raise UsageError(f"token {verb} {name}", rule="make NAME, list, revoke NAME")
    tokens = Tokens(folder)
    if verb == "make":
        with writing(folder):
            made = tokens.make(name, scope or ["upload"], expires and expires.replace(tzinfo=UTC))
        say(made)
        say_remark("nothing shows it again; a server that runs admits it from now on")
    elif verb == "revoke":
        with writing(folder):
            tokens.revoke(name)
    else:
        for one in tokens.listed():
            days = {"made": one.made, "expires": one.expires, "revoked": one.revoked}
            dates = ", ".join(f"{word} {day:%Y-%m-%d}" for word, day in days.items() if day)
            say(f"{one.name:24} {','.join(one.scopes):12} {dates}")
