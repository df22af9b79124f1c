"""Hold a run's training against what it does to the trained parameters.

Owns the rules: they may not change while nobody trains, they must change over a window, and
each must have changed by the end. Looks at windows' edges only, and counts the time it takes.
Knows no torch: how tensors are looked at is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from trainmark.errors import NotTrainedError, UntimedWorkError

if TYPE_CHECKING:
    from collections.abc import Callable


NAMED = 3  # parameters in a sentence; the events hold all


class Digest(Protocol):
    """See ``training.parameters.TensorDigest``."""

    def sample(self) -> bytes:
        """Return the bytes of a few elements."""

    def sums(self) -> dict[str, int]:
        """Return a number for each tensor that depends on every bit of it."""


class Gradients(Protocol):
    """See ``training.parameters.GradientWatch``."""

    @property
    def finished(self) -> bool:
        """Tell whether all looks were taken."""

    def found(self) -> dict[str, bool]:
        """Return whether any gradient of a parameter was not zero, by name."""

    def is_whole(self, name: str) -> bool:
        """Tell whether this rank holds all of a parameter."""


@dataclass(slots=True, kw_only=True)
class ParameterCheck:
    """Look at the trained parameters of one rank.

    A window is given up as untrained on exact sums only. They are taken before the first
    window, before the first one after the warm-up, and where a sample did not change: the
    next window that changes nothing is then known to.

    Args:
        updates: see ``Job.updates``.
    """

    digest: Digest
    gradients: Gradients
    updates: Callable[[], int]
    clock: Callable[[], int]
    _spent_ns: int = field(default=0, init=False)
    _gradients_judged: bool = field(default=False, init=False)
    _at_start: dict[str, int] = field(default_factory=dict, init=False)
    _sample: bytes = field(default=b"", init=False)
    _sums: dict[str, int] | None = field(default=None, init=False)
    _updates: int = field(default=0, init=False)

    def start(self) -> None:
        """Look before the first step."""
        self._at_start = self._sums = self.digest.sums()
        self._sample, self._updates = self.digest.sample(), self.updates()

    def after_window(self, *, first_step: int, steps: int, exact: bool = False) -> None:
        """Look at the edge of a window of ``steps`` after ``first_step`` others.

        Args:
            exact: take sums, so that the next window can be judged whatever follows.

        Raises:
            NotTrainedError: its steps were to change parameters, and not a bit of them changed;
                or a parameter received nothing but zeros as gradients in the first steps.
        """
        if not self._at_start:
            return  # this rank holds nothing; the record holds the ranks against each other
        started_ns = self.clock()
        sample = self.digest.sample()
        same = sample == self._sample
        self._sample = sample
        before, self._sums = self._sums, self.digest.sums() if same or exact else None
        if same:
            updates = self.updates()
            if before == self._sums and updates > self._updates:
                raise NotTrainedError(
                    "parameters_unchanged_in_window",
                    first=first_step + 1,
                    last=first_step + steps,
                    updates=updates - self._updates,
                    parameters=len(self._at_start),
                )
        if self._sums is not None:
            self._updates = self.updates()
        self._judge_gradients()
        self._spent_ns += self.clock() - started_ns

    def _judge_gradients(self) -> None:
        if self._gradients_judged or not self.gradients.finished:
            return
        self._gradients_judged = True
        found = self.gradients.found()
        zero = [name for name, some in found.items() if not some and self.gradients.is_whole(name)]
        if zero:
            raise NotTrainedError(
                "gradients_zero",
                names=", ".join(zero[:NAMED]),
                number=len(zero),
                parameters=len(found),
            )

    def after_evaluation(self, *, step: int) -> None:
        """Look after an evaluation behind ``step`` steps; nothing trains in one.

        Raises:
            UntimedWorkError: parameters changed since the last window's edge.
        """
        started_ns = self.clock()
        if self.digest.sample() != self._sample:
            raise UntimedWorkError("parameters_changed_in_evaluation", step=step)
        self._spent_ns += self.clock() - started_ns

    def take_ns(self) -> int:
        """Return the time that looking took since the last call."""
        spent, self._spent_ns = self._spent_ns, 0
        return spent

    def end(self) -> dict[str, list[str]]:
        """Return the names of parameters that changed since ``start``, and of those that did not.

        ``no_gradient`` and ``gradient`` name those whose first gradients were all zero or not.

        Raises:
            UntimedWorkError: parameters changed since the last look.
        """
        if self.digest.sample() != self._sample:
            raise UntimedWorkError("parameters_changed_after_training")
        sums = self.digest.sums()
        changed = [name for name, first in self._at_start.items() if sums[name] != first]
        unchanged = [name for name, first in self._at_start.items() if sums[name] == first]
        found = self.gradients.found()
        return {
            "changed": changed,
            "unchanged": unchanged,
            "gradient": [name for name, some in found.items() if some],
            "no_gradient": [name for name, some in found.items() if not some],
        }
