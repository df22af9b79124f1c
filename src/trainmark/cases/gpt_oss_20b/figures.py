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

    A note tells the first of them. Empty if a rank ended before its job reported its facts.
    """
    if not all("loads_of_ranks" in rank.facts for rank in ranks):
        return OwnFigures({})
    facts = ranks[0].facts
    figures = dict(causal_mfu(ranks, known).figures) | _exchange(ranks)
    figures["dropped_assignments"] = Figure(facts["assignments_dropped"])
    for of, name in _OVERLOADS.items():
        for suffix, fact in (("", "p50"), ("_worst", "worst")):
            figures[name + suffix] = Figure(facts.get(f"{of}_overload_{fact}"))
    if len(ranks) == 1:
        alone = Figure(None, message("one_rank_has_all_experts"))
        figures |= {"expert_overload": alone, "expert_overload_worst": alone}
    absent = Figure(None, message("rank_without_measured_step"))
    figures = {
        name: absent if x.value is None and x.reason is None else x for name, x in figures.items()
    }
    return OwnFigures(figures, [_note(figures, facts)] if facts["overload_trend"] else [])


def _exchange(ranks: Sequence[RankWork]) -> dict[str, Figure]:
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


def _note(figures: Mapping[str, Figure], facts: Mapping[str, Any]) -> Message:
    """Return the sentence on the load of the busiest rank, or on that of the busiest expert."""
    code = "balanced_routing" if facts["routing"] == "balanced" else "busiest_expert"
    rank = figures["expert_overload"].value
    expert = figures["single_expert_overload"].value
    if rank is not None and code == "busiest_expert":
        return message("busiest_rank", rank=rank, expert=expert)
    return message(code, expert=expert)
