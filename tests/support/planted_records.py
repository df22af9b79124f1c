"""Edits of records, written before the checks that find them."""

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


def multiply_by(factor: float) -> Callable[[Any], Any]:
    """Return a change that multiplies."""
    return lambda value: value * factor


def replace_by(value: Any) -> Callable[[Any], Any]:
    """Return a change that replaces."""
    return lambda _: value


TOY, SAMPLED, BERT = "record_toy", "record_sampled", "record_distilbert"
EDITS = (
    Edit(TOY, "figures.p_core.value", multiply_by(2)),
    Edit(TOY, "figures.p_train.value", multiply_by(1.05)),
    Edit(TOY, "figures.p_whole.value", multiply_by(1.2)),
    Edit(TOY, "figures.e2e_time.value", multiply_by(0.5)),
    Edit(TOY, "figures.train_time.value", multiply_by(0.8)),
    Edit(TOY, "figures.token/p/s.value", multiply_by(8)),
    Edit(TOY, "figures.final_result.value", multiply_by(1.1)),
    Edit(TOY, "figures.step_time_p50.value", multiply_by(0.9)),
    Edit(BERT, "figures.step_time_p90.value", multiply_by(0.95)),
    Edit(BERT, "figures.step_time_p99.value", multiply_by(0.98)),
    Edit(BERT, "figures.step_time_cv.value", multiply_by(0.3)),
    Edit(BERT, "figures.step_time_mad.value", multiply_by(0.5)),
    Edit(TOY, "figures.model_flops_per_device.value", multiply_by(1.3)),
    Edit(BERT, "figures.MFU.value", multiply_by(1.5)),
    Edit(BERT, "figures.MFU.value", replace_by(131.6)),
    Edit(TOY, "figures.MAMFU.value", multiply_by(2)),
    Edit(TOY, "figures.loss.value", multiply_by(0.7)),
    Edit(TOY, "figures.final_loss.value", multiply_by(0.7)),
    Edit(SAMPLED, "figures.mem.value", replace_by(20000000000.0)),
    Edit(TOY, "figures.mem.value", multiply_by(-1)),
    Edit(TOY, "figures.p_core.unit", replace_by("tokens/s")),
    Edit(TOY, "figures.e2e_time.unit", replace_by("ms")),
    Edit(SAMPLED, "figures.energy_per_sample.value", multiply_by(0.5)),
    Edit(SAMPLED, "figures.energy_to_target.value", multiply_by(-1)),
    Edit(SAMPLED, "figures.utilization.value", replace_by(190.0)),
    Edit(TOY, "counts.samples", multiply_by(2)),
    Edit(TOY, "counts.steps", multiply_by(2)),
    Edit(TOY, "counts.micro_batches", multiply_by(2)),
    Edit(SAMPLED, "ranks.0.phases.train.samples", multiply_by(2)),
    Edit(TOY, "spans.wall_ns", multiply_by(2)),
    Edit(TOY, "spans.by_name_ns.train", multiply_by(0.5)),
    Edit(TOY, "quality.value", replace_by(0.99)),
    Edit(TOY, "quality.history.0.value", replace_by(0.99)),
    Edit(TOY, "quality.target", replace_by(0.95)),
    Edit(TOY, "quality.reached", replace_by(False)),
    Edit(TOY, "quality.best_possible", replace_by(0.5)),
    Edit(TOY, "trust", replace_by({"grade": "quotable", "reasons": []})),
    Edit(TOY, "environment.precision_flags.tf32", replace_by(True)),
    Edit(SAMPLED, "plan.nproc", replace_by(4)),
    Edit(TOY, "steps.time_ns.7", multiply_by(-1)),
    Edit(BERT, "plan.fix_hp", replace_by({})),
    Edit(BERT, "plan.fix_hp", replace_by({"micro_batch_size": 32, "learning_rate": 0.00015})),
    Edit(BERT, "plan.fix_hp", replace_by({"micro_batch_size": 96})),
    Edit(BERT, "plan.recipe.seq_length", multiply_by(2)),
    Edit(BERT, "plan.recipe.seq_length", multiply_by(0.5)),
    Edit(BERT, "plan.recipe.learning_rate", multiply_by(0.1)),
    Edit(BERT, "plan.recipe_name", replace_by("standard-1x1")),
    Edit(BERT, "plan.compared_with", replace_by("standard-1x1")),
    Edit(BERT, "plan.rules", replace_by("open")),
    Edit(BERT, "plan.labels", replace_by(["self-reported"])),
    Edit(BERT, "plan.device.vendor", replace_by("amd")),
    Edit(BERT, "plan.device.torch_type", replace_by("npu")),
    Edit(BERT, "plan.device.collective_backend", replace_by("hccl")),
    Edit(BERT, "plan.case_key", replace_by("distilbert_sst2:pytorch_2.13:ascend:1:2:1")),
    Edit(BERT, "plan.case_key", replace_by("distilbert_sst2:pytorch_2.13:nvidia:1:8:1")),
    Edit(BERT, "plan.about.metric", replace_by("f1")),
    Edit(BERT, "plan.about.higher_is_better", replace_by(False)),
    Edit(BERT, "environment.devices.0.vendor", replace_by("amd")),
    Edit(BERT, "environment.devices.0.name", replace_by("AMD Instinct MI300X")),
    Edit(BERT, "environment.job.parameters", multiply_by(1000)),
    Edit(BERT, "findings", replace_by([{"code": "not_steady", "args": {"drift": 0.3}}])),
    Edit(BERT, "figures.p_train", change=None),
    Edit(BERT, "figures.step_time_p99", change=None),
    Edit(
        BERT,
        "figures.MAMFU",
        replace_by({"value": None, "unit": "%", "reason": {"code": "peak_unknown"}}),
    ),
    Edit(BERT, "figures.MFU.note", replace_by(None)),
    Edit(BERT, "started", replace_by("2025-11-21T08:15:00+00:00")),
    Edit(BERT, "started", replace_by("2027-11-21T08:15:00+00:00")),
    Edit(BERT, "started", replace_by("long ago")),
    Edit(BERT, "run_id", replace_by("20251121T081500Z-distilbert_sst2-5eed01")),
    Edit(BERT, "run_id", replace_by("20261121T081500Z-glm_superglue-5eed01")),
    Edit(BERT, "status", replace_by("failed")),
    Edit(TOY, "plan.labels", replace_by(["generated-data"])),
    Edit(TOY, "plan.labels", replace_by(["self-reported"])),
    Edit(BERT, "plan.extra", replace_by({"weight_decay": 0.1})),
    Edit(TOY, "plan.device.vendor", replace_by("nvidia")),
    Edit(TOY, "environment.devices.0.name", replace_by("NVIDIA H100 80GB HBM3")),
    Edit(TOY, "environment.devices.0.vendor", replace_by("nvidia")),
    Edit(TOY, "environment.job.parameters", multiply_by(1000)),
    Edit(TOY, "environment.job.trainable_parameters", replace_by(611)),
    Edit(TOY, "plan.repeat_index", replace_by(2)),
    Edit(
        TOY,
        "findings",
        replace_by([{"code": "loss_never_changes", "args": {"loss": 0.5, "steps": 16}}]),
    ),
    Edit(TOY, "findings", replace_by([{"code": "machine_busy", "args": {"share": 0.5}}])),
    Edit(TOY, "findings", replace_by([{"code": "excellent", "args": {}}])),
    Edit(TOY, "figures.p_core", change=None),
    Edit(TOY, "figures.loss", change=None),
    Edit(TOY, "figures.MFU.reason.code", replace_by("device_unreported")),
    Edit(TOY, "figures.MFU_causal", replace_by({"value": 41.0, "unit": "%"})),
    Edit(TOY, "ranks.0.finished", replace_by(False)),
    Edit(TOY, "ranks.0.step_ns", multiply_by(0.5)),
    Edit(TOY, "evidence", lambda files: files[:-1]),
    Edit(TOY, "trust.reasons.1.args.launches", replace_by(5)),
    Edit(SAMPLED, "telemetry", replace_by(None)),
    Edit(SAMPLED, "telemetry.intervals_s.run.1", multiply_by(2)),
    Edit(SAMPLED, "telemetry.intervals_s.measured", replace_by([9.0, 9.5])),
    Edit(SAMPLED, "telemetry.devices.0.over.run.quantities.power_w.mean", multiply_by(3)),
    Edit(SAMPLED, "telemetry.devices.0.over.run.quantities.power_w.readings", multiply_by(3)),
    Edit(SAMPLED, "series.0.points.2", replace_by([3.0, 1e12])),
    Edit(SAMPLED, "environment.devices.0.name", replace_by("NVIDIA H100 80GB HBM3")),
    # With these the identities themselves cannot be computed.
    Edit(TOY, "quality.best_possible", replace_by(-1.0)),
    Edit(TOY, "spans.rank", replace_by(-2)),
    Edit(TOY, "spans.by_name_ns", replace_by({})),
    Edit(TOY, "spans.train_parts_ns", replace_by({})),
    Edit(TOY, "ranks.0.spans_ns", replace_by({})),
    Edit(TOY, "ranks.0.spans_ns.train", replace_by(0)),
    Edit(SAMPLED, "telemetry.intervals_s", replace_by({})),
    Edit(SAMPLED, "telemetry.devices.0.over", replace_by({})),
)


def apply(record: dict[str, Any], edit: Edit) -> dict[str, Any]:
    """Return the record, a JSON document, as it is after the edit; its whole numbers stay whole.

    ``edit.path`` are keys and indexes of lists, joined by dots, such as ``ranks.0.finished``.
    ``edit.change`` returns the new value for the old one; None: the key is removed.
    """
    *parent_keys, last_key = edit.path.split(".")
    place: Any = record
    for parent_key in parent_keys:
        place = place[int(parent_key)] if isinstance(place, list) else place[parent_key]
    key = int(last_key) if isinstance(place, list) else last_key
    if edit.change is None:
        del place[key]
        return record
    # Of a record that lacks the key, which is then new, the old value is None.
    old = place.get(key) if isinstance(place, dict) else place[key]
    new = edit.change(old)
    place[key] = int(new) if isinstance(old, int) and not isinstance(old, bool) else new
    return record
