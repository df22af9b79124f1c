"""Answer requests: files of the site, comparisons and uploads; and their errors.

A page is a file that is sent as it is stored; only comparisons and uploads compute.
"""

from __future__ import annotations

import gzip
import threading
from contextlib import asynccontextmanager
from mimetypes import guess_type
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
)
from starlette.routing import Route

from trainmark.errors import EnvironmentFault, TrainmarkError, UsageError, escape_controls
from trainmark.pages.site.views import (
    Links,
    build_comparison_page,
    build_error_page,
    build_not_found_page,
)
from trainmark.server import uploads
from trainmark.server.serving import LOG, RefusedRequestError, Serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request


def create_app(store: str | None, **limits: int) -> Starlette:
    """Return the application of a server.

    Args:
        store: folder of runs; None: the variable ``TRAINMARK_STORE``, else ``./runs``.
        limits: ``max_upload_bytes``, the size of the largest bundle; absent: the default of
            ``Serving``.

    Raises:
        EnvironmentFault: the folder is missing, or cannot be written.
    """
    serving = Serving(store, **limits)

    @asynccontextmanager
    async def follow_store(_: Starlette) -> AsyncIterator[None]:
        """Keep the site up to date while the server runs."""
        threading.Thread(target=serving.follow, name="follow", daemon=True).start()
        try:
            yield
        finally:
            serving.end()

    app = Starlette(
        routes=[
            Route("/health", _report_health),
            Route("/compare", _send_comparison),
            Route("/zh/compare", _send_comparison),
            Route("/api/runs", _receive_upload, methods=["POST"]),
            Route("/{path:path}", _send_file),
        ],
        exception_handlers={TrainmarkError: _answer_error},
        lifespan=follow_store,
    )
    app.state.serving = serving
    return app


def _answer_error(request: Request, error: Any) -> Response:
    """Return the answer to a request that ended with an error of the program.

    Paths of files on the server are written to its log only. A browser that asks for a comparison
    gets a page, any other client JSON.
    """
    status = 400  # for a ``UsageError``
    # A body that was not read would be taken for the next request.
    headers = {"Connection": "close"} if request.method == "POST" else {}
    if isinstance(error, RefusedRequestError):
        status = error.status
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
    elif not isinstance(error, UsageError):
        LOG.warning("%s", error)
        if isinstance(error, EnvironmentFault):
            status = 503
            error = TrainmarkError("the server cannot read its store at the moment")
        else:
            # For example a run that is gone. The error is sent without the path.
            status = 404
            error = TrainmarkError(error.what)
    if request.url.path.endswith("/compare"):
        # ``served``: the page has links that need a server.
        links = Links("compare", _choose_language(request), served=True)
        return HTMLResponse(build_error_page(error, links), status, headers)
    parts = {"what": error.what, "where": error.where, "rule": error.rule, "fix": error.fix}
    escaped = {
        name: None if text is None else escape_controls(text) for name, text in parts.items()
    }
    return JSONResponse({"error": escaped}, status, headers)


def _choose_language(request: Request) -> str:
    """Return the language of the page that a request asks for, by its address."""
    return "zh" if "/zh/" in request.url.path else "en"


async def _send_file(request: Request) -> Response:
    """Return a file of the site, which is stored compressed."""
    site = request.app.state.serving.site.resolve()
    path = request.path_params["path"]
    if not path or path.endswith("/"):
        path += "index.html"
    file_status = None  # None: there is no such file
    data = b""
    try:
        file = (site / f"{path}.gz").resolve()
        if file.is_relative_to(site):  # not an address with ".."
            # The content is read here, although a client that has it already gets only a 304: an
            # update may remove the file between the two calls, which is an error that this ``try``
            # handles. No thread reads it, because the operating system usually has it in memory.
            file_status, data = file.stat(), file.read_bytes()
    except (OSError, ValueError):  # ValueError: not a possible name of a file
        file_status = None
    if file_status is None:
        if (site / "index.html.gz").exists():
            return HTMLResponse(build_not_found_page(path), 404)
        return PlainTextResponse("the site is still being written", 503, {"Retry-After": "5"})
    tag = f'"{file_status.st_mtime_ns:x}-{file_status.st_size:x}"'
    headers = {"ETag": tag, "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == tag:
        return Response(None, 304, headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
    else:
        data = gzip.decompress(data)
    return Response(data, 200, headers, guess_type(path)[0] or "application/octet-stream")


def _report_health(request: Request) -> Response:
    """Return the number of results, and whether the site is up to date."""
    serving: Serving = request.app.state.serving
    num_results = serving.index.read_version().num_entries
    status = "stale" if serving.is_stale else "ok"
    return JSONResponse({"status": status, "results": num_results})


def _send_comparison(request: Request) -> Response:
    """Return the page that compares the runs of the query."""
    run_ids = request.query_params.getlist("run")
    # What the runs may differ in, for example ``device_products``.
    allow = request.query_params.getlist("allow")
    index = request.app.state.serving.index
    return HTMLResponse(
        build_comparison_page(index, run_ids, allow=allow, lang=_choose_language(request))
    )


async def _receive_upload(request: Request) -> Response:
    """Store a bundle; answer 201 if it is new, 200 if the server has it already."""
    stored, is_new = await uploads.store_upload(request, request.app.state.serving)
    headers = {"Location": stored.runs[0].page}  # of the first run; the body has all pages
    return JSONResponse(stored.model_dump(), 201 if is_new else 200, headers)
