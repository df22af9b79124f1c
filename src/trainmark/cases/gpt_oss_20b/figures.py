"""Compute how evenly tokens were routed and how long their exchange took; no torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.spec import Figure, OwnFigures, message
from trainmark.train.step_memory import compute_causal_mfu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.protocols import RankWork
    from trainmark.spec import Message

EXCHANGE_PART = "all_to_all"  # the part of a step that the job times; see ``train.experts``
_NS_PER_S = 1e9
# The figure of the busiest rank's load over the mean, and that of the busiest expert's. The load of
# a rank is that of all its experts.
_OVERLOADS = {"rank": "expert_overload", "expert": "single_expert_overload"}


def compute(ranks: Sequence[RankWork], known: Mapping[str, Figure]) -> OwnFigures:
    """Return the figures of routing after the warm-up, and the MFU with causal attention.

    The figures of routing are the dropped assignments, the loads of the busiest rank and expert,
    and the bytes and time of the exchange of tokens between ranks that share experts. A single rank
    has the mean load, which a note on its figures says. A note on the run names the load of the
    busiest rank or expert. The result is empty if a rank ended before its job reported its facts.

    Args:
        known: the common figures of the run, by name.
    """
    if not all("loads_of_ranks" in rank.facts for rank in ranks):
        return OwnFigures({})
    facts = ranks[0].facts  # those of routing are over all ranks, so they are the same on each
    figures = dict(compute_causal_mfu(ranks, known).figures) | _compute_exchange(ranks)
    figures["dropped_assignments"] = Figure(facts["assignments_dropped"])
    # An overload is the load of the busiest rank or expert over the mean load. The facts have its
    # median over the steps and its value in the worst step, unless no step was measured.
    for subject, name in _OVERLOADS.items():  # rank or expert, and the name of its figure
        note = None
        if subject == "rank" and len(ranks) == 1:
            note = message("one_rank_has_all_experts")
        figures[name] = Figure(facts.get(f"{subject}_overload_p50"), note=note)
        figures[f"{name}_worst"] = Figure(facts.get(f"{subject}_overload_worst"), note=note)
    for name, figure in figures.items():
        if figure.value is None and figure.reason is None:
            figures[name] = Figure(None, message("rank_without_measured_step"))
    # The trend is empty if no step was taken: then there is no load to describe.
    notes = [_describe_balance(figures, facts)] if facts["overload_trend"] else []
    return OwnFigures(figures, notes)


def _compute_exchange(ranks: Sequence[RankWork]) -> dict[str, Figure]:
    """Return the figures of the exchange of tokens between ranks that share experts.

    They are the bytes/s that a device sends on average, and the share of the step time in %.
    """
    names = ("all_to_all_bytes_per_device", "all_to_all_share")
    # Number of ranks that share the experts of a layer; 1 if the facts do not name it.
    expert_ranks = (ranks[0].facts["parallel"] or {}).get("experts", 1)
    if expert_ranks == 1:
        return dict.fromkeys(names, Figure(None, message("experts_not_shared")))
    # ``windows_ns`` is the time of a rank's steps after the warm-up, ``parts_ns`` that of each part
    # of them that the job times. All ranks wait for the slowest one in each exchange.
    slowest_s = max(rank.windows_ns for rank in ranks) / _NS_PER_S
    if slowest_s == 0:
        return dict.fromkeys(names, Figure(None, message("rank_without_measured_step")))
    sent_bytes = sum(rank.counts.tokens * rank.facts["exchanged_bytes_per_token"] for rank in ranks)
    exchange_ns = sum(rank.parts_ns.get(EXCHANGE_PART, 0) for rank in ranks)
    share = 100 * exchange_ns / sum(rank.windows_ns for rank in ranks)
    return {
        "all_to_all_bytes_per_device": Figure(sent_bytes / slowest_s / len(ranks)),
        "all_to_all_share": Figure(share),
    }


def _describe_balance(figures: Mapping[str, Figure], facts: Mapping[str, Any]) -> Message:
    """Return the message on the load of the busiest rank and expert, relative to the mean load.

    A single rank has all experts, so only the busiest expert is named. With balanced routing all
    loads are equal, and the message says so.

    Args:
        figures: those of ``compute``, by name.
        facts: of the job, as any rank reported them.
    """
    if facts["routing"] == "balanced":
        return message("balanced_routing")
    rank = figures[_OVERLOADS["rank"]]
    expert = figures[_OVERLOADS["expert"]]
    if rank.note is not None:  # only the figure of a single rank has a note
        return message("busiest_expert", expert=expert.value)
    return message("busiest_rank", rank=rank.value, expert=expert.value)
