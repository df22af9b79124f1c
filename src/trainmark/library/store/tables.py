"""Tables of the index: a wide one with a row a result, and what many rows share.

Text is compared byte by byte in all databases, so that they give the same order and answers.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from trainmark.library.store.columns import KINDS
from trainmark.record.figures import FIGURES

METADATA = sa.MetaData()
_TEXT: Any = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_TYPES: dict[type, Any] = {str: _TEXT, int: sa.BigInteger(), float: sa.Double(), bool: sa.Boolean()}
# ``path`` is relative to the store's folder, or absolute; ``source`` is what it was added with,
# empty for the folder's own. ``kind`` is record, row (figures that others printed) or unread.
# ``label`` and ``note`` have a line a value. ``more`` has the figures of a case's own, the whole of
# a row of others, or why a file could not be read.
RUNS = sa.Table(
    "runs",
    METADATA,
    sa.Column("id", sa.Integer(), primary_key=True),
    *(sa.Column(name, _TEXT, index=name == "path") for name in ("source", "path", "kind")),
    *(sa.Column(name, sa.BigInteger()) for name in ("line", "bytes", "mtime_ns")),
    *(
        sa.Column(name, _TYPES[kind], index=name in ("run_id", "started_utc"))
        for name, kind in KINDS.items()
    ),
    sa.Column("world", sa.BigInteger()),
    *(sa.Column(name, _TEXT) for name in ("work", "configuration", "label", "note")),
    sa.Column("environment_id", sa.BigInteger()),
    *(sa.Column(name, sa.Double()) for name in FIGURES),
    sa.Column("more", sa.JSON()),
    # What lists count runs by; the kind last, or the order by time would not use its index.
    sa.Index("runs_case", "case", "device", "precision", "status", "kind"),
    sqlite_autoincrement=True,  # no id comes twice
)
# Lists of values by dotted names. Equal environments are stored once, by a digest of them.
ENVIRONMENTS = sa.Table(
    "environments",
    METADATA,
    sa.Column("id", sa.BigInteger(), primary_key=True, autoincrement=False),
    sa.Column("facts", sa.JSON()),
)
# The figures of cases' own.
FIGURE_NAMES = sa.Table(
    "figure_names",
    METADATA,
    *(sa.Column(name, _TEXT, primary_key=True) for name in ("name", "unit", "csv_column")),
)
# What was added from elsewhere, and the form of the index that it was last read into. It outlives
# the other tables, so its own form never changes.
SOURCES = sa.Table(
    "sources",
    sa.MetaData(),
    sa.Column("path", _TEXT, primary_key=True),
    sa.Column("form", _TEXT),
)
FORM_TABLE = sa.Table("form", METADATA, sa.Column("form", _TEXT, primary_key=True))
_MEANING = 1  # to be raised when columns that stay get other values
# An index of another form is made anew from the files.
FORM = sha256(
    "".join([str(_MEANING), *(str(CreateTable(x)) for x in METADATA.sorted_tables)]).encode()
).hexdigest()[:16]
