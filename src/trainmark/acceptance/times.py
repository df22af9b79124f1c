"""The measured times of each quantity, of members alone and of pairs, from the evidence."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainmark.acceptance.judgement import Measurements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.acceptance.evidence import Evidence
    from trainmark.acceptance.tasks import RankResult


class AloneTime(NamedTuple):
    """The seconds that a quantity of a member alone took in a round."""

    round_number: int
    member: str
    seconds: float


class PairTime(NamedTuple):
    """The seconds that a quantity of a pair of members took in a round."""

    round_number: int
    first: str
    second: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The measured times of one quantity, such as a training step or a copy.

    Args:
        alone: of members (devices or nodes) alone, one entry for each round.
        pairs: of two members that trained together, one entry for each round.
    """

    alone: list[AloneTime]
    pairs: list[PairTime]

    def make_measurements(self, names: Sequence[str]) -> Measurements:
        """Return the times of some members as arrays, which call each member a node.

        The times of members alone have one element a measurement, and so have those of pairs.

        Args:
            names: of the members, which get numbers in this order.
        """
        number_of = {name: number for number, name in enumerate(names)}
        alone = [time for time in self.alone if time.member in number_of]
        pairs = [time for time in self.pairs if {time.first, time.second} <= number_of.keys()]
        # The lower number of each pair comes first, in whichever order the round named its nodes.
        ends = [sorted((number_of[time.first], number_of[time.second])) for time in pairs]
        return Measurements(
            num_nodes=len(names),
            alone_node=np.array([number_of[time.member] for time in alone], np.int64),
            alone_round=np.array([time.round_number for time in alone], np.int64),
            alone_s=np.array([time.seconds for time in alone], np.float64),
            first=np.array([lower for lower, _ in ends], np.int64),
            second=np.array([higher for _, higher in ends], np.int64),
            pair_round=np.array([time.round_number for time in pairs], np.int64),
            pair_s=np.array([time.seconds for time in pairs], np.float64),
        )


def collect_times(evidence: Evidence, alone_phase: str) -> dict[str, Times]:
    """Return the times of each quantity, by its name.

    In a team the slowest rank counts. A window is a piece of a training that is timed as a whole;
    of other quantities, such as a copy, it is one repeat. Of the windows of a round only the median
    counts: they are measured by one process at one time, so that they differ less than rounds do.

    A quantity that was measured only in other phases has ``Times`` without any. ``judge_times``
    then judges nothing by it, but counts it among those that share the error rate.

    Args:
        evidence: ``results`` has the results of a team's ranks by phase, round and members.
        alone_phase: the phase in which members were measured alone: ``devices`` or ``nodes``.
    """
    times: dict[str, Times] = {}
    for (phase, round_number, members), results in evidence.results.items():
        for quantity in _list_common_quantities(results):
            quantity_times = times.setdefault(quantity, Times(alone=[], pairs=[]))
            seconds = _compute_slowest_rank_s(results, quantity)
            if phase == alone_phase:  # each team of this phase is one member
                quantity_times.alone.append(AloneTime(round_number, members[0], seconds))
            # The results of other phases are judged elsewhere.
            elif phase == "pairs":
                first, second = members
                quantity_times.pairs.append(PairTime(round_number, first, second, seconds))
    return times


def _compute_slowest_rank_s(results: Sequence[RankResult], quantity: str) -> float:
    """Return the median time of a team's windows; the time of a window is its slowest rank's.

    A window is a piece of a training that is timed as a whole, or one repeat of a copy, for
    instance.

    Args:
        results: of the ranks of a team in one round; all of them measured the quantity, in the same
            number of windows.
    """
    seconds_by_rank = [result.seconds[quantity] for result in results]
    slowest_by_window = [max(seconds) for seconds in zip(*seconds_by_rank, strict=True)]
    return float(median(slowest_by_window))


def find_slowest_rank_s(results: Sequence[RankResult], quantity: str) -> float | None:
    """Return the time of a team in a round: the median of its windows, by the slowest rank.

    A window is a piece of a training that is timed as a whole, or one repeat of a copy, for
    instance. None unless all ranks measured the quantity, the same number of times.

    Args:
        results: of the ranks of the team in this round.
    """
    if quantity not in _list_common_quantities(results):
        return None
    return _compute_slowest_rank_s(results, quantity)


def _list_common_quantities(results: Sequence[RankResult]) -> list[str]:
    """Return the quantities that all ranks measured, the same number of times.

    A rank has one time for each window, a piece of the training that is timed as a whole, in their
    order. So the slowest rank of every window is known only if all ranks have the same number of
    times.

    Args:
        results: of the ranks of a team in one round; ``seconds`` has their times by quantity.
    """
    common = []
    for name, seconds in results[0].seconds.items():
        counts = {len(result.seconds.get(name, [])) for result in results}
        if seconds and counts == {len(seconds)}:
            common.append(name)
    return common
