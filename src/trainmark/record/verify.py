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

from trainmark import __version__, cases
from trainmark.errors import RecordError
from trainmark.recipe import AUTOCAST
from trainmark.record import figures as figures_of
from trainmark.record import reduce
from trainmark.record.run import findings
from trainmark.record.trust import graded, of_launch, refutes, with_findings
from trainmark.record.work import major_minor
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from trainmark.record.record import Record

Difference = tuple[str, Any, Any]  # path of the value, as recorded, as computed again
# Tolerance for sums in another order, by another version of a library.
_RELATIVE = 1e-9
_LONGEST_SHOWN = 80
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
        every = (*_computed_again(record), *_measured(record), *_limited(record))
        for place, recorded, expected in every:
            found += _differences(recorded, expected, place)
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
    found = [
        message("evidence_altered" if name in there else "evidence_missing", file=name)
        for name in sorted(named.keys() | there.keys())
        if there.get(name) != named.get(name)
    ]
    return found + _recomputed(record, folder)


def _recomputed(record: Record, folder: Path) -> list[Message]:
    """Return how the record differs from one reduced again from the same evidence."""
    try:
        anew = reduce.reduce(folder)
    except (RecordError, OSError, ValueError) as error:
        return [message("evidence_unreadable", error=f"{type(error).__name__}: {error}"[:200])]
    names = set(type(record).model_fields) - {"suite", "evidence", "verification"}
    found = _between(record, anew, names)
    if not found:
        return []
    if anew.plan.about.page.figures and anew.plan.case not in cases.names():
        return [message("evidence_case_absent", case=anew.plan.case)]
    # The plan has the version too, so that editing it in the record alone has no effect.
    writers = {major_minor(x) for x in (record.suite.version, anew.plan.suite_version)}
    if len(writers) == 1 and major_minor(__version__) not in writers:
        return [message("evidence_other_version", version=record.suite.version)]
    return [_disagrees(found)]


def _between(record: Record, anew: Record, names: set[str]) -> list[Difference]:
    """Return the differences between fields of two records.

    Equal fields are not converted to dicts: a million steps would be in memory four times.
    """
    unlike = {name for name in names if getattr(record, name) != getattr(anew, name)}
    theirs, ours = (item.model_dump(mode="json", include=unlike) for item in (record, anew))
    return list(_differences(theirs, ours, ""))


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


def _shown(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


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


def _within(value: float | None, low: float, high: float) -> float | None:
    """Return the value, or the bound that it passes."""
    return value if value is None else max(low, min(value, high))


def _computed_again(record: Record) -> Iterator[Difference]:
    """Yield what follows from plan, ranks, series and evaluations, made by what made it."""
    plan, anew = record.plan, reduce.completed(record)
    yield from _between(record, anew, reduce.DERIVED)
    specs, computed = figures_of.specs(plan.about.page), figures_of.compute(record)
    for name, entry in record.figures.items():
        yield f"figures.{name}.reason", entry.reason is None, entry.value is not None
        if name in specs:
            unit = specs[name].unit.replace("{work}", plan.about.work_unit)
            yield f"figures.{name}.unit", entry.unit, unit
        if name in computed and entry.value is not None:  # a case may have replaced it by None
            yield f"figures.{name}", entry.value, computed[name].value
    codes = {one.code for one in record.findings}
    for one in findings.of_record(record):
        yield f"findings.{one.code}", one.code in codes, True
    told = (x for x in record.trust.reasons if not x.code.startswith("evidence_"))
    yield "trust.reasons", _codes(told), _codes(of_launch(record).reasons)
    yield "trust.grade", record.trust.grade, graded(record.trust.reasons).grade


def _codes(reasons: Iterable[Message]) -> str:
    return ", ".join(sorted({one.code for one in reasons})) or "none"


def _measured(record: Record) -> Iterator[Difference]:
    """Yield what ranks measured, with what plan, spans and steps say of it."""
    plan, counts, steps, quality = record.plan, record.counts, record.steps, record.quality
    precision, flags = plan.recipe["precision"], record.environment.get("precision_flags") or {}
    tf32 = precision == "tf32" and plan.device.torch_type != "cpu"
    wanted = {"tf32": tf32, "cudnn_tf32": tf32, "float32_matmul": "high" if tf32 else "highest",
              "autocast": AUTOCAST.get(precision)}  # fmt: skip
    for name in wanted.keys() & flags.keys():
        yield f"environment.precision_flags.{name}", flags[name], wanted[name]
    yield "ranks", [rank.rank for rank in record.ranks], list(range(plan.world_size))
    ended = record.status in ("passed", "target_missed")  # on all ranks
    if ended and plan.target is not None:
        yield "status", record.passed, quality.reached or not plan.target.required
    if ended and not any(found.code == "own_epoch" for found in record.findings):
        begun, whole = counts.epochs, plan.data.train_samples
        fewest = 0 if plan.resumed else (begun - 1) * whole + 1
        yield "counts.samples", counts.samples, _within(counts.samples, fewest, begun * whole)
    for rank in record.ranks:
        spans_ns = rank.spans_ns
        if rank.wall_ns is not None:
            yield "ranks.spans_ns", sum(spans_ns.values()), rank.wall_ns
        for name, phase in rank.phases.items():
            yield "ranks.phases.windows_ns", phase.windows_ns, spans_ns[name]
            yield "ranks.phases.wait_ns", phase.wait_ns, _within(phase.wait_ns, 0, phase.step_ns)
        least = rank.sum_of("windows_ns") + spans_ns["evaluate"]
        most = least + spans_ns["checkpoint"] + spans_ns["other"]
        yield "ranks.train_ns", rank.train_ns, _within(rank.train_ns, least, most)
        yield "ranks.steps", rank.steps, counts.steps if ended else rank.steps
    yield "steps.time_ns", len(steps.time_ns), counts.steps
    yield "steps.samples", sum(steps.samples), counts.samples
    of_ranks_ns = [rank.sum_of("step_ns") for rank in record.ranks]
    # Of each step the slowest rank's time.
    total_ns = _within(sum(steps.time_ns), max(of_ranks_ns), sum(of_ranks_ns))
    yield "steps.time_ns", sum(steps.time_ns), total_ns
    for name, entry in record.figures.items():
        if entry.unit and entry.value is not None:  # a loss may be negative
            yield f"figures.{name}", entry.value, max(entry.value, 0.0)
    share = plan.about.higher_is_better and (quality.target or quality.best_possible or 2) <= 1
    for point in quality.history:
        yield "quality.history.step", point.step, _within(point.step, 0, counts.steps)
        yield "quality.history.epoch", point.epoch, _within(point.epoch, 0, counts.epochs - 1)
        if share:
            yield "quality.history.value", point.value, _within(point.value, 0.0, 1.0)


def _limited(record: Record) -> Iterator[Difference]:
    """Yield what may not pass a limit that plan or counts give."""
    plan, counts, recipe = record.plan, record.counts, record.plan.recipe
    batch = recipe["micro_batch_size"] * recipe["grad_accum_steps"] * plan.world_size
    ended = record.status in ("passed", "target_missed")
    limits = {
        "counts.epochs": (counts.epochs, recipe["max_epochs"]),
        "counts.tokens_padded": (
            counts.tokens_padded, counts.sequences * recipe.get("seq_length", 0)
        ),
        "steps.samples": (max(record.steps.samples, default=0), batch),
        "figures.mem": (record.figure("mem"), record.figure("mem_total")),
        "figures.MFU": (record.figure("MFU") if ended else None, 100.0),
    }  # fmt: skip
    for place, (value, most) in limits.items():
        if most:
            yield place, value, _within(value, 0, most)
    if "generated-data" in plan.labels:
        yield "plan.data.origin", plan.data.origin, "generated"
