"""Edits of records that somebody mails, written before the checks that find them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Edit(NamedTuple):
    """A change of one value of a golden record: its file, the path of keys, the new value.

    None as the change: the value is taken out.
    """

    record: str
    path: str
    change: Callable[[Any], Any] | None


def times(factor: float) -> Callable[[Any], Any]:
    """Return a change that multiplies."""
    return lambda value: value * factor


def to(value: Any) -> Callable[[Any], Any]:
    """Return a change that replaces."""
    return lambda _: value


TOY, SAMPLED, BERT = "record_toy", "record_sampled", "record_distilbert"
EDITS = (
    Edit(TOY, "figures.p_core.value", times(2)),
    Edit(TOY, "figures.p_train.value", times(1.05)),
    Edit(TOY, "figures.p_whole.value", times(1.2)),
    Edit(TOY, "figures.e2e_time.value", times(0.5)),
    Edit(TOY, "figures.train_time.value", times(0.8)),
    Edit(TOY, "figures.token/p/s.value", times(8)),
    Edit(TOY, "figures.final_result.value", times(1.1)),
    Edit(TOY, "figures.step_time_p50.value", times(0.9)),
    Edit(BERT, "figures.step_time_p90.value", times(0.95)),
    Edit(BERT, "figures.step_time_p99.value", times(0.98)),
    Edit(BERT, "figures.step_time_cv.value", times(0.3)),
    Edit(BERT, "figures.step_time_mad.value", times(0.5)),
    Edit(TOY, "figures.model_flops_per_device.value", times(1.3)),
    Edit(BERT, "figures.MFU.value", times(1.5)),
    Edit(BERT, "figures.MFU.value", to(131.6)),
    Edit(TOY, "figures.MAMFU.value", times(2)),
    Edit(TOY, "figures.loss.value", times(0.7)),
    Edit(TOY, "figures.final_loss.value", times(0.7)),
    Edit(SAMPLED, "figures.mem.value", to(20000000000.0)),
    Edit(TOY, "figures.mem.value", times(-1)),
    Edit(TOY, "figures.p_core.unit", to("tokens/s")),
    Edit(TOY, "figures.e2e_time.unit", to("ms")),
    Edit(SAMPLED, "figures.energy_per_sample.value", times(0.5)),
    Edit(SAMPLED, "figures.energy_to_target.value", times(-1)),
    Edit(SAMPLED, "figures.utilization.value", to(190.0)),
    Edit(TOY, "counts.samples", times(2)),
    Edit(TOY, "counts.steps", times(2)),
    Edit(TOY, "counts.micro_batches", times(2)),
    Edit(SAMPLED, "ranks.0.phases.train.samples", times(2)),
    Edit(TOY, "spans.wall_ns", times(2)),
    Edit(TOY, "spans.by_name_ns.train", times(0.5)),
    Edit(TOY, "quality.value", to(0.99)),
    Edit(TOY, "quality.history.0.value", to(0.99)),
    Edit(TOY, "quality.target", to(0.95)),
    Edit(TOY, "quality.reached", to(False)),
    Edit(TOY, "quality.best_possible", to(0.5)),
    Edit(TOY, "trust", to({"grade": "quotable", "reasons": []})),
    Edit(TOY, "environment.precision_flags.tf32", to(True)),
    Edit(SAMPLED, "plan.nproc", to(4)),
    Edit(TOY, "steps.time_ns.7", times(-1)),
    Edit(BERT, "plan.fix_hp", to({})),
    Edit(BERT, "plan.fix_hp", to({"micro_batch_size": 32, "learning_rate": 0.00015})),
    Edit(BERT, "plan.fix_hp", to({"micro_batch_size": 96})),
    Edit(BERT, "plan.recipe.seq_length", times(2)),
    Edit(BERT, "plan.recipe.seq_length", times(0.5)),
    Edit(BERT, "plan.recipe.learning_rate", times(0.1)),
    Edit(BERT, "plan.recipe_name", to("standard-1x1")),
    Edit(BERT, "plan.compared_with", to("standard-1x1")),
    Edit(BERT, "plan.rules", to("open")),
    Edit(BERT, "plan.labels", to(["self-reported"])),
    Edit(BERT, "plan.device.vendor", to("amd")),
    Edit(BERT, "plan.device.torch_type", to("npu")),
    Edit(BERT, "plan.device.collective_backend", to("hccl")),
    Edit(BERT, "plan.case_key", to("distilbert_sst2:pytorch_2.13:ascend:1:2:1")),
    Edit(BERT, "plan.case_key", to("distilbert_sst2:pytorch_2.13:nvidia:1:8:1")),
    Edit(BERT, "plan.about.metric", to("f1")),
    Edit(BERT, "plan.about.higher_is_better", to(False)),
    Edit(BERT, "environment.devices.0.vendor", to("amd")),
    Edit(BERT, "environment.devices.0.name", to("AMD Instinct MI300X")),
    Edit(BERT, "environment.job.parameters", times(1000)),
    Edit(BERT, "findings", to([{"code": "not_steady", "args": {"drift": 0.3}}])),
    Edit(BERT, "figures.p_train", None),
    Edit(BERT, "figures.step_time_p99", None),
    Edit(
        BERT, "figures.MAMFU", to({"value": None, "unit": "%", "reason": {"code": "peak_unknown"}})
    ),
    Edit(BERT, "figures.MFU.note", to(None)),
    Edit(BERT, "started", to("2025-11-21T08:15:00+00:00")),
    Edit(BERT, "started", to("2027-11-21T08:15:00+00:00")),
    Edit(BERT, "started", to("long ago")),
    Edit(BERT, "run_id", to("20251121T081500Z-distilbert_sst2-5eed01")),
    Edit(BERT, "run_id", to("20261121T081500Z-glm_superglue-5eed01")),
    Edit(BERT, "status", to("failed")),
    Edit(TOY, "plan.labels", to(["generated-data"])),
    Edit(TOY, "plan.labels", to(["self-reported"])),
    Edit(BERT, "plan.extra", to({"weight_decay": 0.1})),
    Edit(TOY, "plan.device.vendor", to("nvidia")),
    Edit(TOY, "environment.devices.0.name", to("NVIDIA H100 80GB HBM3")),
    Edit(TOY, "environment.devices.0.vendor", to("nvidia")),
    Edit(TOY, "environment.job.parameters", times(1000)),
    Edit(TOY, "environment.job.trainable_parameters", to(611)),
    Edit(TOY, "plan.repeat_index", to(2)),
    Edit(TOY, "findings", to([{"code": "loss_never_changes", "args": {"loss": 0.5, "steps": 16}}])),
    Edit(TOY, "findings", to([{"code": "machine_busy", "args": {"share": 0.5}}])),
    Edit(TOY, "findings", to([{"code": "excellent", "args": {}}])),
    Edit(TOY, "figures.p_core", None),
    Edit(TOY, "figures.loss", None),
    Edit(TOY, "figures.MFU.reason.code", to("device_unreported")),
    Edit(TOY, "figures.MFU_causal", to({"value": 41.0, "unit": "%"})),
    Edit(TOY, "ranks.0.finished", to(False)),
    Edit(TOY, "ranks.0.step_ns", times(0.5)),
    Edit(TOY, "evidence", lambda files: files[:-1]),
    Edit(TOY, "trust.reasons.1.args.launches", to(5)),
    Edit(SAMPLED, "telemetry", to(None)),
    Edit(SAMPLED, "telemetry.intervals_s.run.1", times(2)),
    Edit(SAMPLED, "telemetry.intervals_s.measured", to([9.0, 9.5])),
    Edit(SAMPLED, "telemetry.devices.0.over.run.quantities.power_w.mean", times(3)),
    Edit(SAMPLED, "telemetry.devices.0.over.run.quantities.power_w.readings", times(3)),
    Edit(SAMPLED, "series.0.points.2", to([3.0, 1e12])),
    Edit(SAMPLED, "environment.devices.0.name", to("NVIDIA H100 80GB HBM3")),
    # With these the identities themselves cannot be computed.
    Edit(TOY, "quality.best_possible", to(-1.0)),
    Edit(TOY, "spans.rank", to(-2)),
    Edit(TOY, "spans.by_name_ns", to({})),
    Edit(TOY, "spans.train_parts_ns", to({})),
    Edit(TOY, "ranks.0.spans_ns", to({})),
    Edit(TOY, "ranks.0.spans_ns.train", to(0)),
    Edit(SAMPLED, "telemetry.intervals_s", to({})),
    Edit(SAMPLED, "telemetry.devices.0.over", to({})),
)


def apply(record: dict[str, Any], edit: Edit) -> dict[str, Any]:
    """Return the record as it is after the edit; its whole numbers stay whole."""
    *way, last = edit.path.split(".")
    place: Any = record
    for key in way:
        place = place[int(key)] if isinstance(place, list) else place[key]
    key = int(last) if isinstance(place, list) else last
    if edit.change is None:
        del place[key]
        return record
    old = place.get(key) if isinstance(place, dict) else place[key]
    new = edit.change(old)
    place[key] = int(new) if isinstance(old, int) and not isinstance(old, bool) else new
    return record
