"""A server with a route that answers when somebody writes into a pipe, and little patience."""

from __future__ import annotations

import sys
from pathlib import Path

from starlette.responses import PlainTextResponse
from uvicorn import Server

from trainmark.server import running
from trainmark.server.app import create_app
from trainmark.server.settings import Settings


def slow() -> PlainTextResponse:
    with Path(sys.argv[3]).open() as fifo:
        return PlainTextResponse(fifo.read())


async def shutdown(
    server: Server, sockets: object = None, *, real: object = Server.shutdown
) -> None:
    print("stopping", flush=True)
    await real(server, sockets)


running._HEAD_S = 0.2
Server.shutdown = shutdown
app = create_app(Settings(store="runs"))
app.add_api_route("/slow", slow)
listening = running.bound("127.0.0.1", 0)
print(f"http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
running.run(app, listening)
