"""The site as plain files: the same pages, written whole or not at all.

A run's page is taken over from the site that is replaced where nothing that it shows has changed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainmark import __version__
from trainmark.errors import RecordError, UsageError
from trainmark.library.bundle.archive import ENDING
from trainmark.library.store.query import counts, listing
from trainmark.pages import results as display
from trainmark.pages.site import published, reading, rendering, views
from trainmark.pages.site.links import RECORDS, Links
from trainmark.pages.texts import LANGUAGES
from trainmark.record.record import content

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.library.store.database import Database

MARK = ".trainmark-site.json"  # tells that a folder is a site, and what pages of runs are made of
_FOLDERS = ("static", *(f"{of}{x}" for of in ("", "zh/") for x in ("runs", "cases", "references")))
_WORTH_PROCESSES, _BATCH = 100, 20  # pages of runs
_OWN = Path(__file__).parents[1]


class _Page(NamedTuple):
    run_id: str
    path: str
    work: str
    launches: list[str]

    @property
    def files(self) -> list[str]:
        """Return its pages in all languages, and the record; from the site's folder."""
        links = [Links(static=True, lang=lang) for lang in LANGUAGES]
        return [*(one.run(self.run_id) for one in links), links[0].record(self.run_id)]


def write_site(database: Database, folder: Path, *, served: bool = False) -> tuple[int, int]:
    """Write all pages of a store into ``folder``, in place of a site that is there.

    Args:
        served: whether a server compares the runs that are chosen in the list.

    Returns:
        How many runs there are, and of how many the pages were made anew.

    Raises:
        UsageError: the folder has files and is no site.
        OSError: it cannot be written.
    """
    folder = folder.resolve()  # where it is a link, what it leads to is replaced
    theirs = not folder.is_dir() or (any(folder.iterdir()) and not (folder / MARK).is_file())
    if folder.exists() and theirs:
        rule = "a new or an empty folder, or a site that was written before"
        raise UsageError("not a site, and not empty", where=str(folder), rule=rule)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".site-", dir=folder.parent) as place:
        new, old = Path(place) / "new", Path(place) / "old"
        for name in _FOLDERS:
            (new / name).mkdir(parents=True)
        _write_lists(database, new, served=served)
        counted = _write_runs(database, new, folder)
        try:
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
        finally:
            if old.exists() and not folder.exists():
                old.rename(folder)
    return counted


def _put(
    new: Path,
    lang: str,
    address: Callable[[Links], str],
    page: Callable[..., str],
    *,
    served: bool = False,
) -> None:
    """Write a page at its address, with links that lead from there."""
    place = address(Links(static=True, lang=lang))
    links = Links(static=True, lang=lang, root="../" * place.count("/"), served=served)
    (new / place).write_text(page(links=links), encoding="utf-8")


def _write_lists(database: Database, new: Path, *, served: bool) -> None:
    """Write what shows many runs, and what every page loads."""
    for name in rendering.FILES:
        (new / "static" / name).write_text(rendering.file(name), encoding="utf-8")
    every = listing(database, [RECORDS]).without("path")
    (new / "runs.csv").write_text(display.to_csv(every), encoding="utf-8")
    (new / "runs.json").write_text(json.dumps(display.document(every, [])), encoding="utf-8")
    shown = listing(database, [RECORDS], columns=views.LISTED)
    cases = [values[0] for values, _ in counts(database, ["case"], [RECORDS])]
    for lang in LANGUAGES:
        put = partial(_put, new, lang, served=served)
        for page in range(1, max(1, -(-shown.total // views.ROWS)) + 1):
            put(partial(Links.runs, page=page), partial(views.list_page, database, page=page))
        put(Links.index, partial(views.index, shown))
        for case in cases:
            put(partial(Links.case, name=case), partial(views.case_page, database, case))
        for case in (None, *published.with_rows()):
            put(partial(Links.references, case=case), partial(views.references_page, case))


def _write_runs(database: Database, new: Path, before: Path) -> tuple[int, int]:
    """Write the pages of all runs, those that are as before by copying them."""
    runs = reading.every(database)
    beside = {one: some for some in reading.series(runs).values() for one in some}
    pages = [
        _Page(run.run_id, database.place(run.path), run.work,
              [one.run_id for one in beside.get(run, [run])])
        for run in {run.run_id: run for run in reversed(runs)}.values()
    ]  # fmt: skip
    known = json.loads((before / MARK).read_bytes()) if (before / MARK).is_file() else {}
    program = [_stamps(_OWN / room) for room in ("report", "site", "results")]
    made_by, made_of, anew = _digest([__version__, program]), {}, []
    for page in pages:
        bundle, inside, _ = page.path.partition(f"{ENDING}/")
        files = _stamps(Path(bundle + ENDING if inside else page.path))
        made_of[page.files[0]] = _digest([made_by, *page, files])
        there = [name for name in page.files if (before / name).is_file()]
        if known.get(page.files[0]) == made_of[page.files[0]] and there[:-1] == page.files[:-1]:
            for name in there:
                shutil.copyfile(before / name, new / name)
        else:
            anew.append(page)
    _write_pages(new, anew)
    (new / MARK).write_text(json.dumps(made_of), encoding="utf-8")
    return len(pages), len(anew)


def _write_pages(new: Path, pages: Sequence[_Page]) -> None:
    """Write the pages of some runs; of a record that cannot be read, what is wrong with it."""
    for page in pages:
        address = partial(Links.run, run_id=page.run_id)
        try:
            with reading.opened(page.path) as (record, _):
                (new / page.files[-1]).write_bytes(content(record))
                shown = partial(views.run_document, record, work=page.work, launches=page.launches)
                for lang in LANGUAGES:
                    _put(new, lang, address, shown)
        except RecordError as error:
            for lang in LANGUAGES:
                _put(new, lang, address, partial(views.error_page, error))


def _digest(value: object) -> str:
    return blake2b(json.dumps(value).encode(), digest_size=12).hexdigest()


def _stamps(place: Path) -> list[tuple[str, int, int]]:
    """Return what changes with a file, or with any of those in a folder."""
    files = sorted(place.rglob("*.*")) if place.is_dir() else [place]
    return [(str(x), (of := x.stat()).st_size, of.st_mtime_ns) for x in files if x.is_file()]
