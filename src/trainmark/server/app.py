"""The application: its routes, who may ask for them, and how its errors are answered."""

from __future__ import annotations

import base64
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from trainmark.errors import EnvironmentFault, TrainmarkError, UsageError, escaped
from trainmark.library.bundle.archive import ENDING
from trainmark.library.store.query import counts
from trainmark.pages.site.links import Links
from trainmark.pages.site.views import compare_page, error_page
from trainmark.server import uploads
from trainmark.server.refused import Refused
from trainmark.server.serving import LOG, Serving, Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send


_SECURITY = {
    # No inline script or style, nothing of others, no frame around us.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "private, no-cache",
}


def create_app(settings: Settings) -> Starlette:
    """Return the application of a server.

    Raises:
        UsageError: not a store.
        EnvironmentFault: it cannot be reached.
    """
    serving = Serving(settings)

    @asynccontextmanager
    async def following(_: Starlette) -> AsyncIterator[None]:
        threading.Thread(target=serving.follow, name="follow", daemon=True).start()
        yield
        serving.end()

    app = Starlette(
        routes=[
            Route("/health", _health),
            Route("/compare", _compare),
            Route("/zh/compare", _compare),
            Route("/api/runs", _upload, methods=["POST"]),
            Route("/api/runs/{run_id}/bundle", _bundle),
            Mount("/", StaticFiles(directory=serving.site, html=True)),
        ],
        middleware=[Middleware(Admission, serving), Middleware(GZipMiddleware, compresslevel=5)],
        exception_handlers={TrainmarkError: _answer, HTTPException: _of_http},
        lifespan=following,
    )
    app.state.serving = serving
    return app


class Admission:
    """Ask for tokens where only they may read, and add the headers of security to all answers."""

    def __init__(self, app: ASGIApp, serving: Serving) -> None:
        self.app, self.serving = app, serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it through."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        tokens = self.serving.tokens if self.serving.settings.read == "token" else None
        if scope["type"] == "http" and tokens and scope["method"] != "POST":
            given = _bearer(Headers(scope=scope).get("authorization"))
            try:
                if scope["path"] != "/health":
                    await run_in_threadpool(tokens.admitted, given, "read")
            except TrainmarkError as error:
                answer = _answer(Request(scope), error)
                # A browser asks its user for a name and a password, which is the token.
                answer.headers["WWW-Authenticate"] = 'Basic realm="Trainmark", charset="UTF-8"'
                await answer(scope, receive, sending)
                return
        await self.app(scope, receive, sending)


def _bearer(authorization: str | None) -> str | None:
    """Return what a header of the Basic scheme means, the password being a token."""
    kind, _, text = (authorization or "").partition(" ")
    if kind.lower() != "basic":
        return authorization
    try:
        return f"Bearer {base64.b64decode(text).decode().partition(':')[2]}"
    except ValueError:
        return authorization


def _answer(request: Request, error: Any) -> Response:
    """Return the answer to a request that ended with an error of the program.

    Where files lie on the server is for its log alone.
    """
    status, headers, checks = 400, {}, []
    if isinstance(error, Refused):
        status, headers, checks = error.status, error.headers, error.checks
        if request.method == "POST":  # or what is left of its body would be read
            headers = headers | {"Connection": "close"}
    elif not isinstance(error, UsageError):
        LOG.warning("%s", error)
        status, what = (503, "the server cannot read its store now")
        if not isinstance(error, EnvironmentFault):
            status, what = 404, error.what
        error = TrainmarkError(what)
    if request.url.path.endswith("/compare"):
        return HTMLResponse(error_page(error, _links(request)), status, headers)
    parts = {name: getattr(error, name) for name in ("what", "where", "rule", "remedy")}
    problem: dict[str, Any] = {"error": {k: v and escaped(v) for k, v in parts.items()}}
    return JSONResponse(problem | ({"checks": checks} if checks else {}), status, headers)


def _of_http(request: Request, error: Any) -> Response:
    if error.status_code == 404 and not (request.app.state.serving.site / "index.html").exists():
        error = HTTPException(503, "the site is being written", {"Retry-After": "5"})
    return PlainTextResponse(error.detail, error.status_code, error.headers)


def _lang(request: Request) -> str:
    return "zh" if "/zh/" in request.url.path else "en"


def _links(request: Request) -> Links:
    return Links("compare", _lang(request), served=True)


def _health(request: Request) -> Response:
    serving: Serving = request.app.state.serving
    runs = sum(found for _, found in counts(serving.database, ["kind"]))
    return JSONResponse({"status": "stale" if serving.fault else "ok", "runs": runs})


def _compare(request: Request) -> Response:
    chosen, allow = (request.query_params.getlist(name) for name in ("run", "allow"))
    database = request.app.state.serving.database
    return HTMLResponse(compare_page(database, chosen, allow=allow, lang=_lang(request)))


async def _upload(request: Request) -> Response:
    stored, new = await uploads.take(request, request.app.state.serving)
    headers = {"Location": stored.runs[0].page}
    return JSONResponse(stored.model_dump(), 201 if new else 200, headers)


def _bundle(request: Request) -> Response:
    run_id = request.path_params["run_id"]
    file = uploads.bundle_of(request.app.state.serving, run_id)
    return FileResponse(file, filename=f"{run_id}{ENDING}")
