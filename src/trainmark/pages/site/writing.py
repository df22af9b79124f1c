"""The site: a folder of pages and data for a store, which any web host or our server serves.

A run's page is written again only where its record or the number of its launches changed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import __version__
from trainmark.errors import RecordError, UsageError
from trainmark.library.bundle.archive import ENDING
from trainmark.library.store.query import counts, listing
from trainmark.pages import cells
from trainmark.pages import results as display
from trainmark.pages.charts import drawing
from trainmark.pages.phrases import TONES, status_tone
from trainmark.pages.rendering import rendered, shipped
from trainmark.pages.site import reading
from trainmark.pages.site.cases import MAIN, RECORDS, case_page, head
from trainmark.pages.site.links import Links, name, run_file
from trainmark.pages.site.views import (
    MOST_COMPARED,
    error_page,
    references_page,
    run_page,
    with_rows,
)
from trainmark.pages.texts import LANGUAGES, say, t
from trainmark.record.record import content

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.library.store.database import Database
    from trainmark.library.store.query import Listing

MARK = ".trainmark-site.json"  # tells that a folder is a site, and what its pages of runs are of
ROWS = 200  # of a page of the list
_CHOICES = ("case", "device", "precision", "status")
_NUMBERS = ("world", MAIN, "MFU", "mem", "quality_value")
_LISTED = (
    "run_id", "started_utc", "case", "device", "world", "precision", "status", "trust",
    "verification", MAIN, "MFU", "mem", "quality_value", "quality_metric",
)  # fmt: skip


def write_site(database: Database, folder: Path, *, served: bool = False) -> tuple[int, int]:
    """Write all pages of a store into ``folder``, which may be a site already.

    Args:
        served: whether a server compares the runs that are chosen in the list.

    Returns:
        How many runs there are, and of how many the pages were made anew.

    Raises:
        UsageError: the folder has files and is no site.
        OSError: it cannot be written.
    """
    mark = folder / MARK
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not mark.is_file())):
        rule = "a new or an empty folder, or a site that was written before"
        raise UsageError("not a site, and not empty", where=str(folder), rule=rule)
    known = json.loads(mark.read_bytes()) if mark.is_file() else {}
    if known.get("version") != __version__:
        known = {}
    for of in ("", "zh/"):
        for kind in ("runs", "cases", "references"):
            (folder / of / kind).mkdir(parents=True, exist_ok=True)
    (folder / "static").mkdir(exist_ok=True)
    mark.write_text(json.dumps(known), encoding="utf-8")
    runs = reading.every(database)
    beside = reading.launches(runs)
    made: dict[str, Any] = {"version": __version__}
    written, anew = set[Path](), 0
    for run in {run.run_id: run for run in reversed(runs)}.values():
        path, launches = database.place(run.path), [x.run_id for x in beside.get(run, [run])]
        made[run.run_id] = [_stamp(path), launches]
        files = [folder / Links(run_file(run.run_id), lang).file for lang in LANGUAGES]
        if known.get(run.run_id) != made[run.run_id] or not all(file.exists() for file in files):
            _write_run(folder, run.run_id, path, launches)
            anew += 1
        written |= {*files, files[0].with_suffix(".json")}
    written |= _write_lists(database, folder, served=served)
    for kind in ("runs", "cases"):
        for file in [*(folder / kind).iterdir(), *(folder / "zh" / kind).iterdir()]:
            if file not in written:
                file.unlink()
    mark.write_text(json.dumps(made), encoding="utf-8")
    return len(made) - 1, anew


def _stamp(path: str) -> list[int]:
    """Return what changes with the record of a run, or with its bundle."""
    bundle, inside, _ = path.partition(f"{ENDING}/")
    place = Path(bundle + ENDING if inside else path)
    place = place / "record.json" if place.is_dir() else place
    return [place.stat().st_size, place.stat().st_mtime_ns] if place.exists() else []


def _write_run(folder: Path, run_id: str, path: str, launches: Sequence[str]) -> None:
    """Write a run's pages and record; of a record that cannot be read, what is wrong with it."""
    try:
        record = reading.opened(path)
        shown: Callable[[Links], str] = partial(run_page, record, launches)
        (folder / run_file(run_id)).with_suffix(".json").write_bytes(content(record))
    except RecordError as error:
        shown = partial(error_page, RecordError("the record cannot be read", where=run_id))
        shown = partial(error_page, error) if not error.where else shown
    for lang in LANGUAGES:
        links = Links(run_file(run_id), lang)
        (folder / links.file).write_text(shown(links), encoding="utf-8")


def _write_lists(database: Database, folder: Path, *, served: bool) -> set[Path]:
    """Write what shows many runs, and what every page loads; return the pages."""
    static = Path(__file__).with_name("static")
    for file in static.iterdir():
        text = file.read_text(encoding="utf-8")
        text = shipped("base.css") + text if file.suffix == ".css" else text
        (folder / "static" / file.name).write_text(text, encoding="utf-8")
    (folder / "static" / "charts.js").write_text(drawing.script(), encoding="utf-8")
    every = listing(database, [RECORDS]).without("path")
    (folder / "runs.csv").write_text(display.to_csv(every), encoding="utf-8")
    (folder / "runs.json").write_text(json.dumps(display.document(every, [])), encoding="utf-8")
    pages: dict[str, Callable[[Links], str]] = {}
    found = listing(database, [RECORDS], columns=_LISTED)
    for number in range(1, max(1, -(-found.total // ROWS)) + 1):
        path = Links("").runs(number)
        pages[path] = partial(_list_page, found, number, _choices(database))
    for case, _ in _choices(database)["case"]:
        pages[f"cases/{name(case)}.html"] = partial(case_page, database, case)
    for published in (None, *with_rows()):
        pages[Links("").references(published)] = partial(references_page, published)
    pages["index.json"] = partial(_index, found)
    written = set()
    for path, page in pages.items():
        for lang in LANGUAGES:
            links = Links(path, lang, served=served)
            (folder / links.file).write_text(page(links), encoding="utf-8")
            written.add(folder / links.file)
    return written


def _choices(database: Database) -> dict[str, list[tuple[str, int]]]:
    """Return the values of the columns that a form offers, and how many runs have each."""
    found: dict[str, dict[str, int]] = {key: {} for key in _CHOICES}
    for values, count in counts(database, _CHOICES, [RECORDS]):
        for key, value in zip(_CHOICES, values, strict=True):
            if value is not None:
                found[key][value] = found[key].get(value, 0) + count
    return {key: sorted(of.items()) for key, of in found.items()}


def _list_page(
    found: Listing, number: int, choices: dict[str, list[tuple[str, int]]], links: Links
) -> str:
    """Return a page of the list, the newest runs first."""
    first = (number - 1) * ROWS
    part = replace(found, rows=found.rows[first : first + ROWS])
    span = {"first": first + 1, "last": first + len(part.rows), "total": cells.count(found.total)}
    columns = [
        {"key": key, "head": head(key, named), "kind": "n" if key in _NUMBERS else ""}
        for key, named in zip(_LISTED, display.shown(part)[0], strict=True)
        if key != "quality_metric"  # it stands beside the value
    ]
    return rendered(
        "site/list.html.j2", links.lang, links=links, rows=_rows(part, links),
        columns=columns, choices=choices,
        counted=t("site.counted", **span) if part.rows else t("site.none"), page_number=number,
        pages=-(-found.total // ROWS), most=MOST_COMPARED, charts=False, live=True, ident="",
    )  # fmt: skip


def _rows(found: Listing, links: Links) -> list[dict[str, Any]]:
    """Return what each row of the list shows, by the keys of its columns, with its addresses."""
    rows = []
    shown = zip(*display.shown(found)[1], strict=True)
    for texts, values in zip(shown, found.documents(), strict=True):
        row = dict(zip(found.columns, texts, strict=True))
        rows.append(row | {
            "run_id": values["run_id"], "case": values["case"], "status": values["status"],
            "started_utc": row["started_utc"][:16].replace("T", " "),
            "quality_value": cells.quality(values["quality_value"]),
            "tone": status_tone(values["status"]), "trust_tone": TONES[values["trust"]],
            "status_text": say(t(f"status.{values['status']}"), links.lang),
            "trust_text": say(t(f"trust.{values['trust']}"), links.lang),
            "verification": say(t(f"trust.{values['verification']}"), links.lang),
            "run_address": links.run(values["run_id"]), "case_address": links.case(values["case"]),
        })  # fmt: skip
    return rows


def _index(found: Listing, links: Links) -> str:
    """Return what the site's script filters the list by: texts, and values to sort by."""
    units = display.shown(found)[0]
    heads = {
        key: say(head(key, unit), links.lang) for key, unit in zip(_LISTED, units, strict=True)
    }
    document = {"heads": heads, "rows": _rows(found, links), "values": found.documents()}
    return json.dumps(document)
