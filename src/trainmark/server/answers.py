"""The one form of a refusal, as JSON for programs and as a page for people."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from starlette.requests import Request  # noqa: TC002 - FastAPI reads it
from starlette.responses import HTMLResponse, JSONResponse

from trainmark.errors import EnvironmentFault, RecordError, TrainmarkError, escaped
from trainmark.pages.site.links import Links
from trainmark.pages.site.views import error_page
from trainmark.pages.texts import LANGUAGES
from trainmark.server.refused import Refused

if TYPE_CHECKING:
    from starlette.responses import Response

LOG = logging.getLogger("trainmark.server")
_FOR_PROGRAMS = ("/api/", "/health", "/metrics", "/openapi.json", "/static/")


class Fault(BaseModel):
    """What is wrong, where, by which rule, and the way out."""

    what: str
    where: str | None = None
    rule: str | None = None
    remedy: str | None = None

    @classmethod
    def of(cls, error: TrainmarkError) -> Fault:
        """Return an error as JSON has it."""
        parts = {name: getattr(error, name) for name in cls.model_fields}
        return cls(**{name: value and escaped(value) for name, value in parts.items()})


class Problem(BaseModel):
    """The body of every answer whose status is not 2xx or 3xx.

    Args:
        checks: of a bundle, those that do not hold, as `trainmark verify --json` prints them.
    """

    error: Fault
    checks: list[dict[str, Any]] | None = None


def answer(error: TrainmarkError, request: Request) -> Response:
    """Return the answer to a request that ended with an error of the program.

    Where files lie on the server is for its log alone.
    """
    status, headers, checks = 400, None, None
    if isinstance(error, Refused):
        status, headers, checks = error.status, error.headers, error.checks or None
        if request.method == "POST":  # or what is left of its body would be read
            headers = error.headers | {"Connection": "close"}
    elif isinstance(error, EnvironmentFault):
        LOG.error("%s", error)
        status, error = 503, EnvironmentFault("the server cannot read its store now")
    elif isinstance(error, RecordError):
        status = 404
        if "/" in (error.where or ""):
            LOG.warning("%s", error)
            error = RecordError("the record cannot be read")
    if request.url.path.startswith(_FOR_PROGRAMS):
        left_out = {"checks"} if checks is None else None
        problem = Problem(error=Fault.of(error), checks=checks)
        return JSONResponse(problem.model_dump(exclude=left_out), status, headers)
    return HTMLResponse(error_page(error, links_of(request)), status, headers)


def links_of(request: Request) -> Links:
    """Return the links of a page: in the language of ``?lang=``, else in the browser's."""
    root, asked = request.scope.get("root_path", ""), request.query_params.get("lang")
    if asked in LANGUAGES:
        return Links(lang=asked, root=root, asked=True)
    return Links(lang=preferred(request.headers.get("accept-language", "")), root=root)


def preferred(accepted: str) -> str:
    """Return which of our languages an ``Accept-Language`` likes best; the first of equals."""
    liked: dict[str, float] = {}
    for part in accepted.split(","):
        tag, _, quality = part.partition(";")
        lang = tag.strip().lower().partition("-")[0]
        try:
            liked.setdefault(lang, float(quality.strip().removeprefix("q=") or 1))
        except ValueError:  # what is no number says nothing
            continue
    return max(LANGUAGES, key=lambda lang: liked.get(lang, 0.0))
