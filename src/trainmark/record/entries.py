"""How the entries of a plan file ended; shared by running and reporting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainmark.errors import EXIT_FAILED, EXIT_PASSED, EXIT_USAGE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trainmark.record.record import Record

State = Literal["passed", "kept", "failed", "skipped", "left", "to run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One entry of a plan file.

    Args:
        state: ``kept``: a record of the same work exists; ``skipped``: this machine cannot run
            it; ``left``: the series was stopped before it; ``to run``: in a dry run.
        reason: why it failed, was skipped or left, or what would run.
        run_dir: folder of its records; None if it was skipped.
        planned: number of launches.
        records: one per launch that has ended; empty if nothing ran.
        folders: of each record.
        fallen: folders of earlier attempts of the same work that did not pass.
    """

    name: str
    state: State
    reason: str | None = None
    run_dir: Path | None = None
    planned: int = 1
    records: tuple[Record, ...] = ()
    folders: tuple[Path, ...] = ()
    fallen: tuple[Path, ...] = ()


def exit_code(outcomes: Iterable[Outcome]) -> int:
    """Return 0 if all entries that could run passed, 1 if one did not, 2 if none could run."""
    states = {outcome.state for outcome in outcomes}
    if states & {"failed", "left"}:
        return EXIT_FAILED
    return EXIT_PASSED if states & {"passed", "kept", "to run"} else EXIT_USAGE
