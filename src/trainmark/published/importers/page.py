"""The facts that the rows of a page share, and the lines of its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from trainmark.record.work import Unread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.plan.reference import EvidenceLevel
    from trainmark.spec import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The facts that all rows of a file or a table share, until a row says something else.

    Args:
        file: as the user named it.
        form: form of the file: ``flagperf``, ``csv``, ``mlperf`` …
        device: product of the devices, as printed.
        devices: number of devices of all machines, if a heading or a fact counts them.
        unit: of figures, if the nearest heading has one: ``Speed (it/s)``; empty: none.
        section: the headings above the table, outermost first.
        is_inference: the headings say that nothing is trained.
        notes: added to each row.
    """

    file: str
    form: str
    model: str = ""
    framework: str = ""
    vendor: str | None = None
    device: str | None = None
    devices: int | None = None
    unit: str = ""
    precision: str | None = None
    section: str = ""
    is_inference: bool = False
    evidence: EvidenceLevel = "unverified"
    notes: tuple[Message, ...] = ()

    def make_unread(
        self,
        line: int,
        kind: Literal["file", "table", "row", "cell"],
        reason: Message,
        raw: str = "",
    ) -> Unread:
        """Return an entry for a part of this file that could not be read.

        Args:
            line: of the part in the file, from 1; 0: the whole file.
            kind: which part could not be read.
            reason: why it could not be read.
            raw: text of the part.
        """
        return Unread(file=self.file, line=line, kind=kind, reason=reason, raw=raw)

    def make_unread_file(self, reason: Message) -> Unread:
        """Return an entry for this whole file, which could not be read."""
        return self.make_unread(0, "file", reason)


class TableLine(NamedTuple):
    """A line of a table: its number in the file, its cells, its text.

    A reader that makes a table of something else gives the line of its headers the number 0.
    """

    number: int
    cells: Sequence[str]
    raw: str
