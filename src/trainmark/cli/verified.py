"""Read records for showing: held against their evidence, once a command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import typer

from trainmark.cli.output import say
from trainmark.errors import EXIT_FAILED

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.results.record import Record


@dataclass(slots=True)
class Reader:
    """Read records and remember which of them their evidence contradicts.

    Args:
        verify: whether to look at the evidence at all.
    """

    verify: bool = True
    refuted: list[Path] = field(default_factory=list)

    def read(self, path: Path) -> Record:
        """Return the record of a run directory or a file, with its evidence in its trust.

        Raises:
            RecordError: no such file, or not a record of this schema.
        """
        from trainmark.results import record, trust
        from trainmark.results.verify import verify

        found = record.read(path)
        if not self.verify:
            return found
        findings = verify(found, path if path.is_dir() else path.parent)
        found = trust.with_findings(found, findings)
        if trust.refuted(found.trust):
            self.refuted.append(path)
        return found

    def end(self) -> None:
        """Name the records that do not agree with their evidence, and fail."""
        for path in self.refuted:
            say(f"trainmark: {path}: the record does not agree with its evidence", err=True)
        if self.refuted:
            raise typer.Exit(EXIT_FAILED)
