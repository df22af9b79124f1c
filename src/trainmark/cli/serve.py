"""``trainmark serve``: a server for a folder of runs, and ``serve token``."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trainmark.cli.options import SETTINGS, Store, with_examples
from trainmark.cli.output import say, say_remark, writing
from trainmark.errors import EnvironmentFault, UsageError

EXAMPLES = """\
  trainmark serve                                  ./runs, for this machine only
  trainmark serve --store runs --port 0            any free port, which is printed
  trainmark serve --host 10.0.0.7                  behind a proxy with TLS: docs/site.md
  trainmark serve token ci
"""
_TOKEN_EXAMPLES = """\
  trainmark serve token team --store /srv/runs
"""


def serve(
    ctx: typer.Context,
    store: Store = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free.")] = 8722,
) -> None:
    """Serve a folder of runs: pages, JSON, uploads."""
    if ctx.invoked_subcommand is not None:
        return
    from trainmark.server.app import create_app
    from trainmark.server.serving import open_socket, serve

    listening = open_socket(host, port)
    app = create_app(store)
    name, number = listening.getsockname()[:2]
    if not ipaddress.ip_address(name).is_loopback:
        say_remark(
            "other machines reach it without TLS: who is on the way can read pages and tokens"
        )
    address = f"[{name}]" if ":" in name else name
    say(f"http://{address}:{number}/")
    serve(app, listening)


def build(name: str) -> Any:
    """Return the command ``serve``, with the verbs of tokens below it."""
    program = typer.Typer(
        name=name,
        cls=with_examples(EXAMPLES, TyperGroup),
        callback=serve,
        invoke_without_command=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings=SETTINGS,
    )
    program.command("token", cls=with_examples(_TOKEN_EXAMPLES))(token)
    return typer.main.get_command(program)


def token(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the token.")],
    store: Store = None,
) -> None:
    """Create a token; it is shown only once. To revoke it, delete its line in the file named."""
    from trainmark.plan.plan import RUNS_DIR
    from trainmark.results.store.index import VARIABLE
    from trainmark.server.serving import Tokens

    of_server = ctx.parent.params["store"] if ctx.parent is not None else None
    if None not in (store, of_server) and store != of_server:
        what = f"{of_server} and {store} are two stores"
        raise UsageError(what, where="--store", fix="name the server's store once")
    folder = Path(store or of_server or os.environ.get(VARIABLE) or RUNS_DIR)
    if not folder.is_dir():
        fix = "name the server's folder of runs: --store FOLDER"
        raise EnvironmentFault("no such folder", where=str(folder), fix=fix)
    tokens = Tokens(folder)
    with writing(folder):
        say(tokens.create(name))
    say_remark(f"nothing shows it again; it admits as long as {tokens.file} has a line {name}")
