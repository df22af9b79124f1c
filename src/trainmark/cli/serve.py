"""``trainmark serve``: a server for a folder of runs, and ``serve token``."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trainmark.cli.options import SETTINGS, Store, build_class_with_examples
from trainmark.cli.output import explain_write_errors, print_remark, print_text
from trainmark.errors import EnvironmentFault, UsageError

EXAMPLES = """\
  trainmark serve                                  serve ./runs to this machine only
  trainmark serve --store runs --port 0            use any free port and print it
  trainmark serve --host 10.0.0.7                  serve behind a TLS proxy; see docs/site.md
  trainmark serve token ci
"""
_TOKEN_EXAMPLES = """\
  trainmark serve token team --store /srv/runs
"""


def serve(
    ctx: typer.Context,
    store: Store = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free port.")] = 8722,
) -> None:
    """Serve a folder of runs over HTTP: pages, JSON and uploads."""
    if ctx.invoked_subcommand is not None:  # `serve token`: typer calls this function before it
        return
    from trainmark.server.app import create_app
    from trainmark.server.serving import open_socket, serve_until_signal

    listening_socket = open_socket(host, port)
    app = create_app(store)
    address, actual_port = listening_socket.getsockname()[:2]
    if not ipaddress.ip_address(address).is_loopback:
        print_remark(
            "other machines can reach this server without TLS: anyone on the network path can "
            "read pages and tokens"
        )
    url_host = f"[{address}]" if ":" in address else address  # IPv6 in brackets
    print_text(f"http://{url_host}:{actual_port}/")
    serve_until_signal(app, listening_socket)


def build(name: str) -> Any:
    """Return the command ``serve``, with the subcommand ``token``."""
    program = typer.Typer(
        name=name,
        cls=build_class_with_examples(EXAMPLES, TyperGroup),
        callback=serve,
        invoke_without_command=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings=SETTINGS,
    )
    program.command("token", cls=build_class_with_examples(_TOKEN_EXAMPLES))(token)
    return typer.main.get_command(program)


def token(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the token.")],
    store: Store = None,
) -> None:
    """Create a token, which is shown only once.

    To revoke the token, delete its line from the token file.
    """
    from trainmark.plan.plan import RUNS_DIR
    from trainmark.results.store.index import STORE_VARIABLE
    from trainmark.server.serving import Tokens

    # `ctx.parent` is the command `serve`: A in `serve --store A token --store B`. `store` is B.
    server_store = ctx.parent.params["store"] if ctx.parent is not None else None
    if store is not None and server_store is not None and store != server_store:
        what = f"the server uses {server_store}, but the token is for {store}"
        raise UsageError(what, where="--store", fix="use --store only once")
    # STORE_VARIABLE is the name of the environment variable with the default folder.
    folder = Path(store or server_store or os.environ.get(STORE_VARIABLE) or RUNS_DIR)
    if not folder.is_dir():
        fix = "pass the server's folder of runs: --store FOLDER"
        raise EnvironmentFault("no such folder", where=str(folder), fix=fix)
    tokens = Tokens(folder)
    with explain_write_errors(folder):
        print_text(tokens.create(name))
    print_remark(
        f"the token is not shown again; it is valid while {tokens.file} contains a line for {name}"
    )
