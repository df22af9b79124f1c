"""What programs ask: runs, histories, comparisons and references as JSON and CSV."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from trainmark.api import audit_results
from trainmark.errors import UsageError
from trainmark.judge.comparison import compare
from trainmark.library.importers import references as published
from trainmark.library.store.query import Listing, counts, listing
from trainmark.pages import results as display
from trainmark.pages.site.links import MOST_FILTERS, MOST_LETTERS, NEWEST
from trainmark.plan.reference import REFERENCE
from trainmark.record.rows import Row, Unread
from trainmark.server.answers import Fault, Problem
from trainmark.server.metrics import CONTENT_TYPE
from trainmark.server.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Sequence

REFUSALS: dict[int | str, dict[str, Any]] = {"4XX": {"model": Problem}, "5XX": {"model": Problem}}
router = APIRouter(responses=REFUSALS)
Scalar = str | int | float | bool | None
Text = Annotated[str, Field(max_length=MOST_LETTERS)]
RunId = Annotated[str, Query(min_length=1, max_length=200)]
_ONE_AT_A_TIME = threading.Lock()  # of comparisons: each keeps a core busy


def serving(request: Request) -> Serving:
    """Return what the requests of this server share."""
    found: Serving = request.app.state.serving
    return found


def following(shared: Annotated[Serving, Depends(serving)]) -> Serving:
    """Return the same after a look at the store's folder, where one is due."""
    shared.follow()
    return shared


Shared = Annotated[Serving, Depends(serving)]
Followed = Annotated[Serving, Depends(following)]


def text_of(media_type: str) -> dict[int | str, dict[str, Any]]:
    """Return what the document of the API says of an answer that is text."""
    return {200: {"content": {media_type.partition(";")[0]: {"schema": {"type": "string"}}}}}


class Strict(BaseModel):
    """Fields of a query; others are refused, so that a misspelt filter is not left out."""

    model_config = ConfigDict(extra="forbid")


class Filters(Strict):
    """Which runs: filters of `trainmark results`, all of which they meet: `case=toy`, `MFU>40`."""

    # Those of the list, and what it is of.
    filter: Annotated[list[Text], Field(max_length=MOST_FILTERS + 1)] = []


class Ordered(Filters):
    """Which runs in which order."""

    sort: Annotated[Text, Field(description="a key; after `-` from the greatest")] = NEWEST
    page: Annotated[int, Field(ge=1, le=1_000_000)] = 1


class Listed(Ordered):
    """A page of the list."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 50


class Exported(Ordered):
    """A page of the table."""

    limit: Annotated[int, Field(ge=1, le=20_000)] = 10_000


class Series(Filters):
    """Whose history of which figure."""

    figure: Annotated[str, Field(min_length=1, max_length=200)]
    limit: Annotated[int, Field(ge=1, le=10_000, description="the newest runs")] = 1000


class Pair(Strict):
    """Two or more runs; the first is what the others are compared with."""

    run: Annotated[list[RunId], Field(min_length=2, max_length=6)]


class Health(BaseModel):
    """Whether the index can be read and follows its files, and how many runs and rows it holds."""

    status: Annotated[str, Field(description="`ok`, or `stale`: the log of the server says why")]
    runs: int


class Runs(BaseModel):
    """A page of the runs that meet all filters; figures in the units of `units`."""

    total: int
    page: int
    limit: int
    units: dict[str, str]
    runs: list[dict[str, Scalar]]


class Run(BaseModel):
    """What the index holds of a run; `/record.json` is the whole of it."""

    units: dict[str, str]
    run: dict[str, Scalar]


class Point(BaseModel):
    """A value of a run."""

    run_id: str | None
    started_utc: str | None
    status: str | None
    trust: str | None
    value: float


class Piece(BaseModel):
    """The history of one piece of work, the oldest run first."""

    case: str | None
    recipe: str | None
    device: str | None
    world: int | None
    precision: str | None
    work: str | None
    figure: str
    unit: str
    points: list[Point]


class Compared(BaseModel):
    """A run over the first: `comparison` as `trainmark compare --json`, or why there is none."""

    a: str
    b: str
    comparison: dict[str, Any] | None = None
    refused: Fault | None = None


class References(BaseModel):
    """Figures that others published of a case, and what the audit finds in them."""

    case: str
    rows: list[Row]
    unread: list[Unread]
    findings: list[dict[str, Any]]


@router.get("/health")
def health(shared: Shared) -> Health:
    """Tell whether the index can be read."""
    return Health(status="stale" if shared.fault else "ok", runs=_count(shared))


@router.get("/metrics", response_class=Response, responses=text_of(CONTENT_TYPE))
def metrics(shared: Shared) -> Response:
    """Return what the server counts of itself, as OpenMetrics text."""
    text = shared.metrics.text(runs=_count(shared))
    return Response(text, media_type=CONTENT_TYPE)


def _count(shared: Serving) -> int:
    return sum(found for _, found in counts(shared.database, ["kind"]))


def _listed(shared: Serving, asked: Listed | Exported) -> Listing:
    """Return a page of runs, without where their files lie on the server."""
    limit, start = asked.limit, (asked.page - 1) * asked.limit
    check(asked.filter, asked.sort)
    found = listing(shared.database, asked.filter, sort=asked.sort, limit=limit, offset=start)
    return found.without("path")


def check(words: Sequence[str], sort: str = NEWEST) -> None:
    """Let nobody find out letter by letter where files lie on the server.

    Raises:
        UsageError: a filter or the order is by that.
    """
    for key in (sort.removeprefix("-"), *(re.split("[=!~<>]", word)[0] for word in words)):
        if key in ("path", "source"):
            raise UsageError(f"unknown key {key!r}", where=key, rule="a column or figure")


def _units(found: Listing) -> dict[str, str]:
    return {key: unit for key, unit in zip(found.columns, found.units, strict=True) if unit}


@router.get("/api/runs")
def runs(shared: Followed, asked: Annotated[Listed, Query()]) -> Runs:
    """List runs and rows that others printed."""
    found = _listed(shared, asked)
    return Runs(
        total=found.total, page=asked.page, limit=asked.limit, units=_units(found),
        runs=found.documents(),
    )  # fmt: skip


@router.get("/api/runs.csv", response_class=Response, responses=text_of("text/csv"))
def runs_csv(shared: Followed, asked: Annotated[Exported, Query()]) -> Response:
    """Return a table of runs; the header `X-Total-Count` says how many there are."""
    found = _listed(shared, asked)
    told = {"X-Total-Count": str(found.total), **attachment("runs.csv")}
    return Response(display.to_csv(found), headers=told, media_type="text/csv")


@router.get("/api/runs/{run_id:path}/record.json")
def record(shared: Followed, run_id: str) -> dict[str, Any]:
    """Return a run's record; its schema is what `trainmark schema` prints."""
    told = shared.record_bytes(run_id)
    return Response(told, media_type="application/json", headers=attachment("record.json"))  # type: ignore[return-value]  # written already


@router.get("/api/runs/{run_id:path}")
def run(shared: Followed, run_id: str) -> Run:
    """Return a run's figures, work and machine."""
    found = shared.found(run_id).without("path")
    return Run(units=_units(found), run=found.documents()[0])


@router.get("/api/history")
def history(shared: Followed, asked: Annotated[Series, Query()]) -> list[Piece]:
    """Return a figure over time, for each piece of work."""
    check(asked.filter)
    found = display.history(shared.database, asked.figure, asked.filter, limit=asked.limit)
    return [Piece.model_validate(piece) for piece in found]


@router.get("/api/compare")
def compared(shared: Followed, asked: Annotated[Pair, Query()]) -> list[Compared]:
    """Compare runs with the first: ratios with intervals, verdicts, what differs."""
    first, *others = (shared.record(run_id) for run_id in asked.run)
    told = []
    for other in others:
        one = Compared(a=first.run_id, b=other.run_id)
        try:
            with _ONE_AT_A_TIME:
                one.comparison = compare([first], [other]).as_dict()
        except UsageError as error:  # other work
            one.refused = Fault.of(error)
        told.append(one)
    return told


@router.get("/api/references")
def references(case: Annotated[str, Query(min_length=1, max_length=200)]) -> References:
    """Return the published figures of a case and what the audit finds in them."""
    found = list(published.read(case))
    return References(
        case=case,
        rows=[one for one in found if isinstance(one, Row)],
        unread=[one for one in found if isinstance(one, Unread)],
        findings=[one.as_dict("en") for one in audit_results(f"{REFERENCE}{case}")],
    )


def attachment(name: str) -> dict[str, str]:
    """Return the header that lets a browser save an answer as ``name``."""
    return {"Content-Disposition": f'attachment; filename="{name}"'}
