"""Compute what embedding models move, and what their steps are bound by.

Owns the figures of jobs that say in their facts how many bytes a sample moves,
and that time the parts of their steps. Such a model has no headline MFU: its matrix
products are a small part of the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.protocols import EMBEDDING_PART, EXCHANGE_PART
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from trainmark.measure.timeline import Phase, RunTimeline

NO_HEADLINE = message("no_headline_mfu")
UNITS = {
    "embedding_bytes_per_device": "bytes/s",
    "copy_bytes_per_device": "bytes/s",
    "exchange_bytes_per_device": "bytes/s",
    "embedding_share": "%",
    "dense_share": "%",
    "exchange_share": "%",
    "input_share": "%",
    "embedding_bandwidth_share": "%",
}
# What a step is bound by where a part of it takes the longest.
RESOURCES = {
    "embedding_share": "memory",
    "dense_share": "compute",
    "exchange_share": "exchange",
    "input_share": "input",
}
_NEAR_A_LIMIT = 20.0  # percent of it; below, what is short is not the resource
_NS_PER_S = 1e9

Rate = tuple[float | None, str, Message]


def job_facts(timeline: RunTimeline) -> list[dict[str, Any]]:
    """Return what each rank's job said of itself at its end; empty where it said nothing."""
    return [rank.result.get("job") or {} for rank in timeline.ranks]


def has_headline_mfu(timeline: RunTimeline) -> bool:
    """Tell whether MFU means something for this job."""
    return all(facts.get("headline_mfu", True) for facts in job_facts(timeline))


def rates(timeline: RunTimeline) -> dict[str, Rate]:
    """Return value, unit and remark by name; nothing for jobs that move no embeddings.

    All are over the windows after the warm-up, rates a device's, shares the ranks' mean. A
    value of None has its reason in the remark.
    """
    facts = job_facts(timeline)
    if not all("embedding_bytes_per_sample" in item for item in facts):
        return {}
    phases = [rank.phases["train"] for rank in timeline.ranks]
    slowest_s = max(phase.windows_ns for phase in phases) / _NS_PER_S
    if slowest_s == 0:
        return {
            name: (None, unit, message("rank_without_measured_step"))
            for name, unit in UNITS.items()
        }
    ranks = len(phases)
    samples = sum(phase.counts.samples for phase in phases)
    moved = samples * facts[0]["embedding_bytes_per_sample"]
    sent = samples * sum(item["exchanged_bytes_per_sample"] for item in facts)
    copied = sum(item["copy_bytes_per_second"] for item in facts) / ranks
    found: dict[str, Rate] = {
        "embedding_bytes_per_device": (
            moved / ranks / slowest_s, "bytes/s", message("embedding_bytes"),
        ),
        "copy_bytes_per_device": (copied, "bytes/s", message("copy_measured")),
        "exchange_bytes_per_device": (
            sent / ranks / slowest_s, "bytes/s", message("exchange_bytes"),
        ),
    }  # fmt: skip
    return (
        found | _shares(phases) | {"embedding_bandwidth_share": _bandwidth(phases, moved, copied)}
    )


def _shares(phases: list[Phase]) -> dict[str, Rate]:
    """Return the share of the steps' time in each part; what no part claims is dense."""
    total_ns = sum(phase.windows_ns for phase in phases)
    parts = {
        "embedding_share": _part_ns(phases, EMBEDDING_PART),
        "exchange_share": _part_ns(phases, EXCHANGE_PART),
        "input_share": sum(phase.wait_ns for phase in phases),
    }
    dense_ns = total_ns - sum(parts.values())
    remarks = {
        "embedding_share": message("embedding_time"),
        "dense_share": message("dense_time"),
        "exchange_share": message("device_marks"),
        "input_share": message("device_marks"),
    }
    shares: dict[str, Rate] = {
        name: (100 * spent_ns / total_ns, "%", remarks[name])
        for name, spent_ns in (parts | {"dense_share": dense_ns}).items()
    }
    if len(phases) == 1:
        shares["exchange_share"] = (None, "%", message("one_rank_no_exchange"))
    return shares


def _part_ns(phases: list[Phase], name: str) -> int:
    return sum(phase.parts_ns.get(name, 0) for phase in phases)


def _bandwidth(phases: list[Phase], moved: float, copied: float) -> Rate:
    """Return the bytes/s within the embedding stage over those of a copy."""
    spent_ns = _part_ns(phases, EMBEDDING_PART)
    if spent_ns == 0:
        return None, "%", message("embedding_untimed")
    share = 100 * moved * _NS_PER_S / spent_ns / copied
    return share, "%", message("embedding_bandwidth")


def bound_by(values: dict[str, float | None]) -> Message | None:
    """Say what the steps are bound by, and why; none where their parts are not known.

    Args:
        values: figures by name, shares in percent.
    """
    shares = {name: values.get(name) for name in RESOURCES}
    known = {name: share for name, share in shares.items() if share is not None}
    if not known:
        return None
    largest = max(known, key=lambda name: known[name])
    embedding_rate, dense_rate = values.get("embedding_bandwidth_share"), _dense_rate(values)
    reached = {"embedding_share": embedding_rate, "dense_share": dense_rate}.get(largest)
    far = reached is not None and reached < _NEAR_A_LIMIT
    shares["exchange_share"] = shares["exchange_share"] or 0.0  # one rank exchanges nothing
    percents = shares | {"embedding_rate": embedding_rate, "dense_rate": dense_rate}
    return message(
        f"bound_by_{RESOURCES[largest]}{'_far_from_limit' if far else ''}",
        **{name: None if value is None else value / 100 for name, value in percents.items()},
    )


def _dense_rate(values: dict[str, float | None]) -> float | None:
    """Return the products' rate within the dense part over the matmul rate, in percent."""
    overall, share = values.get("MAMFU"), values.get("dense_share")
    return overall / (share / 100) if overall is not None and share else None
