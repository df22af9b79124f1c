"""Send bundles to a server: over TLS, with a token, and again where that can help.

Sending again is safe: the server stores a bundle once, whatever was lost on the way.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import time
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urljoin

from pydantic import BaseModel, Field, ValidationError

from trainmark.data.regular_file import open_regular
from trainmark.errors import EXIT_FAILED, EnvironmentFault, TrainmarkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx2

MEDIA_TYPE = "application/zip"
VARIABLE = "TRAINMARK_TOKEN"
_WAITS_S = (1, 2, 4, 8, 16, 30)
_LONGEST_WAIT_S = 120
_AGAIN = (429, 502, 503, 504)  # the server, or a proxy before it, may take the same later
_READ_S = 900  # the server verifies before it answers


class Run(BaseModel):
    """A run that is stored, and its page."""

    run_id: str
    page: str


class Stored(BaseModel):
    """What a bundle holds that is stored."""

    digest: str
    runs: Annotated[list[Run], Field(min_length=1)]


class RefusedBundleError(TrainmarkError):
    """A bundle that the server does not take."""

    exit_code = EXIT_FAILED


def token_of(file: Path | None) -> str:
    """Return the token in ``file``, else that of the variable ``TRAINMARK_TOKEN``.

    Raises:
        UsageError: there is none.
        EnvironmentFault: the file cannot be read, or others can read it.
    """
    text = os.environ.get(VARIABLE, "")
    if file is not None:
        try:
            with open_regular(file) as opened:
                mode = os.fstat(opened.fileno()).st_mode
                text = opened.read(1000).decode("ascii", "replace")
        except (OSError, ValueError) as error:
            raise EnvironmentFault(f"cannot read the token: {error}", where=str(file)) from None
        if mode & 0o077:
            what, remedy = "others can read the token", f"chmod 600 {file}; make another token"
            raise EnvironmentFault(what, where=str(file), remedy=remedy)
    if not text.strip().isascii() or not text.strip().isprintable() or not text.strip():
        raise UsageError("no token", remedy=f"set {VARIABLE}, or name a file: --token-file FILE")
    return text.strip()


class Client:
    """A server, and the token that it admits.

    Args:
        address: of the server, ``https://HOST[:PORT][/PREFIX]``.
        insecure_http: whether the token may go over the network without TLS.
        told: is called with what delays the sending.

    Raises:
        UsageError: not an address, or one without TLS.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        insecure_http: bool = False,
        told: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        import httpx2

        self.address = f"{address.rstrip('/')}/"
        try:
            url = httpx2.URL(self.address)
        except httpx2.InvalidURL:
            url = httpx2.URL("")
        if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query:
            raise UsageError("not the address of a server", where="--to", rule="https://HOST:PORT")
        if url.scheme == "http" and not (insecure_http or _loopback(url.host)):
            remedy = "use https; --insecure-http if nobody else is on the way"
            raise UsageError("the token could be read on the way", where=address, remedy=remedy)
        self._told, self._sleep = told, sleep
        self._http = httpx2.Client(
            headers={"Authorization": f"Bearer {token}", "Content-Type": MEDIA_TYPE},
            timeout=httpx2.Timeout(30, read=_READ_S),
            trust_env=url.scheme == "https",  # no proxy reads what goes without TLS
            transport=transport,
        )

    def close(self) -> None:
        """End the connection."""
        self._http.close()

    def send(self, file: Path) -> Stored:
        """Send a bundle and return what the server stored, pages as whole addresses.

        Raises:
            RefusedBundleError: the server does not take it.
            EnvironmentFault: the server cannot be reached, or does not admit the token.
        """
        import httpx2

        for wait in (*_WAITS_S, None):
            try:
                with open_regular(file) as content:
                    answer = self._http.post(urljoin(self.address, "api/runs"), content=content)
            except httpx2.TransportError as error:
                if _untrusted(error):
                    raise self._fault(f"its certificate is not trusted: {error}") from None
                said, asked = str(error) or type(error).__name__, 0
            else:
                if answer.status_code not in _AGAIN:
                    return self._stored(answer)
                said, after = _said(answer)[0], answer.headers.get("Retry-After", "")
                asked = int(after) if after.isdecimal() and len(after) < 9 else 0
            if wait is None or asked > _LONGEST_WAIT_S:
                raise self._fault(said, remedy="nothing is lost: call again later")
            self._told(f"{said}; again in {max(wait, asked)} s")
            self._sleep(max(wait, asked))
        raise AssertionError

    def _stored(self, answer: httpx2.Response) -> Stored:
        what, told = _said(answer)
        if answer.status_code in (200, 201):
            try:
                stored = Stored.model_validate_json(answer.content)
            except ValidationError:
                raise self._fault("its answer is not that of a Trainmark server") from None
            for run in stored.runs:
                run.page = urljoin(self.address, run.page.lstrip("/"))
            return stored
        if answer.status_code in (409, 413, 415, 422):
            raise RefusedBundleError(what, **told)
        raise self._fault(what, remedy=told.get("remedy"))

    def _fault(self, what: str, *, remedy: str | None = None) -> EnvironmentFault:
        return EnvironmentFault(what, where=self.address, remedy=remedy)


def _said(answer: httpx2.Response) -> tuple[str, dict[str, Any]]:
    """Return what an answer says is wrong; a proxy's says nothing of ours."""
    try:
        error = dict(answer.json()["error"])
        told = {name: str(error[name]) for name in ("where", "rule", "remedy") if error.get(name)}
        return f"{error['what']} ({answer.status_code})", told
    except (ValueError, KeyError, TypeError, RecursionError):
        location = answer.headers.get("Location", "")
        return f"it answers {answer.status_code} {answer.reason_phrase} {location}".strip(), {}


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _untrusted(error: BaseException | None) -> bool:
    """Tell whether an error of the connection comes from the server's certificate."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None
