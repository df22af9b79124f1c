"""Runs of one rank by the real worker in the process of the test, without a launcher."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from support.fakes import launch_event, make_event, write_events
from trainmark.plan.plan import PLAN_FILE
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import resolve
from trainmark.rank import worker
from trainmark.rank.failure import describe_failure

if TYPE_CHECKING:
    from pathlib import Path


def run_rank(root: Path, case: str = "toy", *, overrides: dict[str, str], **request: Any) -> Path:
    """Run a case on the processor and return its run directory, whatever became of it.

    Args:
        root: where data and the run are written.
        overrides: values of fields of the recipe, as on the command line.
        request: further fields of ``RunRequest``.
    """
    run_dir = root / "run"
    run_request = RunRequest(case=case, overrides=overrides, device="cpu", **request)
    plan = resolve(run_request, generated_root=root / "data")
    run_dir.mkdir()
    plan_of_run = plan.model_copy(update={"run_dir": str(run_dir)})
    (run_dir / PLAN_FILE).write_text(plan_of_run.model_dump_json(), encoding="utf-8")
    rank = worker.RankReporter(run_dir, 0)
    rank.events.emit("start", pid=1)  # any id: nothing is sent to it
    launched_ns, started = worker.clock(), datetime.now(timezone.utc).isoformat(timespec="seconds")
    try:
        worker.run_rank(rank, run_dir, number=0, local_rank=0)
        rank.events.emit("end")
    except Exception as error:  # noqa: BLE001 - as the worker's own main
        # ``place``: the last part of the run that the rank entered.
        rank.events.emit("error", **describe_failure(error, rank.place))
    rank.events.close()
    # The events that a launcher would have written.
    exits = make_event("ranks_ended", worker.clock(), failures=[])
    launch = launch_event(launched_ns, started=started)
    write_events(run_dir / "events.launcher.jsonl", [launch, exits])
    return run_dir
