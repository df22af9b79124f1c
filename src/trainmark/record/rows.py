"""Figures that other programs or pages printed, one row a configuration, as they were read.

Owns the form of a row and of what could not be read. Units and names are those of a record's
figures, so that rows and records can be compared and audited by the same rules. Must not know
how the forms of others are read.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from trainmark.data.documents import Frozen
from trainmark.plan.reference import EvidenceLevel  # noqa: TC001 - pydantic reads it
from trainmark.record.shapes import Count, Number  # noqa: TC001 - likewise
from trainmark.spec import Message  # noqa: TC001 - likewise

FAILURES = ("run_not_successful", "run_not_converged")


class Reading(Frozen):
    """A figure of a row.

    Args:
        value: in ``unit``, which is the unit of the record's figure of that name; None: the text
            says that there is none, such as ``OOM`` or ``/``.
        raw: the text it was read from, unchanged.
    """

    value: Number | None
    unit: str
    raw: str


class Row(Frozen):
    """The figures of one configuration, with the place where they are printed.

    Args:
        file: as the user named it; in a folder, the folder's name and the path below it.
        line: the row's line in the file, from 1; 0: the file has no lines.
        table: line at which the row's table begins: rows of one table stand side by side.
        form: form of the file: ``flagperf``, ``perflog``, ``mlperf``, ``index``, ``csv`` …
        raw: the text of the row, unchanged.
        cells: the text of each column under its header, unchanged.
        configuration: as printed, ``A100单机8卡（1x8）``.
        case: name of the case of ours that is the same workload; None: none is known.
        changes: changed hyper-parameters by their printed name.
        data_origin: ``real`` or ``generated``, where the row tells it.
        metric: name of the quality among ``figures``.
        notes: what is odd about the row itself: a duplicate, a label that contradicts another.
    """

    file: str
    line: Count
    table: Count = 0
    form: str
    raw: str
    cells: dict[str, str] = Field({})
    configuration: str
    case: str | None = None
    model: str = ""
    framework: str = ""
    vendor: str | None = None
    device: str | None = None
    nnodes: PositiveInt | None = None
    nproc: PositiveInt | None = Field(default=None, description="devices of one node")
    precision: str | None = None
    data_origin: str | None = None
    changes: dict[str, str] = Field({})
    figures: dict[str, Reading]
    metric: str | None = None
    evidence: EvidenceLevel = "unverified"
    notes: list[Message] = Field([])

    def figure(self, name: str) -> float | None:
        """Return a figure's value; None if the row does not have it."""
        entry = self.figures.get(name)
        return None if entry is None else entry.value

    @property
    def failure(self) -> Message | None:
        """The note that the row itself says that it does not count; None: it says no such thing."""
        return next((note for note in self.notes if note.code in FAILURES), None)

    @property
    def world_size(self) -> int | None:
        """Devices over all nodes; None if unknown."""
        return None if self.nnodes is None or self.nproc is None else self.nnodes * self.nproc


class Unread(Frozen):
    """Something that could not be read, which is never dropped.

    Args:
        kind: ``file``, ``table``, ``row`` or ``cell``.
        reason: why, as a code with arguments.
    """

    file: str
    line: Count
    kind: Literal["file", "table", "row", "cell"]
    reason: Message
    raw: str = ""
