"""Send bundles to a server, over TLS and with a token.

Sending again is safe: the server stores a bundle once, whatever was lost on the way.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urljoin

from pydantic import BaseModel, Field

from trainmark.errors import EXIT_FAILED, EnvironmentFault, TrainmarkError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2

MEDIA_TYPE = "application/zip"
TOKEN_VARIABLE = "TRAINMARK_TOKEN"
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_READ_S = 900  # the server verifies before it answers


class StoredRun(BaseModel):
    """A run that the server stored: its run id, and the address of its page."""

    run_id: str
    page: str


class StoredBundle(BaseModel):
    """A bundle that the server stored: its digest and its runs."""

    digest: str
    runs: Annotated[list[StoredRun], Field(min_length=1)]


class RefusedBundleError(TrainmarkError):
    """A bundle that the server refuses."""

    exit_code = EXIT_FAILED


def open_client(address: str, transport: httpx2.BaseTransport | None = None) -> httpx2.Client:
    """Return a client of a server, with the token in the variable ``TRAINMARK_TOKEN``.

    Args:
        address: of the server, ``https://HOST[:PORT][/PREFIX]``.
        transport: of the client, for tests; None: the network.

    Raises:
        UsageError: no token, or one that is not valid; not an address, or one without TLS that is
            not of this machine.
    """
    import httpx2

    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    fix = f"run `{TOKEN_VARIABLE}=$(cat FILE) trainmark bundle …`"
    if not token:
        raise UsageError("no token is set", fix=fix)
    if not (token.isascii() and token.isprintable()):  # a header cannot carry it
        raise UsageError(
            "the token contains a character that cannot be sent",
            where=TOKEN_VARIABLE,
            rule="a token must consist of printable ASCII characters",
            fix=fix,
        )
    with suppress(httpx2.InvalidURL):  # refused below, as an address without TLS
        url = httpx2.URL(address)
        # Without TLS, the token could be read on the way.
        if url.host and (url.scheme == "https" or url.host in _THIS_MACHINE):
            headers = {"Authorization": f"Bearer {token}", "Content-Type": MEDIA_TYPE}
            # In seconds. The wait for the answer is longer than that for the connection, because
            # the server verifies the bundle before it answers.
            timeout = httpx2.Timeout(30, read=_READ_S)
            return httpx2.Client(
                base_url=url, headers=headers, timeout=timeout, transport=transport
            )
    rule = (
        "the address must be https://HOST:PORT, so that nobody can read the token in transit; "
        "http is only allowed for this machine"
    )
    raise UsageError("not a valid server address", where=address, rule=rule)


def send_bundle(server: httpx2.Client, file: Path) -> StoredBundle:
    """Send a bundle and return what the server stored, with absolute addresses of pages.

    Raises:
        RefusedBundleError: the server does not accept the bundle.
        EnvironmentFault: the server cannot be reached, or does not accept the token.
    """
    import httpx2

    address = str(server.base_url)  # ends in a slash, which the client adds if it is missing
    try:
        answer = _post_bundle(server, file)
    except httpx2.TransportError as error:
        raise EnvironmentFault(
            str(error) or type(error).__name__,
            where=address,
            fix="run the command again later; nothing is lost",
        ) from None
    status_line = f"{answer.status_code} {answer.reason_phrase}"
    what = f"the answer does not come from a Trainmark server: {status_line}"
    parts: dict[str, Any] = {}  # where, rule and fix of the server's error
    # If a proxy answered, its body is not our JSON, and ``what`` stays as above.
    with suppress(ValueError, KeyError, TypeError):
        if answer.is_success:
            stored = StoredBundle.model_validate_json(answer.content)
            for run in stored.runs:
                # `/runs/x` becomes `https://HOST/PREFIX/runs/x`. With its first slash, ``urljoin``
                # would drop the prefix of the server's address.
                run.page = urljoin(address, run.page.lstrip("/"))
            return stored
        problem = answer.json()["error"]
        parts = {name: problem[name] for name in ("where", "rule", "fix")}
        what = f"{problem['what']} ({answer.status_code})"
    # The bundle is refused: a run is stored already; too large; wrong type; does not verify.
    if answer.status_code in (409, 413, 415, 422):
        raise RefusedBundleError(what, **parts)
    raise EnvironmentFault(what, where=address, fix=parts.get("fix"))


def _post_bundle(server: httpx2.Client, file: Path) -> httpx2.Response:
    """Return the server's answer to a bundle.

    Raises:
        httpx2.TransportError: the server cannot be reached.
    """
    import httpx2

    with file.open("rb") as content:
        try:
            return server.post("api/runs", content=content)
        except httpx2.TransportError:
            # The server refuses a token before it reads the body, and closes the connection, which
            # may fail the request before its answer arrives. Ask for the answer without a body.
            answer = server.post("api/runs", content=b"")
            if answer.status_code not in (401, 403):
                raise
            return answer
