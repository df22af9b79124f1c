"""What stands before all routes: limits, who may read, headers, the access log and the counts.

Owns everything that is the same for every request. Knows nothing of what a route answers.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import time
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request

from trainmark.errors import escaped
from trainmark.server.answers import answer
from trainmark.server.buckets import Buckets
from trainmark.server.refused import Refused

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from trainmark.server.serving import Serving

LOG, ACCESS = logging.getLogger("trainmark.server"), logging.getLogger("trainmark.access")
# Several filters of 300 letters, each of up to 12 bytes in a URL, fit.
_URL_BYTES, _HEADERS_BYTES = 48 << 10, 16 << 10
_SILENCE_S = 30.0  # that a client may let us wait for the next part of a body
SECURITY = {
    # No inline script or style, nothing of others, no frame around us.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
# Neither tells anything of a run.
_OPEN = ("/health", "/static/")


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, shared: Serving) -> None:
        self.app, self.shared = app, shared
        self._buckets = Buckets(shared.settings.rate, shared.clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status, size, more = time.perf_counter(), 0, 0, True
        head = scope["method"] == "HEAD"
        inside = {**scope, "method": "GET"} if head else scope

        async def sending(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                self._harden(MutableHeaders(scope=message), scope)
            elif head:
                message = {**message, "body": b""}
            size += len(message.get("body", b""))
            await send(message)

        async def receiving() -> MutableMapping[str, Any]:
            nonlocal more
            try:
                async with asyncio.timeout(_SILENCE_S if more else None):
                    message = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            more = message.get("more_body", False)
            return message

        try:
            try:
                self._limit(scope)
                await self._admit(scope)
                app = self.app
            except Refused as error:
                app = answer(error, Request(scope))
            await app(inside, receiving, sending)
        except Exception:
            LOG.exception("a fault of the server's own")
            if not status:
                fault = Refused(500, "a fault of the server's own", remedy="its log has more")
                await answer(fault, Request(scope))(inside, receiving, sending)
        finally:
            seconds = time.perf_counter() - begun
            route = getattr(inside.get("route"), "path_format", "none")
            self.shared.metrics.request(route, scope["method"], status, seconds)
            asked = escaped(scope["path"][:200]).replace("\n", r"\u000a")
            line = '%s "%s %s" %d %dB %.0fms'
            told = (_client(scope), scope["method"], asked, status, size, 1000 * seconds)
            ACCESS.info(line, *told)

    def _limit(self, scope: Scope) -> None:
        """Refuse what goes beyond a limit, or was meant for another server."""
        names, host = self.shared.settings.host_names, Headers(scope=scope).get("host", "")
        if wait := self._buckets.take(_client(scope)):
            later = {"Retry-After": str(math.ceil(wait))}
            raise Refused(429, "too many requests from this address", headers=later)
        if len(scope["raw_path"]) + len(scope["query_string"]) > _URL_BYTES:
            raise Refused(414, "the address is too long", rule=f"at most {_URL_BYTES} bytes")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > _HEADERS_BYTES:
            raise Refused(431, "the headers are too long", rule=f"at most {_HEADERS_BYTES} bytes")
        if names and Request(scope).url.hostname not in names:
            raise Refused(421, "not a name of this server", where=host[:200])

    async def _admit(self, scope: Scope) -> None:
        """Refuse who has no token where only tokens may read; uploads ask for one themselves."""
        tokens, uploads = self.shared.readers, scope["method"] == "POST"
        if tokens and not uploads and not scope["path"].startswith(_OPEN):
            given = _bearer(Headers(scope=scope).get("authorization"))
            try:
                await asyncio.to_thread(tokens.admitted, given, "read")
            except Refused as error:
                # A browser asks its user for a name and a password, which is the token.
                error.headers["WWW-Authenticate"] = 'Basic realm="Trainmark", charset="UTF-8"'
                raise

    def _harden(self, headers: MutableHeaders, scope: Scope) -> None:
        """Add the headers of security to an answer."""
        for name, value in SECURITY.items():
            headers.setdefault(name, value)
        if scope["scheme"] == "https":
            headers["strict-transport-security"] = "max-age=31536000"
        headers.setdefault(
            "cache-control", "private, no-cache" if self.shared.readers else "no-cache"
        )
        headers.add_vary_header("Accept-Language, Authorization")


def _bearer(authorization: str | None) -> str | None:
    """Return what a header of the Basic scheme means, the password being a token."""
    kind, _, text = (authorization or "").partition(" ")
    if kind.lower() != "basic":
        return authorization
    try:
        return f"Bearer {base64.b64decode(text).decode().partition(':')[2]}"
    except ValueError:
        return authorization


def _client(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else "unknown"
