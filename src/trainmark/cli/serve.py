"""``trainmark serve``: the results in a browser."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trainmark.cli import token
from trainmark.cli.output import say, say_remark

EXAMPLES = """\
  trainmark serve                                  ./runs, for this machine alone
  trainmark serve --store runs --port 0            any free port; the line printed names it
  trainmark serve --store postgresql://team@host/results --data /var/lib/trainmark
  trainmark serve --host 10.0.0.7 --read token     a proxy with TLS is better: docs/site.md
"""


def command(
    ctx: typer.Context,
    store: Annotated[
        str | None,
        typer.Option("--store", help="Folder of runs, or URL of a database; default: ./runs."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free.")] = 8722,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of tokens and uploads; default: the store's folder."),
    ] = None,
    read: Annotated[
        Literal["public", "token"], typer.Option(help="Who may read: all, or those with a token.")
    ] = "public",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No log of requests.")] = False,
) -> None:
    """Serve the results of a store: pages, JSON, uploads."""
    if ctx.invoked_subcommand is not None:
        return
    from trainmark.server.app import create_app
    from trainmark.server.running import bound, run
    from trainmark.server.serving import Settings

    listening = bound(host, port)
    app = create_app(Settings(store=store, data=data, read=read))
    name, number = listening.getsockname()[:2]
    if not ipaddress.ip_address(name).is_loopback:
        say_remark("other machines reach it without TLS: who is on the way can read tokens")
    address = f"[{name}]" if ":" in name else name
    say(f"http://{address}:{number}/")
    run(app, listening, quiet=quiet)


def build() -> Any:
    """Return the command, with the verbs of tokens below it."""
    return typer.main.get_command(token.below("serve", EXAMPLES, command))
