"""The end of a plan file: a row an entry for people, a document for programs."""

from __future__ import annotations

import json
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.text import Text

from trainmark.report import cells
from trainmark.report.tables import Table
from trainmark.report.terminal import Screen, rich_table
from trainmark.results.readings import final_loss, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trainmark.results.entries import Outcome
    from trainmark.results.record import Record

_HEADERS = ("run", "status", "final_result", "token/p/s", "loss", "mem")


def series_table(outcomes: Sequence[Outcome], *, screen: Screen | None = None) -> str:
    """Return a table with a row an entry, then each entry's reason and folder.

    Figures are those of runs that passed, over several launches their median; ``/`` where
    there is none. No line is wider than the screen, but for a folder.
    """
    screen = screen or Screen.of_stdout()
    console = screen.console()
    console.print(rich_table(Table(_HEADERS, tuple(map(_row, outcomes))), screen))
    console.print()
    for outcome in outcomes:
        if outcome.reason:
            line = f"{outcome.name}: {outcome.state}: {outcome.reason}"
            console.print(Text(cells.clean(line)))
        if outcome.run_dir is not None:
            place = Text(cells.clean(f"{outcome.name}: {outcome.run_dir}"))
            console.print(place, no_wrap=True, crop=False, overflow="ignore")
    return screen.text(console)


def series_json(
    outcomes: Sequence[Outcome], *, name: str, exit_code: int, plans: Sequence[dict[str, Any]] = ()
) -> str:
    """Return all outcomes as one JSON document; ``plans`` are added in a dry run."""
    document: dict[str, Any] = {
        "plan": name,
        "exit_code": exit_code,
        "runs": [_entry(outcome) for outcome in outcomes],
    }
    if plans:
        document["plans"] = list(plans)
    return json.dumps(document, ensure_ascii=False)


def _row(outcome: Outcome) -> tuple[str, ...]:
    result = _over(outcome, lambda record: value_of(record, "final_result"))
    loss = _over(outcome, final_loss)
    return (
        outcome.name,
        outcome.state,
        cells.NOTHING if result is None else f"{cells.number(result)} {_unit(outcome)}",
        cells.number(_over(outcome, lambda record: value_of(record, "token/p/s"))),
        cells.NOTHING if loss is None else f"{loss:.3f}",
        cells.memory(
            _over(outcome, lambda record: value_of(record, "mem")),
            _over(outcome, lambda record: value_of(record, "mem_total")),
        ),
    )


def _entry(outcome: Outcome) -> dict[str, Any]:
    result = _over(outcome, lambda record: value_of(record, "final_result"))
    return {
        "name": outcome.name,
        "status": outcome.state,
        "reason": outcome.reason,
        "run_dir": _text(outcome.run_dir),
        "run_ids": [record.run_id for record in outcome.records],
        "statuses": [record.status for record in outcome.records],
        "final_result": result,
        "final_result_unit": None if result is None else _unit(outcome),
        "tokens_per_s_per_device": _over(outcome, lambda record: value_of(record, "token/p/s")),
        "loss": _over(outcome, final_loss),
        "mem_bytes": _over(outcome, lambda record: value_of(record, "mem")),
    }


def _over(outcome: Outcome, read: Callable[[Record], float | None]) -> float | None:
    """Return the median over an entry's launches; none unless all of them passed."""
    if outcome.state not in ("passed", "kept"):
        return None
    values = [value for record in outcome.records if (value := read(record)) is not None]
    return median(values) if values else None


def _unit(outcome: Outcome) -> str:
    return outcome.records[0].figures["final_result"].unit


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
