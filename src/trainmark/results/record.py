"""The record of a run: its schema, and how it is built from the events alone.

A record is immutable once written and written atomically. It never reads log text and
never asks a process anything: what is not in the events is not in the record.
"""

from __future__ import annotations

import json
import os
from hashlib import file_digest
from math import isnan, sqrt
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt
from pydantic_core import to_json

from trainmark import __version__
from trainmark.errors import RecordError
from trainmark.measure import figures as figures_of
from trainmark.measure.stats import STEADY_DRIFT, drift
from trainmark.measure.timeline import RunTimeline, read_run
from trainmark.plan import PLAN_FILE, Frozen, Plan
from trainmark.results import cause as cause_of
from trainmark.results import environment
from trainmark.results.cause import Status  # noqa: TC001 - pydantic reads it at run time

RECORD_FILE = "record.json"


class Cause(Frozen):
    """Why a run did not pass."""

    kind: str = Field(description="error, signal, exit, oom, diverged, disk_full, timeout, …")
    message: str
    rank: int | None = None
    place: str | None = Field(None, description="the span or phase the rank was in")
    type: str | None = Field(None, description="the exception's type")
    signal: str | None = None
    exit_code: int | None = None
    traceback: str | None = None
    stacks: list[str] = Field([], description="files with the ranks' stacks, beside the record")


class Suite(Frozen):
    """The program that measured."""

    name: Literal["trainmark"] = "trainmark"
    version: str


class RunCounts(Frozen):
    """What was really trained, added up over all ranks; steps are optimizer steps."""

    samples: NonNegativeInt
    sequences: NonNegativeInt
    tokens: NonNegativeInt = Field(description="without padding")
    tokens_padded: NonNegativeInt
    steps: NonNegativeInt
    micro_batches: NonNegativeInt
    epochs: NonNegativeInt = Field(description="begun; the last may have ended early")
    skipped_steps: NonNegativeInt | None = Field(description="dropped by the loss scaler")


class RankEntry(Frozen):
    """One rank: how far it came, its counts and its spans."""

    rank: int
    pid: int | None
    finished: bool
    steps: NonNegativeInt
    samples: NonNegativeInt
    wall_ns: int | None
    spans_ns: dict[str, int]
    used_bytes: int | None
    malformed_lines: NonNegativeInt
    torn_last_line: bool


class Spans(Frozen):
    """The wall time of the rank that ended last, taken apart without a rest."""

    rank: int | None
    wall_ns: int | None
    by_name_ns: dict[str, int]
    train_parts_ns: dict[str, int]
    reconciled: float | None = Field(description="share of wall time that has a name, 0 to 1")


class Steps(Frozen):
    """Step by step: slowest rank's time, mean loss over ranks, samples over ranks."""

    warmup: NonNegativeInt
    time_ns: list[int]
    loss: list[float | None]
    samples: list[int]
    drift: float | None = Field(
        description="last third's median step time over the first's, less 1"
    )
    steady: bool | None


class FigureEntry(Frozen):
    """A figure, or null with the reason."""

    value: float | None
    unit: str
    reason: str | None = None
    note: str | None = None


class QualityPoint(Frozen):
    """One evaluation."""

    epoch: int
    step: int
    value: float | None
    samples: int
    detail: dict[str, float | None]


class Quality(Frozen):
    """The quality the run ended with, against its target."""

    metric: str
    value: float | None
    target: float | None
    reached: bool | None
    best_possible: float | None
    eval_samples: int | None
    history: list[QualityPoint]
    reason: str | None = None


class Evidence(Frozen):
    """A file beside the record that it was computed from."""

    name: str
    bytes: int
    sha256: str


class Record(Frozen):
    """One launch of one case: everything measured, and what it was measured on."""

    schema_version: Literal[1] = 1
    suite: Suite
    run_id: str
    case_key: str
    started: str = Field(description="UTC, ISO 8601")
    status: Status
    cause: Cause | None
    plan: Plan
    argv: list[str]
    environment: dict[str, Any]
    counts: RunCounts
    spans: Spans
    ranks: list[RankEntry]
    steps: Steps
    figures: dict[str, FigureEntry]
    quality: Quality
    fix_hp: dict[str, Any]
    extra: dict[str, Any]
    labels: list[str]
    notes: list[str]
    evidence: list[Evidence]

    @property
    def passed(self) -> bool:
        """Tell whether the run did what its recipe asks."""
        return self.status == "passed"

    def figure(self, name: str) -> float | None:
        """Return a figure's value."""
        return self.figures[name].value


def schema() -> dict[str, Any]:
    """Return the JSON Schema of ``record.json``."""
    return Record.model_json_schema(mode="serialization")


def _steps(timeline: RunTimeline) -> Steps:
    series = timeline.series
    warmup = timeline.warmup_steps
    moved = drift(series.step_ns[warmup:])
    return Steps(
        warmup=warmup,
        time_ns=series.step_ns.tolist(),
        loss=[None if isnan(value) else value for value in series.loss.tolist()],
        samples=series.samples.tolist(),
        drift=moved,
        steady=None if moved is None else abs(moved) <= STEADY_DRIFT,
    )


def _spans(timeline: RunTimeline) -> Spans:
    ended = [rank for rank in timeline.ranks if rank.last_ns is not None]
    if not ended:
        return Spans(rank=None, wall_ns=None, by_name_ns={}, train_parts_ns={}, reconciled=None)
    last = max(ended, key=lambda rank: rank.last_ns or 0)
    spans = last.all_spans_ns(timeline.launch_ns)
    wall = last.wall_ns(timeline.launch_ns)
    return Spans(
        rank=last.rank,
        wall_ns=wall,
        by_name_ns=spans,
        train_parts_ns=last.train_parts_ns(),
        reconciled=1 - spans["other"] / wall if wall else None,
    )


def _ranks(timeline: RunTimeline) -> list[RankEntry]:
    return [
        RankEntry(
            rank=rank.rank,
            pid=rank.pid,
            finished=rank.end_ns is not None,
            steps=rank.steps,
            samples=rank.counts.samples,
            wall_ns=rank.wall_ns(timeline.launch_ns),
            spans_ns=rank.all_spans_ns(timeline.launch_ns),
            used_bytes=rank.used_bytes,
            malformed_lines=rank.malformed_lines,
            torn_last_line=rank.torn,
        )
        for rank in timeline.ranks
    ]


def _quality(plan: Plan, timeline: RunTimeline) -> Quality:
    case = plan.load_case()
    target = case.target(plan.load_recipe())
    history = [
        QualityPoint(
            epoch=event["epoch"],
            step=event["step"],
            value=event["value"],
            samples=event["samples"],
            detail=event["detail"],
        )
        for event in timeline.ranks[0].evaluations
    ]
    value = history[-1].value if history else None
    reason = None
    if not history:
        asked = plan.recipe["eval_every_epochs"] is not None
        reason = "the run ended before an evaluation" if asked else "this recipe evaluates nothing"
    return Quality(
        metric=case.metric,
        value=value,
        target=None if target is None else target.value,
        reached=None if target is None else timeline.ranks[0].target_reached,
        best_possible=plan.data.best_quality,
        eval_samples=history[-1].samples if history else None,
        history=history,
        reason=reason,
    )


def _counts(timeline: RunTimeline) -> RunCounts:
    total = timeline.counts
    skipped = timeline.ranks[0].result.get("job", {}).get("skipped_steps")
    return RunCounts(
        **total.as_dict(),
        steps=max(rank.steps for rank in timeline.ranks),
        micro_batches=sum(rank.micro_batches for rank in timeline.ranks),
        epochs=max(rank.epochs for rank in timeline.ranks),
        skipped_steps=skipped,
    )


def _notes(plan: Plan, steps: Steps, quality: Quality, timeline: RunTimeline) -> list[str]:
    """Return what a careful reader should be told beside the figures."""
    notes = []
    if steps.steady is False:
        assert steps.drift is not None
        notes.append(
            f"not steady: median step time moved by {100 * steps.drift:+.1f}% "
            "between the first and the last third of the measured steps"
        )
    if steps.steady is None:
        notes.append("too few steps after the warm-up to tell whether they were steady")
    best, value = quality.best_possible, quality.value
    if best is not None and value is not None and value > best + _sampling_slack(quality):
        notes.append(
            f"{quality.metric} {value:.4f} is above {best:.4f}, the best any model can score "
            "on this data: labels may leak"
        )
    if "oversubscribed" in plan.labels:
        notes.append("more ranks than cores: throughput says little about the machine")
    for rank in timeline.ranks:
        if rank.malformed_lines:
            notes.append(f"rank {rank.rank}: {rank.malformed_lines} malformed event line(s)")
    return notes


def _sampling_slack(quality: Quality) -> float:
    """Return three standard errors of an accuracy on the evaluated rows."""
    best = quality.best_possible or 0.0
    return 3 * sqrt(best * (1 - best) / max(quality.eval_samples or 1, 1))


def _evidence(run_dir: Path) -> list[Evidence]:
    entries = []
    for path in sorted([*run_dir.glob("events.*.jsonl"), run_dir / PLAN_FILE]):
        with path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        entries.append(Evidence(name=path.name, bytes=path.stat().st_size, sha256=digest))
    return entries


def _impossible(entries: dict[str, FigureEntry]) -> cause_of.Ending | None:
    mfu = entries["MFU"].value
    if mfu is not None and mfu > 100:
        message = f"MFU {mfu:.1f}% is above 100%: a count, a time or the peak is wrong"
        return cause_of.Ending("failed", {"kind": "impossible_figure", "message": message})
    return None


def build(run_dir: Path) -> Record:
    """Compute the record of ``run_dir`` from its plan and events.

    Raises:
        RecordError: no plan or no launcher events there.
    """
    try:
        plan = Plan.read(run_dir)
        timeline = read_run(run_dir, plan.world_size)
    except (OSError, StopIteration, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            "not a run directory", where=str(run_dir), rule=f"it needs {PLAN_FILE} and events"
        ) from error
    target = plan.load_case().target(plan.load_recipe())
    ending = cause_of.find(timeline, target)
    computed = figures_of.compute(
        timeline,
        precision=plan.recipe["precision"],
        recipe_warmup_steps=plan.recipe["warmup_steps"],
    )
    entries = {
        name: FigureEntry(value=item.value, unit=item.unit, reason=item.reason, note=item.note)
        for name, item in computed.items()
    }
    if ending.status in ("passed", "target_missed"):
        ending = _impossible(entries) or ending
    steps, quality = _steps(timeline), _quality(plan, timeline)
    launch = next(event for event in timeline.launcher if event["event"] == "launch")
    redactor = environment.Redactor(
        (run_dir, "<run>"), (Path(plan.run_dir), "<run>"), (Path(plan.data.folder), "<data>")
    )
    rank0 = timeline.ranks[0]
    return Record(
        suite=Suite(version=__version__),
        run_id=plan.run_id,
        case_key=plan.case_key,
        started=launch["started"],
        status=ending.status,
        cause=None if ending.cause is None else Cause(**redactor.apply(ending.cause)),
        # Folders only: a user called "real" must not change what was planned.
        plan=Plan(**redactor.folders(plan.model_dump())),
        argv=redactor.apply(launch["argv"]),
        environment=redactor.apply(launch["environment"])
        | {
            "devices": [rank.facts.get("device") for rank in timeline.ranks if rank.facts],
            "precision_flags": rank0.facts.get("precision_flags"),
            "collective": rank0.facts.get("collective"),
            "job": rank0.result.get("job"),
        },
        counts=_counts(timeline),
        spans=_spans(timeline),
        ranks=_ranks(timeline),
        steps=steps,
        figures=entries,
        quality=quality,
        fix_hp=plan.fix_hp,
        extra=plan.extra,
        labels=plan.labels,
        notes=_notes(plan, steps, quality, timeline),
        evidence=_evidence(run_dir),
    )


def write(record: Record, run_dir: Path) -> Path:
    """Write ``record.json`` whole or not at all; an existing record is never replaced.

    Raises:
        RecordError: there is a record already.
        OSError: the disk is full or the folder read-only.
    """
    path = run_dir / RECORD_FILE
    if path.exists():
        raise RecordError("a record is there already", where=str(path), rule="records never change")
    staging = run_dir / f".{RECORD_FILE}.tmp"
    with staging.open("w", encoding="utf-8") as file:
        file.write(_one_line_a_key(record))
        file.flush()
        os.fsync(file.fileno())
    staging.rename(path)
    return path


def _one_line_a_key(record: Record) -> str:
    """Return JSON with a line for each top-level key: greppable, and small with many steps."""
    lines = [
        f"{json.dumps(name)}: {to_json(getattr(record, name)).decode()}"
        for name in type(record).model_fields
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read(path: Path) -> Record:
    """Read a record from ``record.json`` or the run directory that holds it.

    Raises:
        RecordError: no such file, or not a record of this schema.
    """
    file = path / RECORD_FILE if path.is_dir() else path
    try:
        return Record.model_validate_json(file.read_bytes())
    except OSError as error:
        raise RecordError(
            f"no record there: {error.strerror}",
            where=str(file),
            remedy="name a run directory or its record.json",
        ) from None
    except ValueError as error:
        first = str(error).splitlines()[:3]
        raise RecordError(
            "not a record of this schema: " + " ".join(first),
            where=str(file),
            remedy="`trainmark schema` prints the schema",
        ) from None


def dumps_schema() -> str:
    """Return the schema as the text that is shipped and printed."""
    return json.dumps(schema(), indent=2, sort_keys=True) + "\n"
