"""Find the rank that computed something else first when windows were repeated.

A wrong gradient reaches every rank with its reduction, and the wrong weight of a shard with the
next forward pass. So the rank whose own values differ earliest is the one that computed wrongly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from pydantic import Field

from trainmark.documents import Frozen
from trainmark.events.values import Count  # noqa: TC001 - pydantic reads it at run time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.events.schema import BitDifference, Replay

ReplayPart = Literal["weight", "loss", "gradient"]  # in the order in which a step computes them
MAX_LISTED = 100  # differing windows in a record


class ReplayDifference(Frozen):
    """A window whose first pass, or first repeat, was computed differently by some ranks."""

    step: Count = Field(description="counted from 1")
    part: ReplayPart
    tensor: str | None = Field(description="name of the parameter; null: the loss")
    ranks: list[Count] = Field(description="ranks that differ first; the others follow from them")


class Replays(Frozen):
    """Windows that were repeated from a saved state and compared bit by bit."""

    windows: Count = Field(description="windows that were repeated on all ranks")
    not_deterministic: Count = Field(
        description="windows whose two repeats also differed, so that they prove nothing"
    )
    different: Count = Field(description="windows with a difference that two repeats confirm")
    differences: list[ReplayDifference] = Field(description=f"the first {MAX_LISTED} of them")


def summarize_replays(replays_by_rank: Sequence[Sequence[Replay]]) -> Replays | None:
    """Return how many windows were repeated, how many gave other values, and where these began.

    A window is computed again from a saved state and compared with its first pass. None: no rank
    repeated a window.

    Args:
        replays_by_rank: for each rank, one result for each window that it repeated, in order. All
            ranks repeat the same windows. A result has a ``difference``, which is None if the rank
            computed the same again.
    """
    if not any(replays_by_rank):
        return None
    # For each window the results of all ranks. Not strict: if a rank ended early, the windows that
    # it did not repeat are left out.
    windows = list(zip(*replays_by_rank, strict=False))
    # If a repeat differs from the first pass, two more passes follow as a control. If these differ
    # from each other, the first difference proves nothing, and no rank reports it. All ranks report
    # the same outcome of the control.
    num_unstable = sum(window[0].control == "not_deterministic" for window in windows)
    differing_windows = [
        window for window in windows if any(replay.difference for replay in window)
    ]
    differences = [_locate_first_difference(window) for window in differing_windows[:MAX_LISTED]]
    return Replays(
        windows=len(windows),
        not_deterministic=num_unstable,
        different=len(differing_windows),
        differences=differences,
    )


def _locate_first_difference(window: Sequence[Replay]) -> ReplayDifference:
    """Return the difference that was computed first in a window, and the ranks that have it.

    These ranks computed wrongly; those that differ later may only have received wrong values.

    Args:
        window: for each rank, in order, the result of repeating the same window. Its ``difference``
            from the first pass is None if there is none. At least one rank has a difference.
    """
    difference_of_rank = {
        rank: replay.difference
        for rank, replay in enumerate(window)
        if replay.difference is not None
    }
    earliest = min(difference_of_rank.values(), key=_order_in_time)
    # Those of the same step and part (weight, loss or gradient), whichever tensor differs.
    ranks = [
        rank
        for rank, difference in difference_of_rank.items()
        if _order_in_time(difference) == _order_in_time(earliest)
    ]
    return ReplayDifference(
        step=earliest.step, part=earliest.part, tensor=earliest.tensor, ranks=ranks
    )


def _order_in_time(difference: BitDifference) -> tuple[int, int]:
    """Return a key that sorts differences of ranks in the order of their computation."""
    return difference.step, get_args(ReplayPart).index(difference.part)
