"""The pages that people open, in the language that they ask for, and the files pages load."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import HTMLResponse, Response

from trainmark.errors import UsageError
from trainmark.pages.site import views
from trainmark.pages.site.links import NEWEST, Links, words_of
from trainmark.pages.site.rendering import file
from trainmark.server.answers import links_of
from trainmark.server.data import Followed, check
from trainmark.server.refused import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
_KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@contextmanager
def missing() -> Iterator[None]:
    """Answer with 404 where an address names what there is not."""
    try:
        yield
    except UsageError as error:
        raise Refused(404, error.what, rule=error.rule, remedy=error.remedy) from None


Linked = Annotated[Links, Depends(links_of)]


@router.get("/")
def runs(
    request: Request,
    shared: Followed,
    links: Linked,
    sort: str = NEWEST,
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
) -> str:
    """List runs."""
    words = words_of(request.query_params.multi_items())
    check(words, sort)
    return views.list_page(shared.database, words, sort=sort, page=page, links=links)


@router.get("/runs/{run_id:path}")
def run(request: Request, shared: Followed, links: Linked, run_id: str) -> str:
    """Show a run."""
    uploads = request.app.state.uploads
    bundled = uploads is not None and uploads.intake.bundle(run_id) is not None
    return views.run_page(shared.database, run_id, links=links, bundled=bundled)


@router.get("/cases/{case:path}")
def case(shared: Followed, links: Linked, case: str) -> str:
    """Show the runs of a case."""
    return views.case_page(shared.database, case, links=links)


@router.get("/compare")
def compare(request: Request, shared: Followed, links: Linked) -> str:
    """Show runs side by side."""
    chosen, allow = (request.query_params.getlist(name) for name in ("run", "allow"))
    return views.compare_page(shared.database, chosen, allow=allow, links=links)


@router.get("/references")
def references(links: Linked) -> str:
    """Show what others published."""
    return views.references_page(None, links=links)


@router.get("/references/{case}")
def references_of(links: Linked, case: str) -> str:
    """Show what others published of a case."""
    with missing():
        return views.references_page(case, links=links)


@router.get("/static/{name}")
def static(request: Request, name: str) -> Response:
    """Return a style sheet or script; nothing where the browser has it already."""
    with missing():
        text, tag = _file(name)
    told = {"ETag": tag, "Cache-Control": "no-cache"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=told)
    return Response(text, headers=told, media_type=_KINDS[name.rpartition(".")[2]])


@cache
def _file(name: str) -> tuple[bytes, str]:
    text = file(name).encode()
    return text, f'W/"{blake2b(text, digest_size=8).hexdigest()}"'
