"""Read the published results that cases ship as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark import cases
from trainmark.plan import reference
from trainmark.published.importers.page import Page, TableLine
from trainmark.published.importers.table import read_table
from trainmark.record.work import Row, StatedWork

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def read_references(case: str) -> Iterator[Row]:
    """Yield each row of the ``reference.toml`` of ``case``; a row's line is its number, from 1.

    This file has results to compare with, as printed under their headers, and facts about the work
    that the print does not state.

    Raises:
        UsageError: no such case.
        RecordError: its file is not valid.
    """
    loaded = cases.load(case)  # ``case`` may be an alias
    references = reference.read_references(loaded.name)
    # 0: the file has no line of headers.
    head = TableLine(number=0, cells=["configuration", *references.columns], raw="")
    for number, entry in enumerate(references.rows, 1):
        page = Page(
            file=f"{reference.REFERENCE}{loaded.name}",  # `reference:gpt`, as a user names it
            form="reference",
            model=loaded.name,
            framework=loaded.framework,
            device=entry.device,
            precision=entry.precision,
            evidence=entry.source.evidence,  # its level: `A`, `B`, `C` or `unverified`
        )
        stated = StatedWork(  # what the file says of a row besides its printed cells
            parameters=references.parameters,
            seq_length=references.seq_length,
            micro_batch_size=entry.micro_batch_size,
            train_samples=references.samples_per_pass,  # rows of the data set
            precision=entry.precision,
            sample_count=entry.sample_count,  # how often the throughput counts each sample
        )
        printed = [entry.configuration, *entry.cells.values()]
        line = TableLine(number, printed, " | ".join(printed))
        # A column with an unknown header is a quality of the case: its metric is the header.
        for row in read_table(head, [line], page, unknown_role="quality"):
            if isinstance(row, Row):  # else a cell that cannot be read; shipped rows have none
                yield row.model_copy(update={"stated": stated})


def read_published(names: Iterable[str]) -> Iterator[Row]:
    """Yield the published rows of the installed cases among ``names``, each case only once."""
    installed = cases.list_names()
    unique_names = dict.fromkeys(names)  # in the order of ``names``
    for name in unique_names:
        if name in installed:
            yield from read_references(name)
