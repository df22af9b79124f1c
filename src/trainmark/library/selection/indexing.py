"""Put into an index what words name: records of elsewhere, and rows that others printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.library.selection.words import select
from trainmark.library.store.database import Database
from trainmark.library.store.index import Index, of_record, of_row, of_unread
from trainmark.record.rows import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.rows import Unread


def opened(where: str | None = None, *, rebuild: bool = False) -> tuple[Index, list[str]]:
    """Return the index of a store as its files are now, and sources that cannot be reached.

    Args:
        where: as ``Database`` takes it.
        rebuild: whether to read all records and rows again, of other sources too.
    """
    index = Index(Database(where, empty=rebuild))
    index.refresh()
    unreached = []
    for source in index.sources(unread=True):
        try:
            add(index, [source])
        except RecordError:  # its disk is not there, it is gone, or it cannot be read any more
            unreached.append(source)
            if rebuild and Path(source).parent.is_dir() and not Path(source).exists():
                index.keep(unreached.pop(), [])
    return index, unreached


def add(index: Index, words: Sequence[str]) -> None:
    """Take in what ``words`` name, and drop what the index held of them and is gone.

    Raises:
        RecordError: a word names nothing that can be read.
    """
    for word in words:
        source = str(Path(word).resolve())
        if index.database.folder and Path(source).is_relative_to(index.database.folder.resolve()):
            continue  # it follows its own folder by itself
        named = select([source])
        found = [
            of_record(record) | {"path": place}
            for record, place in zip(named.records, named.places, strict=True)
        ]
        entries: list[Row | Unread] = [*named.rows, *named.unread]
        for entry in entries:
            made = of_row(entry) if isinstance(entry, Row) else of_unread(entry.reason)
            found.append(made | {"path": str(Path(source) / entry.file), "line": entry.line})
        index.put(found, source)
        index.keep(source, {made["path"] for made in found})
