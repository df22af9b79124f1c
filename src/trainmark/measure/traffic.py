"""Compute what embedding models move: rows of tables, and vectors between ranks.

Owns the figures of jobs that say in their facts how many bytes a sample or a step moves.
Such a model has no headline MFU: its matrix products are a small part of the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmark.measure.timeline import RankTimeline, RunTimeline

NO_HEADLINE = "embedding look-ups, not products, are the work here: see bytes/s and FLOP/s"
_NS_PER_S = 1e9


def job_facts(timeline: RunTimeline) -> list[dict[str, Any]]:
    """Return what each rank's job said of itself at its end; empty where it said nothing."""
    return [rank.result.get("job") or {} for rank in timeline.ranks]


def has_headline_mfu(timeline: RunTimeline) -> bool:
    """Tell whether MFU means something for this job."""
    return all(facts.get("headline_mfu", True) for facts in job_facts(timeline))


def rates(timeline: RunTimeline) -> dict[str, tuple[float | None, str, str]]:
    """Return value, unit and remark by name; nothing for jobs that move no embeddings.

    The rates are a device's, over the windows after the warm-up. A value of None has its
    reason in the remark.
    """
    facts = job_facts(timeline)
    if not all("embedding_bytes_per_sample" in item for item in facts):
        return {}
    ranks = timeline.ranks
    phases = [rank.phases["train"] for rank in ranks]
    slowest_s = max(phase.windows_ns for phase in phases) / _NS_PER_S
    if slowest_s == 0:
        reason = "no step after the warm-up"
        return {
            "embedding_bytes_per_device": (None, "bytes/s", reason),
            "exchange_bytes_per_device": (None, "bytes/s", reason),
            "exchange_share": (None, "%", reason),
        }
    samples = sum(phase.samples for phase in phases)
    moved = samples * facts[0]["embedding_bytes_per_sample"] / len(ranks)
    sent = sum(item["exchanged_bytes_per_step"] for item in facts) / len(ranks)
    steps = max(phase.steps for phase in phases)
    return {
        "embedding_bytes_per_device": (
            moved / slowest_s, "bytes/s", "rows and gradients read, rows read and written",
        ),
        "exchange_bytes_per_device": (
            sent * steps / slowest_s, "bytes/s", "sent to other ranks, forward and backward",
        ),
        "exchange_share": _share(ranks, facts),
    }  # fmt: skip


def _share(ranks: list[RankTimeline], facts: list[dict[str, Any]]) -> tuple[float | None, str, str]:
    """Return the share of training and evaluation that ranks waited for exchanges."""
    if len(ranks) == 1:
        return None, "%", "one rank exchanges nothing"
    if any(rank.facts.get("memory_scope") != "process" for rank in ranks):
        return None, "%", "the host does not see an accelerator wait"
    spent_ns = [rank.train_ns for rank in ranks]
    known = [value for value in spent_ns if value]
    if len(known) < len(ranks):
        return None, "%", "a rank did not report its training time"
    waited_s = sum(item["exchange_exposed_s"] for item in facts)
    share = 100 * waited_s * _NS_PER_S / sum(known)
    return share, "%", "waiting for exchanges, evaluation included, mean of the ranks"
