"""The application: its routes, what stands before them, and how its errors are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from trainmark import __version__
from trainmark.errors import TrainmarkError
from trainmark.server import data, pages, uploads
from trainmark.server.answers import answer
from trainmark.server.guard import Guard
from trainmark.server.refused import Refused
from trainmark.server.serving import Serving

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from trainmark.server.settings import Settings


def create_app(settings: Settings) -> FastAPI:
    """Return the application of a server.

    Raises:
        UsageError: not a store.
        EnvironmentFault: it cannot be reached, or has tables of another version.
    """
    app = FastAPI(
        title="Trainmark",
        version=__version__,
        docs_url=None,  # a page that loads scripts of others
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
        exception_handlers={
            TrainmarkError: _ours,
            HTTPException: _of_http,
            RequestValidationError: _invalid,
        },
    )
    app.state.serving = Serving(settings)
    app.state.uploads = uploads.uploads_of(app.state.serving)
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)
    app.add_middleware(Guard, shared=app.state.serving)
    app.include_router(uploads.router)  # before the runs: an id may have slashes
    app.include_router(data.router)
    app.include_router(pages.router)
    return app


async def _ours(request: Request, error: Any) -> Response:
    return answer(error, request)


async def _of_http(request: Request, error: Any) -> Response:
    route = getattr(request.scope.get("route"), "path_format", None)
    if error.status_code == 405 and (known := request.app.openapi()["paths"].get(route)):
        # The framework names the methods of the first of a path's routes alone.
        error.headers["Allow"] = ", ".join(sorted(method.upper() for method in known))
    return answer(Refused(error.status_code, str(error.detail), headers=error.headers), request)


async def _invalid(request: Request, error: Any) -> Response:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return answer(Refused(422, first["msg"], where=where), request)
