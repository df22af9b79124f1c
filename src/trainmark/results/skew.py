"""Compare the ranks of a run with each other, and name the slowest and its node.

Owns when a rank counts as slow. Ranks that train synchronously wait for each other within a
step, so that a slow device shows in its matmul rate (``findings``) and slow data in the time
that its rank waits for batches, while steps last about as long on all ranks.
"""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING

from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.measure.timeline import Phase, RunTimeline
    from trainmark.spec import Message

_SLOW = 0.05  # of the ranks' median step; devices of one product differ by less
_FLOOR_NS = 100_000_000  # of measured time; in less, the start of threads decides
_NS_PER_S = 1e9


def slow_ranks(timeline: RunTimeline, nproc: int) -> Iterator[Message]:
    """Yield the rank with the longest steps, and the one that waits longest for data.

    The median is the lower one: of two ranks, the slower is compared with the faster.

    Args:
        nproc: ranks of a node.
    """
    phases = {rank.rank: rank.phases["train"] for rank in timeline.ranks}
    phases = {rank: x for rank, x in phases.items() if x.steps and x.windows_ns >= _FLOOR_NS}
    if len(phases) < 2:
        return
    steps_ns = {rank: phase.step_ns / phase.steps for rank, phase in phases.items()}
    waits_ns = {rank: phase.wait_ns / phase.steps for rank, phase in phases.items()}
    step_ns = median_low(steps_ns.values())
    for taken in (steps_ns, waits_ns):
        usual_ns = median_low(taken.values())
        slow = [rank for rank in taken if _much(taken[rank] - usual_ns, step_ns, phases[rank])]
        if slow:
            rank = max(slow, key=taken.__getitem__)
            yield message(
                "slow_rank" if taken is steps_ns else "slow_data",
                rank=rank,
                node=rank // nproc,
                own_s=taken[rank] / _NS_PER_S,
                median_s=usual_ns / _NS_PER_S,
                share=(taken[rank] - usual_ns) / step_ns,
                slow=len(slow),
                nodes=len({other // nproc for other in slow}),
            )


def _much(excess_ns: float, step_ns: float, phase: Phase) -> bool:
    """Tell whether a rank is slow: ranks begin their windows up to a step apart."""
    return excess_ns > step_ns * max(_SLOW, 1 / phase.steps)
