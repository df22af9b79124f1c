"""Repeat windows from a saved state and compare, bit by bit, what they computed.

Owns when a window is repeated and what its passes say. A repeat that differs is followed by two
more, the control: only if these agree does a difference count. Does not import torch: what saves
the state and takes digests are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from trainmark.events.schema import BitDifference

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.protocols import Batch, Device, Job, StepDigest

Control = Literal["not_needed", "deterministic", "not_deterministic"]


def find_difference(
    expected: Sequence[StepDigest], actual: Sequence[StepDigest], *, first_step: int = 0
) -> BitDifference | None:
    """Return the first difference between two passes over the same steps; None: there is none.

    Args:
        first_step: number of steps before them.
    """
    pairs = zip(expected, actual, strict=True)
    for step, (usual, other) in enumerate(pairs, first_step + 1):
        for name, total in usual.weights.items():
            if total != other.weights.get(name):
                return BitDifference(step=step, part="weight", tensor=name)
        if usual.loss != other.loss:
            return BitDifference(step=step, part="loss")
        for name, total in usual.gradients.items():
            if total != other.gradients.get(name):
                return BitDifference(step=step, part="gradient", tensor=name)
    return None


class SavedState(Protocol):
    """Keeps everything that a step changes."""

    def save(self) -> None:
        """Copy the present state."""

    def restore(self) -> None:
        """Return to the state that was saved last."""


class DigestWatch(Protocol):
    """Takes digests of the steps of one pass over a window."""

    def start(self) -> None:
        """Begin a pass."""

    def end_step(self) -> None:
        """Begin the next step of the pass; does not synchronise."""

    def finish(self, losses: Sequence[float]) -> list[StepDigest]:
        """End the pass; return the digest of each step, and of the state that it leaves.

        Args:
            losses: of the steps.
        """


class ReplayResult(NamedTuple):
    """What the repeats of a window showed on this rank.

    Attributes:
        repeats: how many there were.
        control: the same on all ranks.
        difference: where this rank's first pass, or else its first repeat, differs from the
            control.
    """

    repeats: int
    control: Control
    difference: BitDifference | None


@dataclass(slots=True, kw_only=True)
class WindowReplay:
    """Repeat every ``every_windows``-th measured window of one rank.

    All ranks repeat the same windows, because their collectives must meet.

    Args:
        on_any_rank: whether a flag is set on any rank; every rank calls it.
    """

    every_windows: int
    job: Job
    device: Device
    state: SavedState
    digests: DigestWatch
    on_any_rank: Callable[[bool], bool]
    _num_windows: int = field(default=0, init=False)

    def is_due(self) -> bool:
        """Tell whether the measured window that begins now is to be repeated."""
        return (self._num_windows + 1) % self.every_windows == 0

    def count_window(self) -> None:
        """Count a measured window that has ended."""
        self._num_windows += 1

    def save(self) -> None:
        """Save the state before a window and begin its first pass."""
        self.state.save()
        self.digests.start()

    def cancel(self) -> None:
        """End the first pass of a window that turned out to have no step."""
        self.digests.finish([])

    def end_step(self) -> None:
        """Note that a step of the first pass has ended; does not synchronise."""
        self.digests.end_step()

    def repeat(
        self, batches: Sequence[Batch], losses: Sequence[float], *, first_step: int
    ) -> ReplayResult:
        """Repeat the window and compare. Training goes on from the last repeat.

        Args:
            batches: that the window has trained.
            losses: of its steps.
            first_step: number of steps before it.
        """
        first = self.digests.finish(losses)
        second = self._take_steps(batches, len(losses))
        if not self.on_any_rank(first != second):
            return ReplayResult(1, "not_needed", None)
        controls = [self._take_steps(batches, len(losses)) for _ in range(2)]
        if self.on_any_rank(controls[0] != controls[1]):
            return ReplayResult(3, "not_deterministic", None)
        difference = find_difference(controls[0], first, first_step=first_step)
        if difference is None:
            difference = find_difference(controls[0], second, first_step=first_step)
        return ReplayResult(3, "deterministic", difference)

    def _take_steps(self, batches: Sequence[Batch], num_steps: int) -> list[StepDigest]:
        """Take the steps of the window from the saved state; return their digests."""
        self.state.restore()
        self.digests.start()
        source = iter(batches)
        losses = []
        for _ in range(num_steps):
            losses.append(self.job.step(source))
            self.digests.end_step()
        self.device.synchronize()
        return self.digests.finish(self.device.read(losses))
