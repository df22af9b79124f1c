"""How a run was compiled: the part of its record, from the first rank's counts and all windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trainmark.data.documents import Frozen
from trainmark.record.shapes import Count  # noqa: TC001 - pydantic reads it
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from trainmark.plan.plan import Plan
    from trainmark.record.run.timeline import RunTimeline

Cache = Literal["cold", "warm", "mixed"]


class Compilation(Frozen):
    """What torch's compiler did on the first rank."""

    cache: Cache | None = Field(
        description="whether inductor's cache on disk had none, all or some of the graphs"
    )
    reason: Message | None = Field(default=None, description="why cache is null")
    graphs: Count | None = Field(description="graphs compiled, recompilations counted")
    graph_breaks: Count | None
    cache_hits: Count | None = Field(description="forward and backward graphs count each")
    cache_misses: Count | None
    cache_bypasses: Count | None
    graphs_left_out: Count | None = Field(
        description="graphs that torch does not replay on the device; null where none is to be"
    )
    graphs_while_measured: Count = Field(
        description="compiled within windows after the warm-up, on the rank with most"
    )


def compilation(plan: Plan, timeline: RunTimeline) -> Compilation | None:
    """Return how the run was compiled; None for a recipe that compiles nothing."""
    if not plan.recipe.get("compile"):
        return None
    rank = timeline.ranks[0]
    counts = rank.result.compiler
    cache = None if counts is None else _cache(counts)
    reason = message("compiler_uncounted") if cache is None else None
    names = (
        "graphs", "graph_breaks", "cache_hits", "cache_misses", "cache_bypasses", "graphs_left_out",
    )  # fmt: skip
    counted = {name: None if counts is None else counts.get(name) for name in names}
    return Compilation.model_validate(
        {
            **counted,
            "cache": cache,
            "reason": reason,
            "graphs_while_measured": graphs_while_measured(timeline),
        }
    )


def graphs_while_measured(timeline: RunTimeline) -> int:
    """Return the graphs compiled within windows after the warm-up, of the rank with most."""
    return max(rank.phases["train"].graphs_compiled for rank in timeline.ranks)


def _cache(counts: dict[str, int | None]) -> Cache | None:
    hits = counts["cache_hits"] or 0
    made = (counts["cache_misses"] or 0) + (counts["cache_bypasses"] or 0)
    if hits + made == 0:
        return None
    if hits == 0:
        return "cold"
    return "mixed" if made else "warm"
