"""Which rounds an acceptance has, and how long they take: before it starts and while it runs."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.acceptance.evidence import Phase

_START_S = 20.0  # about: of the ranks of a round: imports, data, model, first steps


def expected_round_s(training_s: float) -> float:
    """Return about how long a round takes, of which ``training_s`` is timed training."""
    return _START_S + training_s


def minutes(seconds: float) -> str:
    """Return a time in minutes, of ten or more without a fraction."""
    return f"{seconds / 60:.0f} min" if seconds >= 600 else f"{seconds / 60:.1f} min"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRound:
    """Teams that will measure at the same time, by the names of their members."""

    phase: Phase
    number: int
    teams: Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """All rounds that are certain.

    Args:
        title: what is accepted, and where.
        round_s: about how long a round takes.
        limit_s: when all ends at the latest.
        remarks: what may come in addition, and what is left out.
    """

    title: str
    schedule: Sequence[ScheduledRound]
    round_s: float
    limit_s: float
    remarks: tuple[str, ...] = ()

    @property
    def num_rounds(self) -> dict[Phase, int]:
        """Return the rounds of each phase that has any, in their order."""
        return dict(Counter(scheduled.phase for scheduled in self.schedule))

    @property
    def expected_s(self) -> float:
        """Return about how long all rounds take."""
        return len(self.schedule) * self.round_s

    def announcement(self) -> list[str]:
        """Return phases and times in words."""
        lines = [self.title]
        for phase, count in self.num_rounds.items():
            rounds = "1 round" if count == 1 else f"{count} rounds"
            lines.append(f"{phase}: {rounds}, about {minutes(count * self.round_s)}")
        lines += self.remarks
        times = f"about {minutes(self.expected_s)}, and at most {minutes(self.limit_s)}"
        return [*lines, f"in all {times}"]


class Progress:
    """How far rounds are, and about how long the rest takes.

    Args:
        phases: that of each round, in their order.
        training_s: time of the timed training in a round.
    """

    def __init__(self, phases: Sequence[str], training_s: float) -> None:
        self._phases = list(phases)
        self._expected_round_s = expected_round_s(training_s)
        self._begun = 0
        self._start_s = time.monotonic()

    def begin_round(self) -> str:
        """Count a round that begins; return where that is, in words."""
        phase = self._phases[self._begun]
        of_phase = self._phases.count(phase)
        place = self._phases[: self._begun].count(phase)
        round_s = self._expected_round_s
        if self._begun:
            round_s = (time.monotonic() - self._start_s) / self._begun
        remaining, remaining_of_phase = len(self._phases) - self._begun, of_phase - place
        self._begun += 1
        left = minutes(remaining_of_phase * round_s)
        text = f"{phase}: round {place + 1} of {of_phase}, about {left} left"
        if remaining > remaining_of_phase:
            text += f", {minutes(remaining * round_s)} in all"
        return text
