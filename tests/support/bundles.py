"""Passed runs as a launcher leaves them, each with its own id, and bundles of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from zlib import crc32

from support.fakes import GOLDEN, S, launch_event, make_event, rank_events, write_run
from trainmark.record import record, reduce
from trainmark.results import bundle

if TYPE_CHECKING:
    from pathlib import Path


def write_recorded_run(
    folder: Path, run_id: str, *, started: str = "2026-01-02T03:04:05+00:00"
) -> Path:
    """Write a run directory with a record that its evidence confirms.

    The plan is a stored one of the toy case, with another id. The times depend on the id.

    Args:
        started: when it was launched.
    """
    folder.mkdir(parents=True)
    # ``S`` is a second in nanoseconds; the events of the rank end 12 s after the launch.
    ranks_ended = make_event("ranks_ended", 13 * S, failures=[])
    launcher = _stretch_times([launch_event(started=started), ranks_ended], run_id)
    write_run(folder, launcher, _stretch_times(rank_events(), run_id))
    plan = json.loads((GOLDEN / "plan_toy.json").read_bytes())
    (folder / "plan.json").write_text(json.dumps(plan | {"run_id": run_id}, indent=2) + "\n")
    record.write_record(reduce.reduce(folder), folder)
    return folder


def _stretch_times(events: list[dict[str, Any]], run_id: str) -> list[dict[str, Any]]:
    """Return events with times stretched by a factor of 1 to 101 that the run's id decides.

    No two runs may take the same time to the last digit: a check would call one a copy.
    """
    thousandths = 1000 + crc32(run_id.encode()) % 100_000  # the factor, times 1000

    def lengthen(time_ns: Any) -> Any:
        if isinstance(time_ns, list):
            return [lengthen(duration) for duration in time_ns]
        assert time_ns % 1000 == 0  # else rounding would make a sum differ from its parts
        return time_ns * thousandths // 1000

    return [
        {
            # The time of the calendar stays as it is.
            name: lengthen(value) if name.endswith("_ns") and name != "unix_ns" else value
            for name, value in event.items()
        }
        for event in events
    ]


def write_bundle(folder: Path, *run_ids: str, name: str = "", **options: str) -> Path:
    """Write the bundle of runs of these ids in ``folder``, and return its file.

    Args:
        name: of the file, without its ending; empty: the first id.
        options: of ``write_recorded_run``.
    """
    file = folder / f"{name or run_ids[0]}.trainmark.zip"
    runs = [  # each a list of its launches, here of one
        [write_recorded_run(folder / f"{file.name}-{run_id}", run_id, **options)]
        for run_id in run_ids
    ]
    bundle.pack(runs, file)
    return file
