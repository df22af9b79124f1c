"""A server's process: its settings, its index, the site that follows it, its socket and its end."""

from __future__ import annotations

import logging
import shutil
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING
from weakref import finalize

import uvicorn

from trainmark.errors import EnvironmentFault, UsageError
from trainmark.library.store.index import Index
from trainmark.pages.site.writing import write_site
from trainmark.server.tokens import Tokens, state

if TYPE_CHECKING:
    from starlette.applications import Starlette

LOG = logging.getLogger("trainmark.server")
INCOMING = "incoming"  # uploads that are received
_GRACE_S = 30  # that requests have to end after SIGTERM


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one server.

    Args:
        store: folder of runs or URL of a database, as ``Index`` takes it.
        data: folder of tokens and uploads of a database; a folder of runs is its own.
        max_upload_bytes: size of the largest bundle.
        refresh_s: seconds between two looks at the store's folder.
    """

    store: str | None = None
    data: Path | None = None
    max_upload_bytes: int = 256 << 20
    refresh_s: float = 3.0


class Serving:
    """The shared state of one server; ``data`` is None where nothing can be uploaded.

    Raises:
        UsageError: not a store.
        EnvironmentFault: the store cannot be reached.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.index = Index(settings.store)
        self.index.refresh()
        top = self.index.folder
        if top is not None and settings.data is not None:
            rule = "--data goes with a database; a folder of runs takes its uploads itself"
            raise UsageError("two folders", where=str(settings.data), rule=rule)
        self.data = top or settings.data
        try:
            if self.data is None:
                raise PermissionError
            self.site = state(self.data) / "site"
            shutil.rmtree(self.site.parent / INCOMING, ignore_errors=True)  # of a killed server
            (self.site.parent / INCOMING).mkdir()
        except OSError:  # nothing can be written there: it is read only
            self.data, self.site = None, Path(mkdtemp(prefix="trainmark-site-"))
            finalize(self, shutil.rmtree, self.site, ignore_errors=True)
        self.tokens = Tokens(self.data) if self.data else None
        self.fault: str | None = None  # why the last look at the store failed
        self._written: object = None
        self._lock, self._ended = threading.Lock(), threading.Event()

    def follow(self) -> None:
        """Let the index follow the store, and the site the index, until ``end`` is called."""
        while not self._ended.is_set():
            self.refresh()
            self._ended.wait(self.settings.refresh_s)

    def end(self) -> None:
        """Let ``follow`` return."""
        self._ended.set()

    def refresh(self) -> None:
        """Look at the store now; after a fault, such as a full disk, the site stays as it was."""
        with self._lock:
            try:
                self.index.refresh()
                if (version := self.index.version()) != self._written:
                    write_site(self.index, self.site, served=True)
                    self._written = version
                self.fault = None
            except Exception as error:
                self.fault = str(error)
                LOG.exception("the site cannot follow the store")


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
