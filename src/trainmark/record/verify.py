"""Check a record once, when it is loaded: against itself, and against its evidence files.

A record with its events beside it that gives the same when it is reduced again is verified; any
other is unverified, and its trust names why. Of a record alone, figures, counts, spans, quality,
findings and trust are computed again, by the functions that made them, from the sums of ranks and
the series of steps. What ranks measured and nothing repeats, a matmul rate say, can only have a
wrong sign.
"""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark import __version__, cases
from trainmark.errors import RecordError
from trainmark.plan.plan import Plan
from trainmark.recipe import AUTOCAST
from trainmark.record import figures as figures_of
from trainmark.record import reduce
from trainmark.record.run import findings
from trainmark.record.stats import STEADY_DRIFT, drift, spread
from trainmark.record.trust import graded, of_launch, refutes, with_findings
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainmark.record.record import Record

Difference = tuple[str, Any, Any]  # path of the value, as recorded, as computed again
# Tolerance for sums in another order, by another version of a library.
_RELATIVE = 1e-9
_LONGEST_SHOWN = 40
MOST_BYTES = 32 << 20  # of evidence: a list or a page is no place to wait for more


def checked(record: Record, folder: Path, *, most_bytes: int | None = None) -> Record:
    """Return ``record`` verified, or with what contradicts it or is missing in its trust.

    Args:
        folder: where its events would be.
        most_bytes: of evidence; more of it is not read.
    """
    large = most_bytes is not None and sum(x.bytes for x in record.evidence) > most_bytes
    found = [message("evidence_unchecked")] if large else verify(record, folder)
    if not any(refutes(one.code) for one in found):
        found = [*check_itself(record), *found]
    word = "unverified" if found else "verified"
    return with_findings(record, found).model_copy(update={"verification": word})


def check_itself(record: Record) -> list[Message]:
    """Return how values of a record contradict each other, as one message."""
    found: list[Difference] = []
    try:
        for place, recorded, computed in identities(record):
            found += _differences(recorded, computed, place)
    except (LookupError, ArithmeticError, ValueError) as error:
        # A rank, span or bound that others name is absent or outside its domain.
        found.append(("record", type(error).__name__, "values that fit each other"))
    return [_disagrees(found)] if found else []


def verify(record: Record, folder: Path) -> list[Message]:
    """Return the contradictions between ``record`` and the evidence in ``folder``."""
    there = {entry.name: entry for entry in reduce.evidence(folder)}
    named = {entry.name: entry for entry in record.evidence}
    if not there:
        return [message("evidence_absent")]
    found = [message("evidence_unnamed", file=name) for name in there if name not in named]
    for name, entry in named.items():
        if name not in there:
            found.append(message("evidence_missing", file=name))
        elif there[name] != entry:
            found.append(message("evidence_altered", file=name))
    return found + _recomputed(record, folder)


def _recomputed(record: Record, folder: Path) -> list[Message]:
    """Return how the record differs from one reduced again from the same evidence."""
    try:
        # Ranks without a file count too, so a plan alone could ask for more than fit in memory.
        planned, ranks = Plan.read(folder).world_size, len(record.ranks)
        if planned != ranks:
            return [_disagrees([("ranks", ranks, planned)])]
        anew = reduce.reduce(folder)
    except (RecordError, OSError, ValueError) as error:
        return [message("evidence_unreadable", error=f"{type(error).__name__}: {error}"[:200])]
    # Equal fields are not converted to dicts: a million steps would be in memory four times.
    unlike = {
        name
        for name in set(type(record).model_fields) - {"suite", "evidence", "verification"}
        if getattr(record, name) != getattr(anew, name)
    }
    ours, theirs = (item.model_dump(mode="json", include=unlike) for item in (anew, record))
    found = list(_differences(theirs, ours, ""))
    if not found:
        return []
    if anew.plan.about.page.figures and anew.plan.case not in cases.names():
        return [message("evidence_case_absent", case=anew.plan.case)]
    # The plan has the version too, so that editing it in the record alone has no effect.
    writers = {tuple(_series(text)) for text in (record.suite.version, anew.plan.suite_version)}
    if len(writers) == 1 and _series(record.suite.version) != _series(__version__):
        return [message("evidence_other_version", version=record.suite.version)]
    return [_disagrees(found)]


def _disagrees(found: list[Difference]) -> Message:
    """Return the first difference, of status, figures or quality if there is one."""
    first = min(found, key=lambda item: not item[0].startswith(("status", "figures", "quality")))
    place, recorded, recomputed = first
    return message(
        "evidence_disagrees",
        field=place,
        recorded=_shown(recorded),
        recomputed=_shown(recomputed),
        fields=len(found),
    )


def _series(version: str) -> list[str]:
    """Return Major.Minor: within it, the same events give the same record."""
    return version.split(".")[:2]


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:_LONGEST_SHOWN]


def _differences(recorded: Any, recomputed: Any, place: str) -> Iterator[Difference]:
    """Yield every path at which two documents differ, with both values."""
    if recorded == recomputed:
        return
    if isinstance(recorded, dict) and isinstance(recomputed, dict):
        for name in sorted(recorded.keys() | recomputed.keys()):
            below = f"{place}.{name}" if place else name
            yield from _differences(recorded.get(name), recomputed.get(name), below)
        return
    both_lists = isinstance(recorded, list) and isinstance(recomputed, list)
    if both_lists and len(recorded) == len(recomputed):
        for index, pair in enumerate(zip(recorded, recomputed, strict=True)):
            yield from _differences(*pair, f"{place}[{index}]")
        return
    if not _alike(recorded, recomputed):
        yield place, recorded, recomputed


def _alike(recorded: Any, recomputed: Any) -> bool:
    numbers = isinstance(recorded, int | float) and isinstance(recomputed, int | float)
    if not numbers or isinstance(recorded, bool) or isinstance(recomputed, bool):
        return bool(recorded == recomputed)
    return isclose(recorded, recomputed, rel_tol=_RELATIVE)


def identities(record: Record) -> Iterator[Difference]:
    """Yield values of a record, each with what other values of it give."""
    yield from _computed_again(record)
    yield from _of_plan(record)
    yield from _ranks(record)
    yield from _steps(record)
    yield from _bounded(record)


def _bounds(
    place: str, value: float | None, low: float, high: float | None = None
) -> Iterator[Difference]:
    """Yield a value that must lie between two others, with the bound that it passes."""
    if value is not None:
        least, most = low - abs(low) * _RELATIVE, high and high + abs(high) * _RELATIVE
        if value < least or (most is not None and value > most):
            yield place, value, low if value < least else high


def _ended(record: Record) -> bool:
    """Tell whether training came to its end on all ranks."""
    return record.status in ("passed", "target_missed")


def _computed_again(record: Record) -> Iterator[Difference]:
    plan, ranks, quality = record.plan, record.ranks, record.quality
    anew = {
        "counts": reduce.counts_of(ranks, record.environment["job"]),
        "spans": reduce.spans_of(ranks),
        "quality": reduce.quality_of(plan, quality.history, quality.reason),
    }
    for name, part in anew.items():
        yield name, getattr(record, name).model_dump(), part.model_dump()
    yield "labels", record.labels, reduce.labels_of(plan, ranks)
    specs, computed = figures_of.specs(plan.about.page), figures_of.compute(record)
    for name, entry in record.figures.items():
        yield f"figures.{name}.reason", entry.reason is None, entry.value is not None
        if name in specs:
            unit = specs[name].unit.replace("{work}", plan.about.work_unit)
            yield f"figures.{name}.unit", entry.unit, unit
        if name in computed and entry.value is not None:  # a case may have replaced it by None
            yield f"figures.{name}", entry.value, computed[name].value
    codes = {one.code for one in (*record.findings, *record.notes)}
    for one in (*findings.doubts(record), *findings.notes(record)):
        yield f"findings.{one.code}", one.code in codes, True
    told = {x.code for x in record.trust.reasons if not x.code.startswith("evidence_")}
    yield "trust.reasons", told, {x.code for x in of_launch(record).reasons}
    yield "trust.grade", record.trust.grade, graded(record.trust.reasons).grade


def _of_plan(record: Record) -> Iterator[Difference]:
    plan, counts, recipe = record.plan, record.counts, record.plan.recipe
    for name in ("case_key", "fix_hp", "extra"):
        yield name, getattr(record, name), getattr(plan, name)
    if "generated-data" in plan.labels:
        yield "plan.data.origin", plan.data.origin, "generated"
    precision, flags = recipe["precision"], record.environment.get("precision_flags") or {}
    tf32 = precision == "tf32" and plan.device.torch_type != "cpu"
    wanted = {"tf32": tf32, "cudnn_tf32": tf32, "float32_matmul": "high" if tf32 else "highest",
              "autocast": AUTOCAST.get(precision)}  # fmt: skip
    for name in wanted.keys() & flags.keys():
        yield f"environment.precision_flags.{name}", flags[name], wanted[name]
    if length := recipe.get("seq_length"):
        yield from _bounds(
            "counts.tokens_padded", counts.tokens_padded, 0, counts.sequences * length
        )
    yield from _bounds("counts.epochs", counts.epochs, 0, recipe.get("max_epochs"))
    yield from _bounds("counts.steps", counts.steps, 0, recipe.get("max_steps"))
    yield "ranks", [rank.rank for rank in record.ranks], list(range(plan.world_size))
    if not _ended(record):
        return
    accum, target = recipe["grad_accum_steps"], plan.target
    if target is not None:
        yield "status", record.passed, record.quality.reached or not target.required
    least = counts.steps * plan.world_size
    yield from _bounds("counts.micro_batches", counts.micro_batches, least, least * accum)
    if not any(found.code == "own_epoch" for found in record.findings):
        begun, whole = counts.epochs, plan.data.train_samples
        fewest = 0 if plan.resumed else (begun - 1) * whole + 1
        yield from _bounds("counts.samples", counts.samples, fewest, begun * whole)
        batch = recipe["micro_batch_size"] * accum * plan.world_size
        if whole >= batch:
            yield "steps.samples", max(record.steps.samples, default=batch), batch


def _ranks(record: Record) -> Iterator[Difference]:
    for rank in record.ranks:
        spans_ns, phases = rank.spans_ns, rank.phases
        if rank.wall_ns is not None:
            yield "ranks.spans_ns", sum(spans_ns.values()), rank.wall_ns
        for name, phase in phases.items():
            yield "ranks.phases.windows_ns", phase.windows_ns, spans_ns[name]
            yield from _bounds("ranks.phases.wait_ns", phase.wait_ns, 0, phase.step_ns)
        if rank.train_ns is not None:
            least = rank.sum_of("windows_ns") + spans_ns["evaluate"]
            most = least + spans_ns["checkpoint"] + spans_ns["other"]
            yield from _bounds("ranks.train_ns", rank.train_ns, least, most)
        if _ended(record):
            yield "ranks.finished", rank.finished, True
            yield "ranks.steps", rank.steps, record.counts.steps
        known = rank.counts
        ascending = [x for x in (known.samples, known.sequences, known.tokens, known.tokens_padded)
                     if x]  # fmt: skip
        if record.status != "failed":  # perhaps because of them
            yield "ranks.phases", ascending, sorted(ascending)


def _steps(record: Record) -> Iterator[Difference]:
    steps, ranks, history = record.steps, record.ranks, record.quality.history
    times_ns = np.array(steps.time_ns[steps.warmup :], np.int64)
    moved, times = drift(times_ns), spread(times_ns)
    yield "steps.drift", steps.drift, moved
    yield "steps.steady", steps.steady, None if moved is None else abs(moved) <= STEADY_DRIFT
    yield "steps.time_ns", len(steps.time_ns), record.counts.steps
    yield "steps.samples", sum(steps.samples), record.counts.samples
    most_ns = max(rank.sum_of("step_ns") for rank in ranks)
    alone = most_ns if len(ranks) == 1 else None
    yield from _bounds("steps.time_ns", sum(steps.time_ns), most_ns, alone)
    for rank in ranks:
        measured = rank.phases["train"]
        yield "steps.warmup", max(rank.steps - measured.steps, steps.warmup), steps.warmup
        if times is not None:
            yield from _bounds("ranks.step_ns", rank.step_ns, 0, times.p50 * 1e9)
    yield "quality.history", history, sorted(history, key=lambda point: (point.step, point.epoch))
    for point in history:
        yield from _bounds("quality.history.step", point.step, 0, record.counts.steps)
        yield from _bounds("quality.history.epoch", point.epoch, 0, record.counts.epochs - 1)


def _bounded(record: Record) -> Iterator[Difference]:
    """Yield figures without a sign, and shares, where they leave their range."""
    figure, quality = record.figure, record.quality
    for name, entry in record.figures.items():
        if entry.unit:  # a loss may be negative
            yield from _bounds(f"figures.{name}", entry.value, 0.0)
    for name in ("mem", "allocator_peak"):
        yield from _bounds(f"figures.{name}", figure(name), 0.0, figure("mem_total"))
    if _ended(record):
        yield from _bounds("figures.MFU", figure("MFU"), 0.0, 100.0)
    if record.plan.about.higher_is_better and (quality.target or quality.best_possible or 2) <= 1:
        for point in quality.history:
            yield from _bounds("quality.history.value", point.value, 0.0, 1.0)
