"""The site: a folder of pages and data for a store, which any web host or our server serves.

A run's page is written again only where its record or the number of its launches changed. Each
file takes the place of the one before at once and whole.
"""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import __version__
from trainmark.documents import write_atomically
from trainmark.errors import RecordError, UsageError
from trainmark.pages.rendering import build_chart_script, read_shipped_file
from trainmark.pages.results import to_listing_json
from trainmark.pages.site.lists import KEYS, build_case_page, build_machines_page, list_page
from trainmark.pages.site.views import (
    Links,
    build_error_page,
    list_all_runs,
    name,
    open_record,
    run_file,
    run_page,
)
from trainmark.pages.texts import LANGUAGES
from trainmark.record.record import serialize_record
from trainmark.results.store.columns import IMPORTED
from trainmark.results.store.query import list_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.results.store.index import Index

MARK = ".trainmark-site.json"  # tells that a folder is a site, and what its pages of runs are of


def write_site(database: Index, folder: Path, *, served: bool = False) -> tuple[int, int]:
    """Write all pages of a store into ``folder``, which may be a site already.

    Args:
        served: whether a server has it: runs can be compared, files are compressed by gzip.

    Returns:
        How many launches there are, and of how many the pages were made anew.

    Raises:
        UsageError: the folder has files and is no site.
        OSError: it cannot be written.
    """
    known = _open_site(folder)
    if known.get("version") != [__version__, served]:
        known = {}
    made: dict[str, Any] = {"version": [__version__, served]}
    runs = list_all_runs(database, KEYS)
    num_written = 0
    paths = set[str]()
    for run in runs:
        if run[0]["status"] == IMPORTED:  # it has no page
            continue
        ids = [launch["run_id"] for launch in run]
        for launch in run:
            run_id = launch["run_id"]
            stamp = [launch["id"], launch["bytes"], launch["mtime_ns"], ids]
            if known.get(run_id) != stamp:
                num_written += 1
                for path, text in _build_run_files(run_id, launch["path"], ids).items():
                    _write(folder / path, text, served=served)
            made[run_id] = stamp
            paths |= {Links(run_file(run_id), lang).file for lang in LANGUAGES}
            paths.add(run_file(run_id).removesuffix("html") + "json")
    # The pages that these lists name are there.
    for path, text in _build_list_files(database, runs, served=served).items():
        _write(folder / path, text, served=served)
        paths.add(path)
    _remove_other_pages(folder, {folder / (f"{path}.gz" if served else path) for path in paths})
    _write(folder / MARK, json.dumps(made))
    return len(made) - 1, num_written


def _open_site(folder: Path) -> dict[str, Any]:
    """Make a folder a site and return what is known of its pages; nothing of a new one.

    Raises:
        UsageError: it has files and is no site.
    """
    mark = folder / MARK
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not mark.is_file())):
        rule = "the folder must be new, empty, or contain a site that was written before"
        raise UsageError(
            "the folder is not empty and contains no site", where=str(folder), rule=rule
        )
    folder.mkdir(parents=True, exist_ok=True)
    known: dict[str, Any] = json.loads(mark.read_bytes()) if mark.is_file() else {}
    _write(mark, json.dumps(known))
    return known


def _remove_other_pages(folder: Path, kept: set[Path]) -> None:
    """Remove the pages of runs and cases that are no longer in the store."""
    for kind in ("runs", "cases"):
        for lang in LANGUAGES:
            for file in (folder / Links(kind, lang).file).glob("*"):
                if file not in kept:
                    file.unlink()


def _write(file: Path, text: str | bytes, *, served: bool = False) -> None:
    data = text.encode() if isinstance(text, str) else text
    file.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(file.with_name(f"{file.name}.gz") if served else file) as out:
        out.write(gzip.compress(data, 6, mtime=0) if served else data)


def _build_run_files(run_id: str, path: str, launches: Sequence[str]) -> dict[str, str | bytes]:
    """Return a launch's pages and record; of a record that cannot be read, what is wrong."""
    both = [Links(run_file(run_id), lang) for lang in LANGUAGES]
    try:
        record = open_record(Path(path))
        pages = {links.file: run_page(record, launches, links) for links in both}
    except RecordError:
        fault = RecordError("the record cannot be read", where=run_id)
        return {links.file: build_error_page(fault, links) for links in both}
    return pages | {run_file(run_id).removesuffix("html") + "json": serialize_record(record)}


def _build_list_files(
    database: Index, runs: Sequence[list[dict[str, Any]]], *, served: bool
) -> dict[str, str | bytes]:
    """Return what shows many runs, and what every page loads."""
    files: dict[str, str | bytes] = {"static/charts.js": build_chart_script()}
    for file in Path(__file__).with_name("static").iterdir():
        text = file.read_text(encoding="utf-8")
        files[f"static/{file.name}"] = (
            read_shipped_file("base.css") + text if file.suffix == ".css" else text
        )
    listing = to_listing_json(list_runs(database), [])
    for launch in listing["runs"]:
        del launch["path"]  # on this machine
    files["runs.json"] = json.dumps(listing)
    pages: dict[str, Callable[[Links], str]] = {
        "index.html": partial(list_page, runs),
        "machines.html": partial(build_machines_page, runs),
    }
    for case in {run[0]["case"] for run in runs}:
        pages[f"cases/{name(case)}.html"] = partial(build_case_page, runs, case)
    for path, page in pages.items():
        for links in (Links(path, lang, served=served) for lang in LANGUAGES):
            files[links.file] = page(links)
    return files
