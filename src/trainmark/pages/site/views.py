"""The pages, each as one HTML document."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from trainmark.errors import RecordError, UsageError
from trainmark.library.importers import references
from trainmark.library.store.entries import stored
from trainmark.library.store.query import counts, listing
from trainmark.pages import cells
from trainmark.pages import results as display
from trainmark.pages.page import document
from trainmark.pages.phrases import TONES, device_configuration, status_tone
from trainmark.pages.rendering import body_html
from trainmark.pages.site import published, reading, sidebyside
from trainmark.pages.site.cases import GOOD, MAIN, PASSED, SAME, sections
from trainmark.pages.site.links import CHOICES, NEWEST, RECORDS, fields_of
from trainmark.pages.site.rendering import NUMBERS, rendered
from trainmark.pages.texts import Phrase, say, t, term
from trainmark.record.trust import of_repeats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.errors import TrainmarkError
    from trainmark.library.store.database import Database
    from trainmark.library.store.query import Listing
    from trainmark.pages.site.links import Links
    from trainmark.record.record import Record

ROWS = 50  # of a page of the list
MOST_COMPARED = 6
_BEST = ("run_id", "started_utc", *SAME, "trust", MAIN, "p_core", "MFU", "mem", "quality_value")
LISTED = (
    "run_id", "started_utc", "case", "device", "world", "precision", "status", "trust", MAIN,
    "MFU", "mem", "quality_value", "quality_metric",
)  # fmt: skip


def list_page(
    database: Database,
    words: Sequence[str] = (),
    *,
    sort: str = NEWEST,
    page: int = 1,
    links: Links,
) -> str:
    """Return a page of the list of runs.

    Args:
        words: filters, as ``links.words_of`` reads them from a URL.
        page: from 1.

    Raises:
        UsageError: not a filter, an unknown key, or no such page.
    """
    asked = [RECORDS, *words]
    first = (page - 1) * ROWS
    found = listing(database, asked, columns=LISTED, sort=sort, limit=ROWS, offset=first)
    last_page = max(1, -(-found.total // ROWS))
    if not 1 <= page <= last_page:
        raise UsageError(f"no page {page} of the list", rule=f"pages are 1 to {last_page}")
    heads, _ = display.shown(found)
    last = first + len(found.rows)
    span = {"first": first + 1, "last": last, "total": cells.count(found.total)}
    return rendered(
        "list", links, lambda own: own.runs(words, sort, page), here="runs",
        words=words, fields=dict.fromkeys(("q", *CHOICES), "") | fields_of(words), sort=sort,
        newest=NEWEST, rows=rows_of(found, links), choices=_choices(database),
        columns=[
            _column(key, head, words, sort, links)
            for key, head in zip(LISTED, heads, strict=True)
            if key != "quality_metric"  # it stands beside the value
        ],
        counted=t("site.counted" if found.rows else "site.none", **span),
        pages=_pages(page, last_page), page_number=page, most=MOST_COMPARED,
    )  # fmt: skip


def rows_of(found: Listing, links: Links) -> list[dict[str, Any]]:
    """Return what each row of the list shows, by the keys of its columns, with its addresses."""
    shown = display.shown(found)[1]
    rows = []
    for texts, values in zip(zip(*shown, strict=True), found.documents(), strict=True):
        row = dict(zip(found.columns, texts, strict=True))
        rows.append(row | {
            "run_id": values["run_id"], "case": values["case"], "status": values["status"],
            "started_utc": row["started_utc"][:16].replace("T", " "),
            "quality_value": cells.quality(values["quality_value"]),
            "tone": status_tone(values["status"]),
            "status_text": say(t(f"status.{values['status']}"), links.lang),
            "trust_tone": TONES[values["trust"]],
            "trust_text": say(t(f"trust.{values['trust']}"), links.lang),
            "run_address": links.run(values["run_id"]), "case_address": links.case(values["case"]),
        })  # fmt: skip
    return rows


def index(found: Listing, *, links: Links) -> str:
    """Return what the script of plain files filters the list by: texts, and values to sort by."""
    units, _ = display.shown(found)  # of all rows: those of a page may have others
    heads = {
        key: say(_head(key, head), links.lang) for key, head in zip(LISTED, units, strict=True)
    }
    return json.dumps({"heads": heads, "rows": rows_of(found, links), "values": found.documents()})


def _choices(database: Database) -> dict[str, list[tuple[str, int]]]:
    """Return the values of the columns that a form offers, and how many runs have each."""
    found: dict[str, dict[str, int]] = {key: {} for key in CHOICES}
    for values, count in counts(database, CHOICES, [RECORDS]):
        for key, value in zip(CHOICES, values, strict=True):
            if value is not None:
                found[key][value] = found[key].get(value, 0) + count
    return {key: sorted(of.items()) for key, of in found.items()}


def _column(
    key: str, head: str, words: Sequence[str], sort: str, links: Links
) -> dict[str, Phrase]:
    """Return a column's head, with the address that sorts by it."""
    down, number = sort.startswith("-"), key in NUMBERS
    by_it = sort.removeprefix("-") in (key, key.removesuffix("_utc"))
    again = key if by_it and down else f"-{key}" if by_it or number or key == "started_utc" else key
    return {
        "key": key,
        "head": _head(key, head),
        "kind": "n" if number else "",
        "address": None if links.static else links.runs(words, again),
        "order": (("descending" if down else "ascending") if by_it else None),
    }


def _head(key: str, head: str) -> Phrase:
    """Return the head of a column; figures are called the same in all languages."""
    named = term("site", key)
    return head if named == key else named


def _pages(page: int, last: int) -> list[int | None]:
    """Return the pages that are linked: the ends and those beside; None for a gap."""
    near = sorted({1, last, *range(max(1, page - 2), min(last, page + 2) + 1)})
    shown: list[int | None] = []
    for before, number in zip([0, *near], near, strict=False):
        shown += [None, number] if number > before + 1 else [number]
    return shown


def case_page(database: Database, case: str, *, links: Links) -> str:
    """Return the page of a case: the best runs, the main figure over time, and against others.

    Where no run may be quoted, it is about all that passed, and says so.

    Raises:
        RecordError: no run of it is there.
    """
    of_case = f"case={case}"
    filters = [of_case, *GOOD]
    counted = dict(counts(database, SAME, filters))
    good = sum(counted.values())
    if not good:
        filters = [of_case, *PASSED]
        counted = dict(counts(database, SAME, filters))
    total = sum(count for _, count in counts(database, ["case"], [of_case, RECORDS]))
    if not total:
        raise RecordError("no run of this case", where=case[:200], remedy="the list has all runs")
    found = listing(database, filters, columns=_BEST, sort=f"-{MAIN}", first_of=SAME)
    heads, columns = display.shown(found)
    best = []
    for shown, values in zip(zip(*columns, strict=True), found.documents(), strict=True):
        row = dict(zip(_BEST, shown, strict=True)) | {"run_id": values["run_id"]}
        row |= {"started_utc": row["started_utc"][:10], "trust_tone": TONES[values["trust"]]}
        group = tuple(values[key] for key in SAME)
        row["runs"] = cells.count(counted.get(group, 1))  # which may have come since
        best.append(row | {"trust": say(t(f"trust.{values['trust']}"), links.lang)})
    return rendered(
        "case", links, lambda own: own.case(case), case=case, best=best, charts=True,
        heads={key: _head(key, head) for key, head in zip(_BEST, heads, strict=True)},
        total=cells.count(total), good=cells.count(good), quotable=bool(good), main=MAIN,
        sections=sections(database, filters),
        published=case in published.with_rows(),
    )  # fmt: skip


def compare_page(
    database: Database, run_ids: Sequence[str], *, allow: Sequence[str] = (), links: Links
) -> str:
    """Return runs side by side, each with all its launches; the first is the base.

    Args:
        allow: keys of the work in which runs that are compared may differ.

    Raises:
        UsageError: not two to six runs.
        RecordError: there is no such run, or it cannot be read.
    """
    chosen = list(dict.fromkeys(run_ids))
    if not 2 <= len(chosen) <= MOST_COMPARED:
        raise UsageError(f"{len(chosen)} runs", rule=f"2 to {MOST_COMPARED} stand side by side")
    sides = reading.sides(database, chosen)
    shown = [
        {"letter": letter, "run_id": run_id, "record": side[0], "launches": len(side),
         "case": stored(side[0].plan.case),
         "tone": status_tone(side[0].status), "trust": of_repeats(side).grade,
         "title": device_configuration(side[0])}
        for letter, run_id, side in zip(sidebyside.LETTERS, chosen, sides, strict=False)
    ]  # fmt: skip
    found, refused = sidebyside.sections(sides, allow=allow)
    return rendered(
        "compare", links, lambda own: own.compare(chosen, allow), sides=shown, charts=True,
        sections=found, refused=refused, allow=[*allow], tones=TONES,
    )  # fmt: skip


def references_page(case: str | None = None, *, links: Links) -> str:
    """Return the published figures that a case ships, with what the audit finds in them.

    Args:
        case: None: the cases that have any.

    Raises:
        UsageError: no such case.
    """
    if case is None:
        told = [(name, *published.counted(name)) for name in published.with_rows()]
        here = "references"
        return rendered(here, links, lambda own: own.references(), here=here, cases=told)
    return rendered(
        "reference", links, lambda own: own.references(case), here="references", case=case,
        **published.shown(case),
    )  # fmt: skip


def error_page(error: TrainmarkError, links: Links) -> str:
    """Return the page that says what is wrong with an address."""
    return rendered("error", links, lambda own: own.runs(), error=error)


def run_page(database: Database, run_id: str, *, links: Links, bundled: bool = False) -> str:
    """Return the page of a run: its report, with its other launches and its data.

    Args:
        bundled: whether the server has the bundle that brought it.

    Raises:
        RecordError: there is no such run, or it cannot be read.
    """
    run = reading.stored(database, run_id)
    others = [one.run_id for one in reading.launches(database, run)]
    with reading.opened(database.place(run.path)) as (record, _):
        return run_document(record, work=run.work, launches=others, links=links, bundled=bundled)


def run_document(
    record: Record,
    *,
    work: str,
    launches: Sequence[str],
    links: Links,
    bundled: bool = False,
) -> str:
    """Return the page of a run; arguments are what ``reading`` tells of it."""
    rows = [*references.published([record.plan.case])]
    page = document([record], rows)
    run_id, case = stored(record.run_id), stored(record.plan.case)  # by which they are found
    return rendered(
        "run", links, lambda own: own.run(run_id), page=page, run_id=run_id, case=case, work=work,
        body=Markup(body_html(page, links.lang, live=True)), launches=launches, bundled=bundled,
        charts=True,
        held=reading.held(record),
    )  # fmt: skip
