"""How the ranks and nodes of a run differ from each other: slow ones, other hardware, clocks."""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING

from trainmark.devices.cores import compact
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.record.record import NodeFacts
    from trainmark.record.run.nodes import NodeTimeline
    from trainmark.record.run.timeline import RunTimeline
    from trainmark.spec import Message

_SLOW = 0.05  # of the ranks' median step; devices of one product differ by less
_FLOOR_NS = 100_000_000  # of measured time; in less, the start of threads decides
_MOST_SKEW_S = 1.0  # of wall clocks, beyond which logs of nodes cannot be read beside each other
_COMPARED = ("cpu", "cpu_cores", "driver", "kernel", "os", "python", "container_image")


def slow_ranks(timeline: RunTimeline, nproc: int) -> Iterator[Message]:
    """Yield the rank with the longest steps, and the one that waits longest for data.

    The median is the lower one: of two ranks, the slower is compared with the faster.

    Args:
        nproc: ranks of a node.
    """
    measured = [x for x in timeline.ranks if x.phases["train"].windows_ns >= _FLOOR_NS]
    # The median: ranks begin a window up to a step apart, and those that begin first wait in it.
    steps_s = {rank.rank: (rank.median_step_ns or 0.0) / 1e9 for rank in measured}
    step_s = median_low(steps_s.values() or [0.0]) or 1e-9
    phases = {rank.rank: rank.phases["train"] for rank in measured}
    for taken in (steps_s, {rank: x.wait_ns / x.steps / 1e9 for rank, x in phases.items()}):
        usual_s = median_low(taken.values() or [0.0])
        slow = [rank for rank in taken if taken[rank] - usual_s > _SLOW * step_s]
        if slow:
            rank = max(slow, key=taken.__getitem__)
            yield message(
                "slow_rank" if taken is steps_s else "slow_data", rank=rank, node=rank // nproc,
                own_s=taken[rank], median_s=usual_s, share=(taken[rank] - usual_s) / step_s,
                slow=len(slow), nodes=len({other // nproc for other in slow}),
            )  # fmt: skip


def node_facts(timeline: RunTimeline) -> list[NodeFacts]:
    """Return what the nodes of a run on several reported, by number."""
    facts = [_facts(node, timeline) for node in timeline.nodes]
    differs = [{k: x for k, x in own.items() if x != facts[0].get(k, x)} for own in facts]
    return [
        {"ranks": compact(x.ranks), "finished": x.finished, "skew_s": x.skew_s, "differs": unlike}
        for x, unlike in zip(timeline.nodes, differs, strict=True)
    ]


def _facts(node: NodeTimeline, timeline: RunTimeline) -> dict[str, str]:
    launch = node.events.get("launch")
    machine = {} if launch is None else launch.environment
    device = timeline.ranks[node.ranks[0]].facts.device.get("name")
    found = {name: machine.get(name) for name in _COMPARED} | machine.get("packages", {})
    return {k: str(x) for k, x in (found | {"device": device}).items() if x is not None}


def unlike_nodes(found: Sequence[NodeFacts]) -> Iterator[Message]:
    """Yield nodes whose hardware or versions differ from the first, and clocks that are off."""
    names = dict.fromkeys(name for node in found for name in node["differs"])
    if names:
        unlike = compact(number for number, node in enumerate(found) if node["differs"])
        yield message("nodes_differ", nodes=unlike, names=", ".join(names))
    skews = {number: node["skew_s"] or 0.0 for number, node in enumerate(found)}
    off = {number: skew_s for number, skew_s in skews.items() if abs(skew_s) > _MOST_SKEW_S}
    for node, skew_s in sorted(off.items(), key=lambda item: -abs(item[1]))[:1]:
        yield message("clock_skew", node=node, skew_s=skew_s, nodes=compact(off))
