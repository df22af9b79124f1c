"""How a run was compiled: the part of its record, from the first rank's counts and all windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Le
from pydantic import Field

from trainmark.data.json_documents import Frozen
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from trainmark.plan.plan import Plan
    from trainmark.record.shapes import CompilerCounts
    from trainmark.record.timeline import RunTimeline

Counted = Annotated[int, Ge(0), Le(2**63 - 1)]
Cache = Literal["cold", "warm", "mixed"]


class Compilation(Frozen):
    """What torch's compiler did on the first rank."""

    cache: Cache | None = Field(
        description="whether inductor's cache on disk had none, all or some of the graphs"
    )
    reason: Message | None = Field(default=None, description="why cache is null")
    graphs: Counted | None = Field(description="graphs compiled, recompilations counted")
    graph_breaks: Counted | None
    cache_hits: Counted | None = Field(description="forward and backward graphs count each")
    cache_misses: Counted | None
    cache_bypasses: Counted | None
    graphs_left_out: Counted | None = Field(
        description="graphs that torch does not replay on the device; null where none is to be"
    )
    graphs_while_measured: Counted = Field(
        description="compiled within windows after the warm-up, on the rank with most"
    )


def compilation(plan: Plan, timeline: RunTimeline) -> Compilation | None:
    """Return how the run was compiled; None for a recipe that compiles nothing."""
    if not plan.recipe.get("compile"):
        return None
    rank = timeline.ranks[0]
    counts: CompilerCounts | None = rank.result.get("compiler")
    cache = None if counts is None else _cache(counts)
    reason = None
    if not rank.result:
        reason = message("compiler_unreported")
    elif counts is None:
        reason = message("compiler_uncounted")
    elif cache is None:
        reason = message("compiler_cache_unused")
    names = (
        "graphs", "graph_breaks", "cache_hits", "cache_misses", "cache_bypasses", "graphs_left_out",
    )  # fmt: skip
    told = {name: None if counts is None else counts.get(name) for name in names}
    return Compilation.model_validate(
        {
            **told,
            "cache": cache,
            "reason": reason,
            "graphs_while_measured": graphs_while_measured(timeline),
        }
    )


def graphs_while_measured(timeline: RunTimeline) -> int:
    """Return the graphs compiled within windows after the warm-up, of the rank with most."""
    return max(rank.phases["train"].graphs_compiled for rank in timeline.ranks)


def _cache(counts: CompilerCounts) -> Cache | None:
    hits, made = counts["cache_hits"], counts["cache_misses"] + counts["cache_bypasses"]
    if hits + made == 0:
        return None
    if hits == 0:
        return "cold"
    return "mixed" if made else "warm"
