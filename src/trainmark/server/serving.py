"""Run a server: its tokens, its site, which is updated from its store, and its socket.

A file has a line for each token with which bundles can be uploaded: the token's name and its hash.
The hash has no salt, because nobody can guess 256 random bits.
"""

from __future__ import annotations

import logging
import re
import secrets
import shutil
import signal
import socket
import sys
import threading
from hashlib import sha256
from typing import TYPE_CHECKING

from trainmark.documents import write_atomically
from trainmark.errors import EnvironmentFault, TrainmarkError, UsageError
from trainmark.pages.site.writing import write_site
from trainmark.results.store.index import Index

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.applications import Starlette

LOG = logging.getLogger("trainmark.server")
_REFRESH_S = 3.0  # between two updates from the folder of the store
_GRACE_S = 30  # in which requests may end after SIGTERM
# In the data folder; the index skips folders whose names begin with a point.
STATE_FOLDER = ".serve"
_SECRET_PREFIX = "trainmark_"  # by which programs that look for secrets in code find it
_TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_SECURITY_HEADERS = {  # headers of all answers
    # No inline script or style, nothing from other servers, no page that shows ours in a frame.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "private, no-cache",
}


class RefusedRequestError(TrainmarkError):
    """A request that is answered with an HTTP status.

    Args:
        parts: ``where``, ``rule`` and ``fix`` of the error.
    """

    def __init__(self, status: int, what: str, **parts: str | None) -> None:
        super().__init__(what, **parts)
        self.status = status


def create_state_folder(folder: Path) -> Path:
    """Create and return the folder of a server's own files in its data folder, private to it."""
    state_folder = folder / STATE_FOLDER
    state_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return state_folder


class Tokens:
    """The tokens for uploads to one data folder: a name and a hash in each line of ``file``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / STATE_FOLDER / "tokens"

    def create(self, name: str) -> str:
        """Create a token and return its secret, which is not stored and cannot be shown again.

        Raises:
            UsageError: the name is in use or malformed.
        """
        hashes = self.read_hashes()
        if not _TOKEN_NAME.fullmatch(name):
            raise UsageError(
                "not a valid name",
                where=name,
                rule="a name must have at most 64 characters, start with a letter or digit, and "
                "contain only letters, digits and the characters . _ @ -",
            )
        if name in hashes:
            raise UsageError(
                "a token with this name already exists", where=name, fix="choose another name"
            )
        secret = _SECRET_PREFIX + secrets.token_urlsafe(32)
        create_state_folder(self._folder)
        hashes[name] = _hash_secret(secret)
        lines = [f"{token_name} {token_hash}\n" for token_name, token_hash in hashes.items()]
        with write_atomically(self.file) as file:
            file.write("".join(lines).encode())
        return secret

    def read_hashes(self) -> dict[str, str]:
        """Return the hash of each token by its name, the oldest first."""
        if not self.file.exists():
            return {}
        lines = self.file.read_text().splitlines()
        return dict(line.split() for line in lines)

    def authenticate(self, authorization: str | None) -> str:
        """Return the name of the token of a request.

        Args:
            authorization: the header ``Authorization``, ``Bearer SECRET``; None: it is absent.

        Raises:
            RefusedRequestError: the request has no valid token.
        """
        scheme, _, secret = (authorization or "").partition(" ")
        request_hash = _hash_secret(secret.strip())
        if scheme.lower() == "bearer":
            for name, token_hash in self.read_hashes().items():
                # In constant time, so that the time of the answer tells nothing about the hash.
                if secrets.compare_digest(token_hash, request_hash):
                    return name
        what = "the token is not valid" if authorization else "a token is required"
        fix = "send `Authorization: Bearer TOKEN`; `trainmark serve token NAME` creates a token"
        raise RefusedRequestError(401, what, fix=fix)


def _hash_secret(secret: str) -> str:
    """Return the hash of a token as its file has it."""
    return sha256(secret.encode(errors="replace")).hexdigest()


class Serving:
    """The shared state of one server.

    Args:
        store: folder of runs, as ``Index`` takes it; it also contains the tokens and the uploads.
        max_upload_bytes: size of the largest bundle.

    Raises:
        EnvironmentFault: the store cannot be reached or written.
    """

    def __init__(self, store: str | None, max_upload_bytes: int = 256 << 20) -> None:
        self.max_upload_bytes = max_upload_bytes
        self.index = Index(store)
        self.index.refresh()
        self.data: Path = self.index.folder
        try:
            state_folder = create_state_folder(self.data)
            self.site = state_folder / "site"
            self.incoming = state_folder / "incoming"
            # A server that was killed leaves incomplete uploads.
            shutil.rmtree(self.incoming, ignore_errors=True)
            self.incoming.mkdir()
        except OSError as error:
            raise EnvironmentFault(
                f"cannot write: {error.strerror}",
                where=str(self.data),
                rule="the store must be a folder that the server can write to",
            ) from None
        self.tokens = Tokens(self.data)
        self.is_stale = False  # whether the last update failed: the site is older than the store
        self._written_version: object = None  # version of the index that the site shows
        self._lock = threading.Lock()  # held while index and site are updated
        self._ended = threading.Event()  # set by ``end``

    def follow(self) -> None:
        """Update index and site from the store every few seconds until ``end`` is called."""
        while not self._ended.is_set():
            self.refresh()
            self._ended.wait(_REFRESH_S)

    def end(self) -> None:
        """Let ``follow`` return."""
        self._ended.set()

    def refresh(self) -> None:
        """Update index and site now; after a fault, such as a full disk, the site is kept."""
        with self._lock:
            try:
                self.index.refresh()
                version = self.index.read_version()
                if version != self._written_version:
                    # ``served``: the pages have links to `/compare`; files are stored compressed.
                    write_site(self.index, self.site, served=True)
                    self._written_version = version
                self.is_stale = False
            except Exception:  # of any kind, because `follow` must go on
                self.is_stale = True
                LOG.exception("the site cannot be updated from the store")


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; clients that connect before the server runs wait for it.

    Raises:
        EnvironmentFault: the port is in use, or the address is not one of this machine.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot listen: {error.strerror}",
            where=f"{host}:{port}",
            fix="choose another --host or --port",
        ) from None


def serve_until_signal(app: Starlette, listening: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT; running requests are answered first."""
    import uvicorn  # here, because creating tokens does not need it

    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", level=logging.WARNING)
    for name in ("trainmark.server", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.INFO)
    config = uvicorn.Config(
        app,
        log_config=None,  # the loggers are set up above
        log_level=None,
        server_header=False,
        headers=[*_SECURITY_HEADERS.items()],
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = uvicorn.Server(config)

    def end_server(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn replaces these handlers while it runs. At its end it restores them and raises the
        # signal again: with Python's own handlers, the process would then exit with an error.
        signal.signal(number, end_server)
    server.run(sockets=[listening])
