"""The published rows that a case ships, read as the cells of pages are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark import cases
from trainmark.library.importers import table
from trainmark.library.importers.cells import columns
from trainmark.plan import reference
from trainmark.plan.reference import REFERENCE, REFERENCE_FILE
from trainmark.record.rows import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainmark.record.rows import Unread

_HEADER = "[[reference]]"


def read(case: str) -> Iterator[Row | Unread]:
    """Yield each row of the ``reference.toml`` of ``case``, with what of it cannot be read.

    Raises:
        UsageError: no such case.
        RecordError: its file is not valid.
    """
    name = cases.load(case).name
    found = reference.of_case(name)
    known = columns(["configuration", *found.columns], unknown="quality")
    path = cases.folder(name) / REFERENCE_FILE
    lines = path.read_text(encoding="utf-8").splitlines() if found.rows else []
    starts = [number for number, line in enumerate(lines, 1) if line.strip() == _HEADER]
    for row, line in zip(found.rows, starts, strict=True):
        page = table.Page(
            file=f"{REFERENCE}{name}",
            form="reference",
            model=name,
            framework=cases.load(name).framework,
            device=row.device,
            precision=row.precision,
            evidence=row.source.evidence,
        )
        printed = [row.configuration, *row.cells.values()]
        yield from table.row(printed, known, page, line, table=0, raw=" | ".join(printed))


def published(names: Iterable[str]) -> Iterator[Row]:
    """Yield the published rows of those cases that are here, each case's once."""
    here = cases.names()
    for name in dict.fromkeys(names):
        if name in here:
            yield from (one for one in read(name) if isinstance(one, Row))
