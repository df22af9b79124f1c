"""What torch's compiler did in this process, from its own counters.

torch has no public interface for them. A version without these counters gives None, never 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.protocols import ReplaysGraphs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainmark.protocols import Device
    from trainmark.spec import Recipe


def _counters() -> Mapping[str, Mapping[str, int]] | None:
    try:
        from torch._dynamo.utils import counters
    except ImportError:
        return None
    found: Mapping[str, Mapping[str, int]] = counters
    return found


def graphs_compiled() -> int | None:
    """Return how many graphs were compiled so far, each recompilation counted; None: unknown."""
    counters = _counters()
    # None yet is unknown too: a version that counts under another name would be 0 forever.
    return None if counters is None else counters["stats"].get("unique_graphs")


def counting(recipe: Recipe) -> Callable[[], int | None]:
    """Return what counts the compiled graphs of a run; without compiling it imports no compiler."""
    return graphs_compiled if recipe.compile else lambda: None


def facts(device: Device, recipe: Recipe) -> dict[str, Any] | None:
    """Return the counts of the whole process, ``shapes.CompilerCounts``.

    None where they are unknown and for a recipe that compiles nothing.
    """
    if not recipe.compile:
        return None
    counters = _counters()
    graphs = graphs_compiled()
    if counters is None or graphs is None:
        return None
    inductor = counters["inductor"]
    return {
        "graphs": graphs,
        "graph_breaks": sum(counters["graph_break"].values()),
        "cache_hits": inductor.get("fxgraph_cache_hit", 0),
        "cache_misses": inductor.get("fxgraph_cache_miss", 0),
        "cache_bypasses": inductor.get("fxgraph_cache_bypass", 0),
        "graphs_left_out": device.graphs_left_out()
        if recipe.replays_graphs and isinstance(device, ReplaysGraphs)
        else None,
    }
