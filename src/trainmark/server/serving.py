"""A server: its tokens, the site that follows its store, its socket and its end.

One file has a line for each token that admits uploads: its name and its hash, without salt (nobody
can guess 256 random bits).
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

from trainmark.documents import written_whole
from trainmark.errors import EnvironmentFault, TrainmarkError, UsageError
from trainmark.pages.site.writing import write_site
from trainmark.results.store.index import Index

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.applications import Starlette

LOG = logging.getLogger("trainmark.server")
_REFRESH_S = 3.0  # between two looks at the folder of the store
_GRACE_S = 30  # that requests have to end after SIGTERM
STATE_FOLDER = (
    ".serve"  # in the data folder; the index looks into no folder that begins with a point
)
_SECRET_PREFIX = "trainmark_"  # programs that look for secrets in code find it by that
_TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_SECURITY_HEADERS = {  # headers of all answers
    # No inline script or style, nothing of others, no frame around us.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "private, no-cache",
}


class RefusedRequestError(TrainmarkError):
    """A request that is answered with ``status``; ``told``: where, rule and fix."""

    def __init__(self, status: int, what: str, **told: str | None) -> None:
        super().__init__(what, **told)
        self.status = status


def create_state_folder(folder: Path) -> Path:
    """Return where a server keeps its own files in its data folder, which only it may read."""
    made = folder / STATE_FOLDER
    made.mkdir(mode=0o700, parents=True, exist_ok=True)
    return made


class Tokens:
    """The tokens of one data folder: a name and a hash in each line of ``file``."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.file = folder, folder / STATE_FOLDER / "tokens"

    def create(self, name: str) -> str:
        """Return the secret of a new token, which nothing shows again.

        Raises:
            UsageError: a name that there is or that cannot be one.
        """
        known = self.read_hashes()
        if not _TOKEN_NAME.fullmatch(name):
            raise UsageError("not a name", where=name, rule="letters, digits and ._@-, at most 64")
        if name in known:
            raise UsageError("there is a token of this name", where=name, fix="choose another")
        secret = _SECRET_PREFIX + secrets.token_urlsafe(32)
        create_state_folder(self._folder)
        with written_whole(self.file) as file:
            lines = (known | {name: _hash_secret(secret)}).items()
            file.write("".join(f"{token_name} {hashed}\n" for token_name, hashed in lines).encode())
        return secret

    def read_hashes(self) -> dict[str, str]:
        """Return the hash of each token by its name, the oldest first."""
        lines = self.file.read_text().splitlines() if self.file.exists() else ()
        return dict(line.split() for line in lines)

    def authenticate(self, authorization: str | None) -> str:
        """Return the name of the token of a request.

        Args:
            authorization: the header of this name, ``Bearer SECRET``.

        Raises:
            Refused: no token that admits.
        """
        kind, _, text = (authorization or "").partition(" ")
        hashed = _hash_secret(text.strip())
        for name, known in self.read_hashes().items() if kind.lower() == "bearer" else ():
            if secrets.compare_digest(known, hashed):
                return name
        what = "no valid token" if authorization else "a token is needed"
        fix = "send `Authorization: Bearer TOKEN`; `trainmark serve token NAME` makes one"
        raise RefusedRequestError(401, what, fix=fix)


def _hash_secret(secret: str) -> str:
    return sha256(secret.encode(errors="replace")).hexdigest()


class Serving:
    """The shared state of one server.

    Args:
        store: folder of runs, as ``Index`` takes it; it has the tokens and uploads too.
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
            self.site, self.incoming = (
                create_state_folder(self.data) / "site",
                create_state_folder(self.data) / "incoming",
            )
            shutil.rmtree(self.incoming, ignore_errors=True)  # of a killed server
            self.incoming.mkdir()
        except OSError as error:
            what, rule = f"cannot write: {error.strerror}", "a server keeps its pages in the store"
            raise EnvironmentFault(what, where=str(self.data), rule=rule) from None
        self.tokens = Tokens(self.data)
        self.fault: str | None = None  # why the last look at the store failed
        self._written: object = None
        self._lock, self._ended = threading.Lock(), threading.Event()

    def follow(self) -> None:
        """Let the index follow the store, and the site the index, until ``end`` is called."""
        while not self._ended.is_set():
            self.refresh()
            self._ended.wait(_REFRESH_S)

    def end(self) -> None:
        """Let ``follow`` return."""
        self._ended.set()

    def refresh(self) -> None:
        """Look at the store now; after a fault, such as a full disk, the site stays as it was."""
        with self._lock:
            try:
                self.index.refresh()
                if (version := self.index.read_version()) != self._written:
                    write_site(self.index, self.site, served=True)
                    self._written = version
                self.fault = None
            except Exception as error:
                self.fault = str(error)
                LOG.exception("the site cannot follow the store")


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens; who connects before the server runs waits for it.

    Raises:
        EnvironmentFault: the port is in use, or the address is not one of this machine.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        what, fix = f"cannot listen: {error.strerror}", "name another --host or --port"
        raise EnvironmentFault(what, where=f"{host}:{port}", fix=fix) from None


def serve(app: Starlette, listening: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT; requests that run then are answered first."""
    import uvicorn  # which who makes tokens need not have

    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", level=logging.WARNING)
    for name in ("trainmark.server", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.INFO)
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level=None,
        server_header=False,
        headers=[*_SECURITY_HEADERS.items()],
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = uvicorn.Server(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises again what ended it; to have answered everything is success.
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    server.run(sockets=[listening])
