"""Words that name results, as ``report``, ``compare`` and ``audit`` take them.

Owns which kinds of words there are: a run directory, a ``record.json``, a folder of runs, a bundle;
files and folders of others' results; ``reference:CASE``; ``store:QUERY``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.library.bundle.archive import ENDING, unpacked
from trainmark.library.selection.runs import find_runs, newest_run
from trainmark.plan.reference import REFERENCE
from trainmark.record import record, trust
from trainmark.record.record import RECORD_FILE
from trainmark.record.verify import checked

STORE = "store:"

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record
    from trainmark.record.rows import Row, Unread


@dataclass(slots=True)
class Selection:
    """What words named.

    Args:
        records: one a launch, checked once: their trust says what contradicts them.
        places: the path each record was read from.
        rows: figures that others published, with what could not be read in ``unread``.
    """

    records: list[Record] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)

    @property
    def refuted(self) -> list[Path]:
        """Return the paths of the records that are contradicted."""
        both = zip(self.records, self.places, strict=True)
        return [Path(place) for record, place in both if trust.refuted(record.trust)]

    @property
    def folders(self) -> list[Path | None]:
        """Return the run directory of each record; None where it is in a bundle."""
        paths = [Path(place) for place in self.places]
        found = [path.parent if path.is_file() else path for path in paths]
        return [path if path.is_dir() else None for path in found]

    def add(self, path: Path, place: str, *, verify: bool) -> None:
        """Read a record, and check it unless ``verify`` is false.

        Raises:
            RecordError: no such file, or not a record of this schema.
        """
        found = record.read(path)
        folder = path if path.is_dir() else path.parent
        self.records.append(checked(found, folder) if verify else found)
        self.places.append(place)


def select(words: Sequence[str], *, verify: bool = True, rows: bool = True) -> Selection:
    """Return what ``words`` name, in their order; without any, the newest run under ``./runs``.

    Args:
        verify: whether to compare records with their evidence.
        rows: whether words may name figures of others; otherwise only records are read.

    Raises:
        RecordError: a word names nothing that can be read.
        UsageError: ``reference:CASE`` names no case, or ``store:QUERY`` is not one.
    """
    found = Selection()
    for word in words or [str(newest_run())]:
        if word.startswith(STORE):
            _add_stored(found, word.removeprefix(STORE), verify=verify)
        elif word.endswith(ENDING):
            _add_bundle(found, Path(word), verify=verify)
        elif word.startswith(REFERENCE):
            _add_references(found, word, rows=rows)
        else:
            launches = [launch for run in find_runs(Path(word)) for launch in run]
            if not (rows and launches == [Path(word)] and _imported(Path(word), found)):
                for launch in launches:
                    found.add(launch, str(launch), verify=verify)
    return found


def _add_stored(found: Selection, query: str, *, verify: bool) -> None:
    """Add what an index finds, the oldest first: ``[STORE?]FILTERS``, records from their files."""
    from trainmark.library.store.database import Database
    from trainmark.library.store.index import Index
    from trainmark.library.store.query import listing
    from trainmark.record.rows import Row

    first, *rest = query.split() or [""]
    store, _, before = first.rpartition("?")
    index = Index(Database(store or None))
    index.refresh()
    filters = [word for word in (before, *rest) if word]
    columns = ("kind", "path", "more")
    listed = listing(index.database, filters, columns=columns, sort="started")
    for kind, path, more in listed.rows:
        bundle, inside, place = path.partition(f"{ENDING}/")
        if kind == "row":
            found.rows.append(Row.model_validate(more["row"]))
        elif inside:
            _add_bundle(found, Path(bundle + ENDING), only=place, verify=verify)
        else:
            found.add(Path(path), path, verify=verify)


def _add_bundle(found: Selection, path: Path, *, verify: bool, only: str | None = None) -> None:
    """Add the records of a bundle whose files agree with its manifest, all or one launch's."""
    with unpacked(path) as bundle:
        for place in bundle.launches if only is None else [only]:
            found.add(bundle.folder / place, str(path / place), verify=verify)


def _add_references(found: Selection, word: str, *, rows: bool) -> None:
    """Add the published rows of a case."""
    from trainmark.library.importers.table import references
    from trainmark.record.rows import Row

    if not rows:
        remedy = "name runs; compare and audit take published rows"
        raise RecordError("published rows, and no record", where=word, remedy=remedy)
    for entry in references(word.removeprefix(REFERENCE)):
        (found.rows if isinstance(entry, Row) else found.unread).append(entry)  # type: ignore[arg-type]


def _imported(path: Path, found: Selection) -> bool:
    """Add the rows that a file or folder holds, if it holds any and no record of ours."""
    from trainmark.library.importers import files
    from trainmark.record.messages import render

    if path.name == RECORD_FILE or (path / RECORD_FILE).exists() or not path.exists():
        return False
    imported = files.read([path])
    if not imported.rows:
        if path.is_dir() or path.suffix == ".json" or not imported.unread:
            return False  # reading it as a record says why it is none
        first, remedy = imported.unread[0], "`trainmark import` lists all of it"
        why, where = render(first.reason, "en"), f"{first.file}:{first.line}"
        raise RecordError(why, where=where, remedy=remedy)
    found.rows += imported.rows
    found.unread += imported.unread
    return True
