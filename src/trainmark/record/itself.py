"""Hold a record against itself: each value that other values of the record give or bound.

Owns the identities. Sums over all ranks that a record has of one rank alone are bounded, not
computed. What ranks measured and nothing repeats, a matmul rate say, can only have a wrong sign.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.devices.peaks import dense_peak
from trainmark.recipe import AUTOCAST
from trainmark.record import figures as figures_of
from trainmark.record.run import usage
from trainmark.record.run.findings import BUSY_SHARE, above_best
from trainmark.record.stats import STEADY_DRIFT, drift, spread
from trainmark.record.trust import graded, of_launch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.record.record import Record

Difference = tuple[str, Any, Any]  # path of the value, as recorded, as computed again
_WINDOWS = ("compile", "warmup", "train")
_SLACK = 1e-9  # of bounds, for sums in another order
_CLOCKS = 0.1  # of window time, by which steps may differ without a finding
_TOKENS_VARY = 1.6  # mean tokens of a measured sample over those of any


def identities(record: Record) -> Iterator[Difference]:
    """Yield values of a record, each with what other values of it give."""
    yield from _counts(record)
    yield from _steps(record)
    yield from _quality(record)
    yield from _labels(record)
    yield from _spans(record)
    yield from _rates(record)
    yield from _utilisation(record)
    yield from _memory(record)
    specs = figures_of.specs(record.plan.about.page)
    for name, entry in record.figures.items():
        yield f"figures.{name}.reason", entry.reason is None, entry.value is not None
        spec = specs.get(name)
        if spec is not None:
            unit = spec.unit.replace("{work}", record.plan.about.work_unit)
            yield f"figures.{name}.unit", entry.unit, unit
        if entry.unit:  # a loss may be negative
            yield from _bounds(f"figures.{name}", entry.value, 0.0)


def _bounds(
    place: str, value: float | None, low: float, high: float | None = None
) -> Iterator[Difference]:
    """Yield a value that must lie between two others, with the bound that it passes."""
    if value is not None:
        least, most = low - abs(low) * _SLACK, high and high + abs(high) * _SLACK
        if value < least or (most is not None and value > most):
            yield place, value, low if value < least else high


def _known(name: str, record: Record, expected: float | None) -> Iterator[Difference]:
    """Yield a figure with its expected value; a case may have replaced it by None."""
    value = record.figure(name)
    if value is not None:
        yield f"figures.{name}", value, expected


def _ended(record: Record) -> bool:
    """Tell whether training came to its end on all ranks."""
    return record.status in ("passed", "target_missed")


def _counts(record: Record) -> Iterator[Difference]:
    counts, plan, ranks = record.counts, record.plan, record.ranks
    yield "counts.steps", counts.steps, len(record.steps.time_ns)
    yield "counts.samples", counts.samples, sum(record.steps.samples)
    yield "ranks.samples", sum(rank.samples for rank in ranks), counts.samples
    yield "ranks", [rank.rank for rank in ranks], list(range(plan.world_size))
    job = record.environment.get("job") or {}
    yield "counts.skipped_steps", counts.skipped_steps, job.get("skipped_steps")
    yield from _bounds("counts.skipped_steps", counts.skipped_steps, 0, counts.steps)
    ascending = [x for x in (counts.samples, counts.sequences, counts.tokens, counts.tokens_padded)
                 if x]  # fmt: skip
    if record.status != "failed":  # perhaps because of them
        yield "counts", ascending, sorted(ascending)
    own = counts.sequences not in (0, counts.samples)
    yield "counts.sequences", "p_train_sequences" in record.figures, own
    if length := plan.recipe.get("seq_length"):
        yield from _bounds("counts.tokens", counts.tokens_padded, 0, counts.sequences * length)
    if not _ended(record):
        return
    accum = plan.recipe["grad_accum_steps"]
    least = counts.steps * plan.world_size
    yield from _bounds("counts.micro_batches", counts.micro_batches, least, least * accum)
    batch = plan.recipe["micro_batch_size"] * accum * plan.world_size
    yield "ranks.finished", all(rank.finished for rank in ranks), True
    yield "ranks.steps", {rank.steps for rank in ranks}, {counts.steps}
    if not any(found.code == "own_epoch" for found in record.findings):
        begun, whole = counts.epochs, plan.data.train_samples
        least = 0 if plan.resumed else (begun - 1) * whole + 1
        yield from _bounds("counts.epochs", counts.samples, least, begun * whole)
        if whole >= batch:
            yield "steps.samples", max(record.steps.samples, default=batch), batch
    for name, value in (("max_epochs", counts.epochs), ("max_steps", counts.steps)):
        yield from _bounds(f"counts.{name}", value, 0, plan.recipe.get(name))


def _steps(record: Record) -> Iterator[Difference]:
    steps = record.steps
    measured = np.array(steps.time_ns[steps.warmup :], np.int64)
    moved = drift(measured)
    yield "steps.drift", steps.drift, moved
    yield "steps.steady", steps.steady, None if moved is None else abs(moved) <= STEADY_DRIFT
    if (times := spread(measured)) is not None:
        usual_ns = [rank.step_ns or 0 for rank in record.ranks]
        least = times.p50 * 1e9 - 1 if len(usual_ns) == 1 and _ended(record) else 0
        for step_ns in usual_ns:
            yield from _bounds("ranks.step_ns", step_ns, least, times.p50 * 1e9)
        for name in ("p50", "p90", "p99", "mad"):
            yield from _known(f"step_time_{name}", record, getattr(times, name))
        yield from _known("step_time_cv", record, times.cv and 100 * times.cv)
    losses = np.array(steps.loss, np.float64)
    for name, figure in figures_of.losses(losses, np.array(steps.samples, np.int64)).items():
        yield from _known(name, record, figure.value)


def _quality(record: Record) -> Iterator[Difference]:
    quality, plan, history = record.quality, record.plan, record.quality.history
    last, target = history[-1] if history else None, plan.target
    value = None if last is None else last.value
    yield "quality.value", quality.value, value
    yield "quality.eval_samples", quality.eval_samples, last and last.samples
    yield "quality.metric", quality.metric, plan.about.metric
    yield "quality.target", quality.target, target and target.value
    yield "quality.best_possible", quality.best_possible, plan.data.best_quality
    if target is not None:
        reached = value is not None and target.reached(value)
        yield "quality.reached", quality.reached, reached
        if _ended(record):
            yield "status", record.passed, reached or not target.required
    places = [(point.step, point.epoch) for point in history]
    yield "quality.history", places, sorted(places)
    for point in history:
        yield from _bounds("quality.history.step", point.step, 0, record.counts.steps)
        yield from _bounds("quality.history.epoch", point.epoch, 0, record.counts.epochs - 1)
        if plan.about.higher_is_better and (quality.target or quality.best_possible or 2) <= 1:
            yield from _bounds("quality.history.value", point.value, 0.0, 1.0)


def _labels(record: Record) -> Iterator[Difference]:
    plan, notes = record.plan, [*record.notes, *record.findings]
    cut_off = record.counts.steps > 0 and not all(rank.finished for rank in record.ranks)
    yield "labels", record.labels, [*plan.labels, *(["partial"] if cut_off else [])]
    for name in ("case_key", "fix_hp", "extra"):
        yield name, getattr(record, name), getattr(plan, name)
    if "generated-data" in plan.labels:
        yield "plan.data.origin", plan.data.origin, "generated"
    codes = {note.code for note in notes}
    rate, matmul = (record.figure(f"{x}_flops_per_device") for x in ("model", "matmul"))
    compiled = record.compilation and record.compilation.graphs_while_measured
    must = {
        "not_steady": record.steps.steady is False,
        "steadiness_unknown": record.steps.steady is None,
        "machine_busy": (record.environment.get("others_cpu_share") or 0.0) > BUSY_SHARE,
        "flops_above_preflight": bool(rate and matmul and rate > matmul),
        "compiled_while_measured": bool(compiled),
        "quality_above_best": above_best(plan, record.quality),
        "oversubscribed": "oversubscribed" in plan.labels,
        "resumed": plan.resumed is not None,
    }
    for code, there in must.items():
        yield f"notes.{code}", code in codes, there
    trust = of_launch(
        passed=record.passed, labels=record.labels, notes=notes, figures=record.figures, swing=None
    )
    told = {x.code for x in record.trust.reasons if not x.code.startswith("evidence_")}
    yield "trust.reasons", told - {"trust_swing"}, {x.code for x in trust.reasons}
    yield "trust.grade", record.trust.grade, graded(record.trust.reasons).grade
    precision, flags = plan.recipe["precision"], record.environment.get("precision_flags") or {}
    tf32 = precision == "tf32" and plan.device.torch_type != "cpu"
    wanted = {"tf32": tf32, "cudnn_tf32": tf32, "float32_matmul": "high" if tf32 else "highest",
              "autocast": AUTOCAST.get(precision)}  # fmt: skip
    for name in wanted.keys() & flags.keys():
        yield f"environment.precision_flags.{name}", flags[name], wanted[name]


def _spans(record: Record) -> Iterator[Difference]:
    spans, ranks = record.spans, record.ranks
    for rank in ranks:
        if rank.wall_ns is not None:
            yield "ranks.spans_ns", sum(rank.spans_ns.values()), rank.wall_ns
    if spans.rank is None or spans.rank >= len(ranks):
        return
    entry, by_name = ranks[spans.rank], spans.by_name_ns
    yield "spans.by_name_ns", by_name, entry.spans_ns
    yield "spans.wall_ns", spans.wall_ns, entry.wall_ns
    if spans.wall_ns:
        yield "spans.reconciled", spans.reconciled, 1 - by_name["other"] / spans.wall_ns
    yield "spans.train_parts_ns", sum(spans.train_parts_ns.values()), _windows_ns(by_name)
    if all(rank.finished for rank in ranks) and len(record.environment.get("nodes", ())) < 2:
        yield "spans.wall_ns", spans.wall_ns, max(rank.wall_ns or 0 for rank in ranks)
        yield from _known("e2e_time", record, (spans.wall_ns or 0) / 1e9)
    stepped = spans.train_parts_ns["data_wait"] + spans.train_parts_ns["compute"]
    most = stepped if len(ranks) == 1 else None
    yield from _bounds("steps.time_ns", sum(record.steps.time_ns), stepped, most)


def _windows_ns(spans_ns: dict[str, int]) -> int:
    return sum(spans_ns[name] for name in _WINDOWS)


def _rates(record: Record) -> Iterator[Difference]:
    """Hold times of training and rates of it against spans and counts."""
    counts, figure, ranks = record.counts, record.figure, record.ranks
    if not (counts.samples and ranks):
        return
    samples, train_s = counts.samples, figure("train_time")
    whole, train, core = (figure(f"p_{name}") for name in ("whole", "train", "core"))
    rates = [rate for rate in (whole, train, core) if rate]
    yield "figures.p_core", rates, sorted(rates)
    windows_s = [_windows_ns(rank.spans_ns) / 1e9 for rank in ranks]
    evaluated_s = [rank.spans_ns["evaluate"] / 1e9 for rank in ranks]
    most_s = [
        x + (rank.spans_ns["other"] + rank.spans_ns["checkpoint"]) / 1e9
        for x, rank in zip(windows_s, ranks, strict=True)
    ]
    least, most = (max(map(sum, zip(x, evaluated_s, strict=True))) for x in (windows_s, most_s))
    yield from _bounds("figures.train_time", train_s, least, most)
    waited_s = record.spans.train_parts_ns["data_wait"] / 1e9
    if train_s and len(ranks) == 1:
        yield from _known("p_train", record, samples / (train_s - evaluated_s[0]))
        yield from _known("p_core", record, samples / (train_s - evaluated_s[0] - waited_s))
    if train_s:
        yield from _known("p_whole", record, samples / train_s)
    waits = sum(x.wait_ns or 0 for x in ranks) * max(counts.steps - record.steps.warmup, 0)
    yield from _bounds("ranks.wait_ns", waits / 1e9, 0.0, waited_s if len(ranks) == 1 else None)
    if train:
        yield from _bounds(
            "figures.p_train", train, samples / max(most_s), samples / max(windows_s)
        )
        for name, amount in (("token/p/s", counts.tokens / len(ranks)),
                             ("p_train_sequences", counts.sequences),
                             ("p_train_tokens", counts.tokens)):  # fmt: skip
            yield from _known(name, record, train * amount / samples)
    if core:
        busy_s = windows_s[record.spans.rank or 0] - waited_s
        yield from _bounds("figures.p_core", core, 0.0, samples / busy_s)
    slowest_s = max(rank.spans_ns["train"] for rank in ranks) / 1e9
    measured = sum(record.steps.samples[record.steps.warmup :])
    if not (slowest_s and (_ended(record) or len(ranks) == 1)):
        return
    if record.plan.about.work_unit == "samples":
        yield from _known("final_result", record, measured / slowest_s)
    else:
        usual = measured * counts.tokens / samples / slowest_s
        value = figure("final_result")
        yield from _bounds(
            "figures.final_result", value, usual / _TOKENS_VARY, usual * _TOKENS_VARY
        )
    stepped_s = sum(record.steps.time_ns[record.steps.warmup :]) / 1e9
    if slowest_s > _CLOCKS and len(ranks) == 1:
        told = any(one.code == "steps_beside_windows" for one in record.findings)
        yield "findings.steps_beside_windows", told, abs(1 - stepped_s / slowest_s) > _CLOCKS


def _utilisation(record: Record) -> Iterator[Difference]:
    rate, plan = record.figure("model_flops_per_device"), record.plan
    matmul = record.figure("matmul_flops_per_device")
    known = [x.matmul_flops_per_second for x in record.ranks if x.matmul_flops_per_second]
    if known:
        whole = len(known) == len(record.ranks)
        yield from _known(
            "matmul_flops_per_device", record, sum(known) / len(known) if whole else None
        )
    if rate is None:
        return
    if matmul:
        yield from _known("MAMFU", record, 100 * rate / matmul)
    names = {str(x.get("name")) for x in record.environment.get("devices", ()) if x}
    peak = dense_peak(names.pop(), plan.recipe["precision"]) if len(names) == 1 else None
    published = None if peak is None else peak.flops_per_second / 1e12
    tflops = plan.peak_tflops or published
    yield from _known("MFU", record, tflops and 100 * rate / (tflops * 1e12))
    reason = record.figures["MFU"].reason
    if reason is not None and reason.code == "peak_unknown":
        yield "figures.MFU", tflops, None
    if _ended(record):
        yield from _bounds("figures.MFU", record.figure("MFU"), 0.0, 100.0)


def _memory(record: Record) -> Iterator[Difference]:
    """Hold memory and what was sampled against ranks, devices and the telemetry's summary."""
    used = [float(rank.used_bytes) for rank in record.ranks if rank.used_bytes is not None]
    note = record.figures["mem"].note
    by_monitor = usage.peak_memory_bytes(record.telemetry, len(record.ranks))
    expected = {
        "resident_memory_sum": sum(used), "device_memory_at_edges": max(used, default=None),
        "device_memory_by_monitor": by_monitor,
    }  # fmt: skip
    if note is not None and note.code in expected:
        yield from _known("mem", record, expected[note.code])
    totals = [one.get("memory_total_bytes") for one in record.environment.get("devices", ()) if one]
    total = max((float(x) for x in totals if x), default=None)
    yield from _known("mem_total", record, total)
    for name in ("mem", "allocator_peak"):
        yield from _bounds(f"figures.{name}", record.figure(name), 0.0, total)
    if record.telemetry is None:
        return
    on_host = record.plan.device.vendor == "cpu"
    found = usage.compute(
        record.telemetry, ranks=len(record.ranks), samples=record.counts.samples, on_host=on_host
    )
    for name, figure in found.items():
        yield from _known(name, record, figure.value)
    uses = [x for one in record.telemetry.devices for x in one.over.values()]
    for use in (*uses, *record.telemetry.host.values()):
        for name, one in use.quantities.items():
            yield from _bounds(f"telemetry.{name}", one.mean, one.lowest, one.highest)
