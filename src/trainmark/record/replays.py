"""Find the rank that computed something else first when windows were repeated.

A wrong gradient reaches every rank with its reduction, and the wrong weight of a shard with the
next forward pass. So the rank whose own values differ earliest is the one that computed wrongly.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Literal, get_args

from pydantic import Field

from trainmark.documents import Frozen
from trainmark.events.values import Count  # noqa: TC001 - pydantic reads it at run time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    """Return what the repeats of all ranks showed; None if no rank repeated a window.

    Args:
        replays_by_rank: of each rank in the order of windows. Ranks repeat the same windows.
    """
    if not any(replays_by_rank):
        return None
    windows = list(zip(*replays_by_rank, strict=False))  # a rank may have ended early
    unstable = sum(window[0].control == "not_deterministic" for window in windows)
    differing = [window for window in windows if any(replay.difference for replay in window)]
    return Replays(
        windows=len(windows),
        not_deterministic=unstable,
        different=len(differing),
        differences=list(islice(map(_locate_first_difference, differing), MAX_LISTED)),
    )


def _locate_first_difference(window: Sequence[Replay]) -> ReplayDifference:
    """Return the earliest difference of a window that has one, and the ranks that have it."""
    places = dict(_list_differences(window))
    earliest = min(_get_moment(place) for place in places.values())
    ranks = [rank for rank, place in places.items() if _get_moment(place) == earliest]
    place = places[ranks[0]]
    return ReplayDifference(step=place.step, part=place.part, tensor=place.tensor, ranks=ranks)


def _list_differences(window: Sequence[Replay]) -> Iterator[tuple[int, BitDifference]]:
    """Yield each rank that computed a window differently, and where it first differed."""
    for rank, replay in enumerate(window):
        if replay.difference is not None:
            yield rank, replay.difference


def _get_moment(place: BitDifference) -> tuple[int, int]:
    """Return what orders differences of ranks in time."""
    return place.step, get_args(ReplayPart).index(place.part)
