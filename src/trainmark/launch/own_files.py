"""Detect that files of a running run were deleted, and restore those of the launcher.

The launcher's files, written before the ranks started, are written again from memory, so that
a run whose folder was deleted still has a record. What the ranks measured is lost.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.data import json_documents
from trainmark.errors import LostRunError
from trainmark.plan.plan import PLAN_FILE, Plan
from trainmark.rank.events import LAUNCHER_FILE, EventWriter

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(slots=True)
class OwnFiles:
    """Plan and first event of a run, in its folder and in memory.

    Args:
        contents: the bytes of each file by its name.
    """

    run_id: str
    run_dir: Path
    events: EventWriter
    contents: dict[str, bytes]

    @classmethod
    def written(cls, run_id: str, run_dir: Path, events: EventWriter) -> OwnFiles:
        """Read back and keep in memory what was just written."""
        names = (PLAN_FILE, LAUNCHER_FILE)
        return cls(run_id, run_dir, events, {name: (run_dir / name).read_bytes() for name in names})

    def gone(self) -> bool:
        """Tell whether the launcher's events were deleted, as with the whole folder."""
        try:
            (self.run_dir / LAUNCHER_FILE).stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False  # a file system that is temporarily unreachable
        return False

    def lost(self) -> list[str]:
        """Return the names of the files that are missing or changed."""
        return [name for name, content in self.contents.items() if self._found(name) != content]

    def _found(self, name: str) -> bytes | None:
        try:
            return json_documents.read_bytes(self.run_dir / name)
        except (OSError, ValueError):
            return None

    def restore(self) -> None:
        """Write the files and their folder again; ``events`` continues in the new folder.

        Raises:
            LostRunError: another run is in the folder, or it cannot be created.
        """
        self.events.close()
        try:
            if self._another_run():
                raise self._no_record("another run is in its folder now")
            self.run_dir.mkdir(parents=True, exist_ok=True)
            for name, content in self.contents.items():
                path = self.run_dir / name
                path.unlink(missing_ok=True)  # a link there could lead to another file
                path.write_bytes(content)
            self.events = EventWriter(self.run_dir / LAUNCHER_FILE, time.perf_counter_ns)
        except OSError as error:
            raise self._no_record(f"it cannot be created again: {error.strerror}") from error

    def _another_run(self) -> bool:
        try:
            return Plan.read(self.run_dir).run_id != self.run_id
        except (OSError, ValueError):
            return False  # no plan, or a damaged one: not another run

    def _no_record(self, why: str) -> LostRunError:
        return LostRunError(
            f"the run's folder was deleted while it ran, and {why}; there is no record",
            where=str(self.run_dir),
            remedy="run it again, with another --out",
        )
