"""Send bundles to a server, over TLS and with a token.

Sending again is safe: the server stores a bundle once, whatever was lost on the way.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urljoin

from pydantic import BaseModel, Field, ValidationError

from trainmark.errors import EXIT_FAILED, EnvironmentFault, TrainmarkError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2

MEDIA_TYPE = "application/zip"
VARIABLE = "TRAINMARK_TOKEN"
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
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


def token() -> str:
    """Return the token in the variable ``TRAINMARK_TOKEN``.

    Raises:
        UsageError: there is none.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        raise UsageError("no token", remedy=f"{VARIABLE}=$(cat FILE) trainmark bundle …")
    return text


class Client:
    """A server, and the token that it admits.

    Args:
        address: of the server, ``https://HOST[:PORT][/PREFIX]``.

    Raises:
        UsageError: not an address, or one without TLS.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        import httpx2

        self.address = f"{address.rstrip('/')}/"
        try:
            url = httpx2.URL(self.address)
        except httpx2.InvalidURL:
            url = httpx2.URL("")
        if url.scheme not in ("http", "https") or not url.host:
            raise UsageError("not the address of a server", where=address, rule="https://HOST:PORT")
        if url.scheme == "http" and url.host not in _THIS_MACHINE:
            remedy = "use https, or a tunnel from this machine"
            raise UsageError("the token could be read on the way", where=address, remedy=remedy)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": MEDIA_TYPE}
        self._transport = transport

    def send(self, file: Path) -> Stored:
        """Send a bundle and return what the server stored, pages as whole addresses.

        Raises:
            RefusedBundleError: the server does not take it.
            EnvironmentFault: the server cannot be reached, or does not admit the token.
        """
        import httpx2

        url, timeout = urljoin(self.address, "api/runs"), httpx2.Timeout(30, read=_READ_S)
        http = httpx2.Client(headers=self._headers, timeout=timeout, transport=self._transport)
        try:
            with http, file.open("rb") as content:
                try:
                    answer = http.post(url, content=content)
                except (httpx2.ReadError, httpx2.WriteError):
                    # A token is refused before the body is read: the end of the connection can
                    # overtake the answer, which is asked for again without a body.
                    answer = http.post(url, content=b"")
                    if answer.status_code not in (401, 403):
                        raise
        except httpx2.TransportError as error:
            what, remedy = str(error) or type(error).__name__, "nothing is lost: call again later"
            raise EnvironmentFault(what, where=self.address, remedy=remedy) from None
        return self._stored(answer)

    def _stored(self, answer: httpx2.Response) -> Stored:
        what, more = _problem(answer)
        if answer.status_code in (409, 413, 415, 422):
            raise RefusedBundleError(what, **more)
        try:
            if answer.status_code in (200, 201):
                stored = Stored.model_validate_json(answer.content)
                for run in stored.runs:
                    run.page = urljoin(self.address, run.page.lstrip("/"))
                return stored
        except ValidationError:
            what = "its answer is not that of a Trainmark server"
        raise EnvironmentFault(what, where=self.address, remedy=more.get("remedy"))


def _problem(answer: httpx2.Response) -> tuple[str, dict[str, Any]]:
    """Return what an answer says is wrong; a proxy's has no JSON of ours."""
    try:
        error = dict(answer.json()["error"])
        more = {name: str(error[name]) for name in ("where", "rule", "remedy") if error.get(name)}
        return f"{error['what']} ({answer.status_code})", more
    except (ValueError, KeyError, TypeError):
        return f"it answers {answer.status_code} {answer.reason_phrase}", {}
