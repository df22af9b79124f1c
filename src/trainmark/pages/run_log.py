"""A run as PerfLog or ``:::MLLOG`` lines, in the order of its events; ``run_log.toml`` has them.

Owns which events of rank 0 become which moments, and their wall-clock times. A step line stands at
the end of a window: nothing is synchronised inside one, so no other host time was measured. No
MLPerf submission: programs that read such logs can parse it.
"""

from __future__ import annotations

import json
import tomllib
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import cases
from trainmark.errors import RecordError
from trainmark.library.store.columns import COLUMNS
from trainmark.rank.events import LAUNCHER_FILE, EventFile, any_event, node_file, rank_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.record.record import Record

LINES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def to_perflog(record: Record, folder: Path) -> str:
    """Return the PerfLog lines of a run whose events are in ``folder``; raises as ``moments``."""
    return _lines(LINES["perflog"], record, folder)


def to_mlperf(record: Record, folder: Path) -> str:
    """Return the MLLOG lines of a run whose events are in ``folder``; raises as ``moments``.

    A case that MLPerf has too adds the keys of its ruleset.
    """
    if record.plan.resumed:
        raise RecordError(
            "goes on from a checkpoint", where=record.run_id,
            rule="an MLPerf log has the whole training between run_start and run_stop",
            remedy="export the log of a run that was not interrupted, or --to perflog",
        )  # fmt: skip
    lines, case = LINES["mlperf"], record.plan.case
    if case in cases.names() and (ruleset := cases.load(case).mlperf):
        own = ruleset(record.plan.recipe)
        entries = [{"key": key, "value": value} for key, value in own.items()]
        lines = {**lines, "launch": [*lines["launch"], *entries]}
    return _lines(lines, record, folder)


def _lines(lines: dict[str, Any], record: Record, folder: Path) -> str:
    made = (
        _filled(lines["every"] | entry, values)
        for kind, values in moments(record, folder)
        for entry in lines.get(kind, ())
    )
    return "".join(f"{lines['marker']} {json.dumps(one, allow_nan=False)}\n" for one in made)


def _filled(part: Any, values: dict[str, Any]) -> Any:
    """Return a line with the values that it names; null for one that there is not."""
    if isinstance(part, dict):
        metric = values["quality_metric"]
        return {key.replace("<metric>", metric): _filled(x, values) for key, x in part.items()}
    named = isinstance(part, str) and part.startswith("$")
    return values.get(part[1:]) if named else part


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file, if it exists, each with its ``file`` and ``lineno``."""
    if path.exists():
        for number, event in enumerate(EventFile(path, any_event), 1):
            yield event | {"file": path.name, "lineno": number}


def moments(record: Record, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what rank 0 did, in its order: the kind of a moment, and values by name.

    Values are of the run, the event's own, and of the moment: ``time_ms`` since 1970, ``epoch``
    from 0, ``step`` and ``trained``: optimizer steps and samples of all ranks until then, ``loss``
    of that step.

    Raises:
        RecordError: the events are not in ``folder``.
    """
    # With nodes, rank 0 is on the first, whose clock need not be the launcher's.
    files = (folder / node_file(0), folder / LAUNCHER_FILE)
    starts = (event for file in files for event in _events(file) if event["event"] == "launch")
    launch = next(starts, None)
    if launch is None:
        rule = "a log is written from a record and the events beside it, which have the times"
        remedy = "name the run directory"
        raise RecordError("no events there", where=str(folder), rule=rule, remedy=remedy)
    of_run, shift_ns = _of_run(record), launch["unix_ns"] - launch["t_ns"]
    trained, losses = [0, *accumulate(record.steps.samples)], [None, *record.steps.loss]
    epoch, step, last_ns, path = -1, 0, 0, folder / rank_file(0)
    last = {"event": "no more", "t_ns": 0, "file": path.name, "lineno": 0}
    for event in chain([launch], _events(path), [last]):
        for kind, t_ns in _kinds(event, epoch, last_ns):
            epoch = event["epoch"] if kind == "epoch" else epoch
            step += len(event["step_ns"]) if kind == "window_end" else 0
            last_ns, time_ms = t_ns, (t_ns + shift_ns) // 1_000_000
            so_far = {"trained": trained[step], "loss": losses[step], "step": step}
            place = {"epoch": max(epoch, 0), "next_step": step + 1, "time_ms": time_ms}
            yield kind, event | of_run | so_far | place
        epoch = -1 if event["event"] == "trained" else epoch


def _kinds(event: dict[str, Any], epoch: int, last_ns: int) -> list[tuple[str, int]]:
    """Return which moments an event has, and when; ``epoch`` is open, -1: none."""
    start_ns, end_ns = event.get("start_ns", 0), event.get("end_ns", event["t_ns"])
    closed = [("epoch_end", last_ns)] if epoch >= 0 else []
    match event["event"]:
        case "launch" | "end" as kind:
            return [(kind, end_ns)]
        case "window":
            ready = [] if closed else [("ready", start_ns)]
            begun = [] if event["epoch"] == epoch else [*closed, *ready, ("epoch", start_ns)]
            return [*begun, ("window", start_ns), ("window_end", end_ns)]
        case "evaluate":
            return [("evaluate", start_ns), ("evaluated", end_ns)]
        case "trained":
            return [*closed, ("trained", end_ns)]
        case "no more" if closed:
            return [("broken", last_ns)]
    return []


def _of_run(record: Record) -> dict[str, Any]:
    """Return what a log tells of the run, of its recipe, and its figures, by name."""
    recipe, data = record.plan.recipe, record.plan.data
    planned = recipe["micro_batch_size"] * recipe["grad_accum_steps"] * record.plan.world_size
    return {
        **{name: column(record) for name, column in COLUMNS.items()},
        **{f"recipe/{name}": value for name, value in recipe.items()},
        **{f"figure/{name}": entry.value for name, entry in record.figures.items()},
        "train_samples": data.train_samples,
        "eval_samples": data.eval_samples,
        # What a step trained is known best from steps: some ranks train one batch together.
        "global_batch_size": max(record.steps.samples, default=planned),
        "ended": "success" if record.passed else "aborted",
    }
