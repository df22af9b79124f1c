"""Which rounds an acceptance has, and how long they take: before it starts and while it runs."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.acceptance.evidence import Phase

_START_S = 20.0  # about what ranks take to import, to read data, to build the model and to warm up
_SECONDS_PER_MINUTE, _SECONDS_PER_HOUR = 60, 3600


def estimate_round_s(training_s: float) -> float:
    """Return about how long a round takes, of which ``training_s`` is timed training."""
    return _START_S + training_s


def format_time(seconds: float) -> str:
    """Return a time as text: in minutes, from two hours on in hours.

    From ten minutes on, minutes have no fraction.
    """
    if seconds >= 2 * _SECONDS_PER_HOUR:
        return f"{seconds / _SECONDS_PER_HOUR:.1f} h"
    minutes = seconds / _SECONDS_PER_MINUTE
    return f"{minutes:.0f} min" if minutes >= 10 else f"{minutes:.1f} min"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRound:
    """Teams that will measure at the same time, by the names of their members."""

    phase: Phase
    number: int
    teams: Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """All rounds that will be measured in any case, without those that confirm what looks bad.

    In a round, teams of devices or nodes that train together measure at the same time.

    Args:
        title: what is accepted, and where.
        schedule: the rounds in their order.
        round_s: about how long a round takes.
        limit_s: seconds from the start after which all ends at the latest.
        remarks: what may come in addition, and what is left out.
    """

    title: str
    schedule: Sequence[ScheduledRound]
    round_s: float
    limit_s: float
    remarks: tuple[str, ...] = ()

    @property
    def num_rounds(self) -> dict[Phase, int]:
        """Return the number of rounds of each phase that has any, in the order of the phases."""
        return dict(Counter(scheduled.phase for scheduled in self.schedule))

    @property
    def expected_s(self) -> float:
        """Return about how long all rounds take."""
        return len(self.schedule) * self.round_s

    def describe(self) -> list[str]:
        """Return the lines of text that show phases and times to the user."""
        lines = [self.title]
        for phase, count in self.num_rounds.items():
            rounds = "1 round" if count == 1 else f"{count} rounds"
            lines.append(f"{phase}: {rounds}, about {format_time(count * self.round_s)}")
        lines += self.remarks
        if not self.schedule:
            lines.append("all rounds were measured in earlier sessions; they are judged again")
            return lines
        lines.append(f"in all about {format_time(self.expected_s)}")
        # Many times the expected time, because the limit lets each round take its whole deadline.
        limit = format_time(self.limit_s)
        lines.append(f"ended after {limit} at the latest; --deadline limits each round")
        return lines


class Progress:
    """How far rounds are, and about how long the rest takes.

    Args:
        phase_of_round: the phase of each round, in the order of the rounds.
        training_s: seconds of timed training in each round.
    """

    def __init__(self, phase_of_round: Sequence[str], training_s: float) -> None:
        self._phase_of_round = list(phase_of_round)  # all rounds, in their order
        # A guess from the seconds of timed training in each round, used until a round has ended.
        self._expected_round_s = estimate_round_s(training_s)
        self._num_begun = 0  # rounds that have begun
        self._start_s = time.monotonic()

    def begin_round(self) -> str:
        """Count a round that begins; return a text with its number and the time left.

        The round is numbered within its phase. The time left is that of the phase and, if others
        follow it, also that of all rounds.
        """
        phase = self._phase_of_round[self._num_begun]
        num_rounds_of_phase = self._phase_of_round.count(phase)
        # Rounds of this phase that have begun, and ended, before this one.
        num_before = self._phase_of_round[: self._num_begun].count(phase)
        round_s = self._expected_round_s
        if self._num_begun:  # the mean of the rounds so far is a better estimate
            round_s = (time.monotonic() - self._start_s) / self._num_begun
        # Both numbers include the round that begins.
        remaining_rounds = len(self._phase_of_round) - self._num_begun
        remaining_of_phase = num_rounds_of_phase - num_before
        self._num_begun += 1
        text = f"{phase}: round {num_before + 1} of {num_rounds_of_phase}"
        time_left = format_time(remaining_of_phase * round_s)
        if remaining_rounds == remaining_of_phase:
            return f"{text}, about {time_left} left"
        # Further phases follow.
        total_left = format_time(remaining_rounds * round_s)
        return f"{text}, about {time_left} left in this phase, {total_left} left in total"
