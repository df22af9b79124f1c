"""Tables of the index.

Text is compared byte by byte in all databases, so that they give the same order and answers.
``runs`` has a row a record, and one a row that others printed; its columns that are not named
here are those of ``report.exports.tables``. A change needs a revision in ``migrations/versions``.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from trainmark.pages.exports.tables import KINDS

HEAD = "0002"  # the newest revision in ``migrations/versions``
METADATA = sa.MetaData()
_TYPES: dict[str, Any] = {
    "text": sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql"),
    "whole": sa.BigInteger(),
    "number": sa.Double(),
    "truth": sa.Boolean(),
    "bytes": sa.LargeBinary(),
}
_KINDS = {str: "text", int: "whole", float: "number", bool: "truth"}


def _table(name: str, columns: str, *indexes: str, **options: Any) -> sa.Table:
    """Return a table of columns as ``name:type``, those of its key as ``name*type``.

    Args:
        indexes: the columns of each; it is called by the first.
    """
    made = []
    for word in columns.split():
        key = "*" in word
        column, _, kind = word.replace("*", ":").partition(":")
        made.append(sa.Column(column, _TYPES[kind], primary_key=key, nullable=not key))
        if kind == "whole" and key:
            made[-1].autoincrement = False
    by = (sa.Index(f"{name}_{words.split()[0]}", *words.split()) for words in indexes)
    return sa.Table(name, METADATA, *made, *by, **options)


# ``path`` is relative to the store's folder, or absolute; ``source`` is what it was added with,
# empty for the folder's own. ``work`` is a digest of what makes two launches the same work.
# Of a row: its line, its configuration as printed, and the whole of it as JSON.
RUNS = _table(
    "runs",
    "id*whole source:text path:text line:whole kind:text "
    + " ".join(f"{name}:{_KINDS[kind]}" for name, kind in KINDS.items())
    + " world:whole work:text configuration:text environment_id:whole bytes:whole mtime_ns:whole"
    " document:text",
    "path",
    "started_utc",
    "run_id",
    # What lists count runs by. The kind last: begun with it, the order by time would go unused.
    "case device precision status kind",
)
FIGURE_NAMES = _table("figure_names", "id*whole name:text unit:text csv_column:text")
# All runs' values of a figure lie together, so that a filter reads only those.
FIGURES = _table(
    "figures", "name_id*whole run_id*whole value:number", "run_id", sqlite_with_rowid=False
)
# Equal environments are stored once: the id is a digest of the content.
ENVIRONMENT = _table(
    "environment",
    "environment_id*whole place*whole name:text text:text number:number",
    sqlite_with_rowid=False,
)
SERIES = _table("series", "run_id*whole steps:whole reduced:bytes")
# Labels, and codes of notes and findings.
MARKS = _table("marks", "run_id:whole kind:text value:text", "run_id")
UNREAD = _table(
    "unread",
    "source:text path:text line:whole kind:text reason:text bytes:whole mtime_ns:whole",
    "path",
)
# Folders that hold no record themselves, as they were when they were read last.
FOLDERS = _table("folders", "path*text mtime_ns:whole")
OF_A_RUN = (FIGURES, SERIES, MARKS)
