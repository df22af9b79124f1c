"""Put into an index what words name: records of elsewhere, and rows that others printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.library.selection.runs import find_runs
from trainmark.library.selection.words import select
from trainmark.library.store.database import Database
from trainmark.library.store.entries import of_record, of_row, of_unread
from trainmark.library.store.index import Found, Index
from trainmark.record.record import RECORD_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence


def opened(where: str | None = None, *, rebuild: bool = False) -> tuple[Index, list[str]]:
    """Return the index of a store as its files are now, and sources that cannot be reached.

    Args:
        where: as ``Database`` takes it.
        rebuild: whether to read all records and rows again, of other sources too.
    """
    index, unreached = Index(Database(where, empty=rebuild)), []
    index.refresh()
    for source in index.sources(unread=True):
        if Path(source).exists():
            add(index, [source])
        elif rebuild and Path(source).parent.is_dir():
            index.keep(source, [])  # it is gone, not its disk
        else:
            unreached.append(source)
    return index, unreached


def add(index: Index, words: Sequence[str]) -> None:
    """Take in what ``words`` name, and drop what the index held of them and is gone.

    Raises:
        RecordError: a word names nothing that can be read.
    """
    for word in words:
        source = str(Path(word).resolve())
        if not Path(source).exists():  # else it would be shown as a file of the store
            raise RecordError("no such file or folder", where=word, remedy="name one that exists")
        if index.database.folder and Path(source).is_relative_to(index.database.folder.resolve()):
            continue  # it follows its own folder by itself
        runs = [path for launches in find_runs(Path(source)) for path in launches]
        if (runs[0] / RECORD_FILE).exists() or runs[0].name == RECORD_FILE:
            paths = [str(path) for path in runs]
            index.take(paths, source)
        else:
            found = _rows(source)
            index.put(found, source)
            paths = [item.path for item in found]
        index.keep(source, paths)


def _rows(source: str) -> list[Found]:
    """Return the rows that a word names, what could not be read, and records of a bundle."""
    named = select([source])
    records = zip(named.places, named.records, strict=True)
    found = [Found(place, of_record(record)) for place, record in records]
    found += [Found(str(Path(source) / x.file), of_row(x), line=x.line) for x in named.rows]
    found += [
        Found(str(Path(source) / x.file), of_unread(x.reason), line=x.line) for x in named.unread
    ]
    return found
