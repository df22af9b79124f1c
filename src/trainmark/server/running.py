"""The process of a server: its socket, its limits on connections, its end."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from trainmark.errors import EnvironmentFault

if TYPE_CHECKING:
    import asyncio

    from fastapi import FastAPI

_GRACE_S = 30  # that requests have to end after SIGTERM
_HEAD_S = 10.0  # that a client has to send the line and headers of a request, or an unread body
_UNREAD_S = 30  # that a client may read nothing of what is sent
_HEAD_BYTES = 96 << 10  # the guard has limits of its parts
_CONNECTIONS = 512


class Impatient(H11Protocol):
    """A connection that is closed when no request that can be answered comes in time.

    uvicorn waits forever for the first head, for the rest of one that has begun, and for the rest
    of a body whose answer is sent.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the first request its time."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Give the next request its time once the last has come."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        super().connection_lost(exc)
        self._unwatch()

    def _watch(self) -> None:
        if self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY):  # there is one
            self._unwatch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(_HEAD_S, self.transport.close)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens; who connects before the server runs waits for it.

    Raises:
        EnvironmentFault: the port is in use, or the address is not one of this machine.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; its connections inherit it
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _UNREAD_S)
        made.bind(address)
        made.listen()
    except OSError as error:
        used = error.errno == errno.EADDRINUSE
        raise EnvironmentFault(
            "the port is in use" if used else f"cannot listen: {error.strerror}",
            where=f"{host}:{port}",
            remedy="name another --port; 0: any that is free" if used else "name another --host",
        ) from None
    return made


def run(app: FastAPI, listening: socket.socket, *, quiet: bool = False, **options: Any) -> None:
    """Serve until SIGTERM or SIGINT; requests that run then are answered first.

    Args:
        quiet: no access log.
        options: of uvicorn: whose word about the client it takes.
    """
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("trainmark.access").setLevel(logging.WARNING if quiet else logging.INFO)
    config = uvicorn.Config(
        app, http=Impatient, ws="none", loop="asyncio", lifespan="auto", log_config=None,
        access_log=False, server_header=False, limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=15, timeout_graceful_shutdown=_GRACE_S,
        h11_max_incomplete_event_size=_HEAD_BYTES, **options,
    )  # fmt: skip
    server = uvicorn.Server(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises again what ended it; to have answered everything is success.
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    server.run(sockets=[listening])
