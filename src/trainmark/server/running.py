"""The process of a server: its socket, its log, its end."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from typing import TYPE_CHECKING

import uvicorn

from trainmark.errors import EnvironmentFault

if TYPE_CHECKING:
    from starlette.applications import Starlette

_GRACE_S = 30  # that requests have to end after SIGTERM


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens; who connects before the server runs waits for it.

    Raises:
        EnvironmentFault: the port is in use, or the address is not one of this machine.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        what, remedy = f"cannot listen: {error.strerror}", "name another --host or --port"
        raise EnvironmentFault(what, where=f"{host}:{port}", remedy=remedy) from None


def run(app: Starlette, listening: socket.socket, *, quiet: bool = False) -> None:
    """Serve until SIGTERM or SIGINT; requests that run then are answered first.

    Args:
        quiet: no access log.
    """
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", level=logging.WARNING)
    for name in ("trainmark.server", *(() if quiet else ("uvicorn.access",))):
        logging.getLogger(name).setLevel(logging.INFO)
    config = uvicorn.Config(
        app, log_config=None, log_level=None, access_log=not quiet, server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )  # fmt: skip
    server = uvicorn.Server(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises again what ended it; to have answered everything is success.
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    server.run(sockets=[listening])
