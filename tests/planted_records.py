"""Edits of records that somebody mails, written before the checks that find them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Edit(NamedTuple):
    """A change of one value of a golden record: its file, the path of keys, the new value."""

    record: str
    path: str
    change: Callable[[Any], Any]


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
    old = place[key]
    new = edit.change(old)
    place[key] = int(new) if isinstance(old, int) and not isinstance(old, bool) else new
    return record
