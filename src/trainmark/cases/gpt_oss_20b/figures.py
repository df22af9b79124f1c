"""Compute how evenly tokens were routed and what their exchange took; no torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.spec import Figure, OwnFigures, message
from trainmark.train.step_memory import causal_mfu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.protocols import RankWork
    from trainmark.spec import Message

EXCHANGE_PART = "all_to_all"  # of the steps' time; see ``train.experts``
_NS_PER_S = 1e9
_OVERLOADS = {"rank": "expert_overload", "expert": "single_expert_overload"}


def compute(ranks: Sequence[RankWork], known: Mapping[str, Figure]) -> OwnFigures:
    """Return the loads of the busiest rank and expert, and the exchange, after the warm-up.

    The load of one rank alone is the mean, and its note says so. A note on the run tells the load
    of the busiest rank, or of the busiest expert. Empty if a rank ended before its job reported
    its facts.
    """
    if not all("loads_of_ranks" in rank.facts for rank in ranks):
        return OwnFigures({})
    facts = ranks[0].facts
    figures = dict(causal_mfu(ranks, known).figures) | _compute_exchange(ranks)
    figures["dropped_assignments"] = Figure(facts["assignments_dropped"])
    for of, name in _OVERLOADS.items():
        note = message("one_rank_has_all_experts") if of == "rank" and len(ranks) == 1 else None
        for suffix, fact in (("", "p50"), ("_worst", "worst")):
            figures[name + suffix] = Figure(facts.get(f"{of}_overload_{fact}"), note=note)
    absent = Figure(None, message("rank_without_measured_step"))
    figures = {
        name: absent if x.value is None and x.reason is None else x for name, x in figures.items()
    }
    notes = [_describe_balance(figures, facts)] if facts["overload_trend"] else []
    return OwnFigures(figures, notes)


def _compute_exchange(ranks: Sequence[RankWork]) -> dict[str, Figure]:
    """Return bytes/s that a device sends, and the share of the steps' time that exchanges take."""
    names = ("all_to_all_bytes_per_device", "all_to_all_share")
    shared = (ranks[0].facts["parallel"] or {}).get("experts", 1)
    if shared == 1:
        return dict.fromkeys(names, Figure(None, message("experts_not_shared")))
    slowest_s = max(rank.windows_ns for rank in ranks) / _NS_PER_S
    if slowest_s == 0:
        return dict.fromkeys(names, Figure(None, message("rank_without_measured_step")))
    sent = sum(rank.counts.tokens * rank.facts["exchanged_bytes_per_token"] for rank in ranks)
    taken_ns = sum(rank.parts_ns.get(EXCHANGE_PART, 0) for rank in ranks)
    share = 100 * taken_ns / sum(rank.windows_ns for rank in ranks)
    values = (sent / slowest_s / len(ranks), share)
    return {name: Figure(value) for name, value in zip(names, values, strict=True)}


def _describe_balance(figures: Mapping[str, Figure], facts: Mapping[str, Any]) -> Message:
    """Return the sentence on the load of the busiest rank, or on that of the busiest expert."""
    if facts["routing"] == "balanced":
        return message("balanced_routing")
    rank, expert = figures["expert_overload"], figures["single_expert_overload"]
    if rank.note is not None:
        return message("busiest_expert", expert=expert.value)
    return message("busiest_rank", rank=rank.value, expert=expert.value)
