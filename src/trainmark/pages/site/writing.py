"""The site: a folder of pages and data for a store, which any web host or our server serves.

A run's page is written again only if its record or the run's launches changed. Each file replaces
the one before in one step, so that a reader never gets half of it.
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
from trainmark.pages.site.launches import PAGE_COLUMNS
from trainmark.pages.site.lists import build_case_page, build_list_page, build_machines_page
from trainmark.pages.site.views import (
    Links,
    build_error_page,
    build_run_page,
    get_run_path,
    list_all_runs,
    make_safe_file_name,
    read_record_for_site,
)
from trainmark.pages.texts import LANGUAGES
from trainmark.record.record import serialize_record
from trainmark.results.store.columns import IMPORTED
from trainmark.results.store.query import list_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.results.store.index import Index

# The file that marks a folder as a site. It has of each run's page a stamp: identity, size and time
# of the record from which it was written, and the run's launches.
MARK = ".trainmark-site.json"


def write_site(database: Index, folder: Path, *, served: bool = False) -> tuple[int, int]:
    """Write a site, the pages of all runs of an index, into ``folder``.

    If the folder has a site already, only pages of launches that changed are written again. The
    site's mark file has a stamp for each launch, which shows whether it changed. Lists of runs are
    always written.

    Args:
        database: the index.
        served: whether our server sends it: runs can be compared, files are compressed by gzip.

    Returns:
        How many launches there are, and of how many the pages were made anew.

    Raises:
        UsageError: the folder has files and is no site.
        OSError: it cannot be written.
    """
    known_stamps = _open_site(folder)
    # Another version may draw pages otherwise, and a server needs compressed files.
    if known_stamps.get("version") != [__version__, served]:
        known_stamps = {}  # all pages are written again
    stamps: dict[str, Any] = {"version": [__version__, served]}
    runs = list_all_runs(database, PAGE_COLUMNS)  # of each run its launches, as rows of the index
    num_written = 0
    paths = set[str]()
    for run in runs:
        if run[0]["status"] == IMPORTED:  # figures that others published have no page
            continue
        launch_ids = [launch["run_id"] for launch in run]
        for launch in run:
            run_id = launch["run_id"]
            # The stamp changes if the record's file changes, or if launches are added to the run.
            # ``id`` is the number of the launch's entry in the index; a record that is read again
            # gets a new one.
            stamp = [launch["id"], launch["bytes"], launch["mtime_ns"], launch_ids]
            if known_stamps.get(run_id) != stamp:
                num_written += 1
                files = _build_run_files(run_id, launch["path"], launch_ids)
                for path, content in files.items():
                    _write(folder / path, content, served=served)
            stamps[run_id] = stamp
            paths |= {Links(get_run_path(run_id), lang).file for lang in LANGUAGES}
            paths.add(_get_record_path(run_id))
    # The lists are written after the pages to which they link.
    for path, content in _build_shared_files(database, runs, served=served).items():
        _write(folder / path, content, served=served)
        paths.add(path)
    _remove_other_pages(folder, {folder / (f"{path}.gz" if served else path) for path in paths})
    _write(folder / MARK, json.dumps(stamps))
    num_launches = len(stamps) - 1  # without the version
    return num_launches, num_written


def _get_record_path(run_id: str) -> str:
    """Return the path below the site's folder of a run's record, which lies beside its page."""
    return get_run_path(run_id).removesuffix("html") + "json"


def _open_site(folder: Path) -> dict[str, Any]:
    """Make a folder a site, and return the stamps of its pages; empty for a new site.

    A site is a folder with the file ``MARK``, which has the stamps: what each page was made from.

    Raises:
        UsageError: it has files and is no site.
    """
    mark = folder / MARK
    # A file in the place of the folder is refused like a folder that has other files.
    is_foreign = folder.exists() and not folder.is_dir()
    if folder.is_dir() and not mark.is_file():
        is_foreign = any(folder.iterdir())
    if is_foreign:
        rule = "the folder must be new or empty, or must contain an earlier site"
        raise UsageError(
            "the folder is not empty and contains no site", where=str(folder), rule=rule
        )
    folder.mkdir(parents=True, exist_ok=True)
    stamps: dict[str, Any] = json.loads(mark.read_bytes()) if mark.is_file() else {}
    # The mark is written before any page: if this call is interrupted, the next one accepts the
    # folder as a site.
    _write(mark, json.dumps(stamps))
    return stamps


def _remove_other_pages(folder: Path, current_files: set[Path]) -> None:
    """Remove the files of runs and cases that the site has no longer.

    Args:
        current_files: all files of the site that stay.
    """
    for kind in ("runs", "cases"):
        for lang in LANGUAGES:
            # ``runs`` or, in another language, ``zh/runs``: ``Links`` places a folder like a page.
            pages_folder = folder / Links(kind, lang).file
            for file in pages_folder.glob("*"):
                if file not in current_files:
                    file.unlink()


def _write(file: Path, content: str | bytes, *, served: bool = False) -> None:
    """Write a file; for the server it is compressed, and its name ends in ``.gz``."""
    data = content.encode() if isinstance(content, str) else content
    if served:
        file = file.with_name(f"{file.name}.gz")
        # Without a time, the same content gives the same bytes.
        data = gzip.compress(data, compresslevel=6, mtime=0)
    file.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(file) as out:
        out.write(data)


def _build_run_files(run_id: str, path: str, launch_ids: Sequence[str]) -> dict[str, str | bytes]:
    """Return the pages and the record of a launch, by path; if it cannot be read, error pages.

    Args:
        run_id: of the launch; each launch of a run has one of its own.
        path: run directory of the launch.
        launch_ids: run ids of all launches of the run.
    """
    # Without ``served``: with a server, only lists of runs differ, in which runs can be chosen.
    links_by_language = [Links(get_run_path(run_id), lang) for lang in LANGUAGES]
    files: dict[str, str | bytes] = {}
    try:
        record = read_record_for_site(Path(path))
        for links in links_by_language:
            files[links.file] = build_run_page(record, launch_ids, links)
    except RecordError:
        # The error that was caught names a path of this machine, which readers need not know.
        fault = RecordError("the record cannot be read", where=run_id)
        return {links.file: build_error_page(fault, links) for links in links_by_language}
    files[_get_record_path(run_id)] = serialize_record(record)
    return files


def _build_shared_files(
    database: Index, runs: Sequence[list[dict[str, Any]]], *, served: bool
) -> dict[str, str | bytes]:
    """Return the pages and data about many runs, and the files that every page loads, by path.

    Args:
        database: the index of the runs.
        runs: of each run its launches, as ``list_all_runs`` returns them.
        served: whether our server sends the pages, so that runs can be chosen for a comparison.
    """
    files: dict[str, str | bytes] = {"static/charts.js": build_chart_script()}
    for file in Path(__file__).with_name("static").iterdir():
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".css":
            text = read_shipped_file("base.css") + text  # the style that all reports have too
        files[f"static/{file.name}"] = text
    # The index is read again, because ``runs`` has only some columns of each launch. The site says
    # nothing about records that could not be read.
    listing = to_listing_json(list_runs(database), unread_files=[])
    for launch in listing["runs"]:
        del launch["path"]  # a path of this machine means nothing to readers of the site
    files["runs.json"] = json.dumps(listing)
    pages: dict[str, Callable[[Links], str]] = {
        "index.html": partial(build_list_page, runs),
        "machines.html": partial(build_machines_page, runs),
    }
    for case in {run[0]["case"] for run in runs}:
        pages[f"cases/{make_safe_file_name(case)}.html"] = partial(build_case_page, runs, case)
    for path, build in pages.items():
        for lang in LANGUAGES:
            links = Links(path, lang, served=served)
            files[links.file] = build(links)
    return files
