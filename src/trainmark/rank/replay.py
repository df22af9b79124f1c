"""Repeat windows from a saved state and compare, bit by bit, what they computed.

Decides when a window is repeated and interprets the passes over it. After a repeat that differs
follow two more, the control: only if these agree does a difference count. This module does not
import torch: the objects that save the state and compute digests are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from trainmark.events.schema import BitDifference

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.protocols import Batch, Device, Job, StepDigest

ReplayControl = Literal["not_needed", "deterministic", "not_deterministic"]


def find_difference(
    expected: Sequence[StepDigest], actual: Sequence[StepDigest], *, first_step: int = 0
) -> BitDifference | None:
    """Return the first difference between two passes over the same steps; None: there is none.

    A pass takes the steps of a window once, from the same saved state.

    Args:
        expected, actual: the digests of one pass each: one of each step, then one of the state
            after the last step. In that one, ``weights`` also has the optimizer's tensors.
        first_step: number of steps before these steps.
    """
    pairs = zip(expected, actual, strict=True)
    # The state after the pass gets the number of the next step, which would begin with it.
    for step, (expected_step, actual_step) in enumerate(pairs, first_step + 1):
        # In the order of causes: ``weights`` are those with which the step was computed. If they
        # are wrong, so is the loss, and then the gradients.
        for name, expected_digest in expected_step.weights.items():
            if expected_digest != actual_step.weights.get(name):
                return BitDifference(step=step, part="weight", tensor=name)
        if expected_step.loss != actual_step.loss:
            return BitDifference(step=step, part="loss")
        for name, expected_digest in expected_step.gradients.items():
            if expected_digest != actual_step.gradients.get(name):
                return BitDifference(step=step, part="gradient", tensor=name)
    return None


class SavedState(Protocol):
    """Keeps everything that a step changes."""

    def save(self) -> None:
        """Copy the present state."""

    def restore(self) -> None:
        """Return to the state that was saved last."""


class DigestWatch(Protocol):
    """Computes digests of the steps of one pass over a window."""

    def start(self) -> None:
        """Begin a pass, which takes the steps of a window once."""

    def end_step(self) -> None:
        """Begin the next step of the pass; does not synchronise."""

    def finish(self, losses: Sequence[float]) -> list[StepDigest]:
        """End a pass over the window; return its digests.

        The digests are one for each step, then one of the state after the last step.

        Args:
            losses: the loss of each step of the pass.
        """


class ReplayResult(NamedTuple):
    """The result of repeating a window on this rank.

    Attributes:
        repeats: number of repeats.
        control: outcome of the control, the same on all ranks.
        difference: where this rank's first pass differs from the control, or else its first repeat;
            None: they agree, although the passes of another rank may differ.
    """

    repeats: int
    control: ReplayControl
    difference: BitDifference | None


@dataclass(slots=True, kw_only=True)
class WindowReplay:
    """Repeat every ``every_windows``-th measured window of one rank.

    A window is the steps between two synchronisations. Taken again from the same state, they must
    give the same bits; otherwise a device computes wrongly, or the job is not deterministic. All
    ranks repeat the same windows, because their collectives must meet.

    Args:
        state: saves and restores everything that a step changes.
        digests: computes digests of the losses, gradients and weights of each step.
        is_on_any_rank: returns whether a flag is set on any rank; every rank must call it.
    """

    every_windows: int
    job: Job
    device: Device
    state: SavedState
    digests: DigestWatch
    is_on_any_rank: Callable[[bool], bool]
    _num_windows: int = field(default=0, init=False)

    def is_due(self) -> bool:
        """Tell whether the measured window that begins now is to be repeated."""
        return (self._num_windows + 1) % self.every_windows == 0

    def count_window(self) -> None:
        """Count a measured window that has ended."""
        self._num_windows += 1

    def save(self) -> None:
        """Save the state before a window, and begin to compute digests of its first pass.

        In the first pass the window is measured; later passes repeat it from the saved state.
        """
        self.state.save()
        self.digests.start()

    def cancel(self) -> None:
        """End the first pass of a window that turned out to have no step."""
        self.digests.finish([])  # its digest, of the state alone, is not needed

    def end_step(self) -> None:
        """Note that a step of the first pass has ended; does not synchronise."""
        self.digests.end_step()

    def repeat(
        self, batches: Sequence[Batch], losses: Sequence[float], *, first_step: int
    ) -> ReplayResult:
        """Repeat the window and compare the passes. Training continues from the last repeat.

        If the first repeat differs from the window itself on any rank, the window is repeated twice
        more, as a control. Only if both control passes agree, on all ranks, does the difference
        show a fault. Otherwise the job is taken to be not deterministic.

        Args:
            batches: the batches of the window.
            losses: the losses of its steps.
            first_step: number of steps before the window.
        """
        first_pass = self.digests.finish(losses)  # the window itself, as it was measured
        first_repeat = self._take_steps(batches, len(losses))
        # All ranks decide alike, because their collectives must meet in further repeats.
        if not self.is_on_any_rank(first_pass != first_repeat):
            return ReplayResult(repeats=1, control="not_needed", difference=None)
        control = self._take_steps(batches, len(losses))
        second_control = self._take_steps(batches, len(losses))
        if self.is_on_any_rank(control != second_control):
            return ReplayResult(repeats=3, control="not_deterministic", difference=None)
        # Either the first pass or the first repeat may be the wrong one.
        difference = find_difference(control, first_pass, first_step=first_step)
        if difference is None:
            difference = find_difference(control, first_repeat, first_step=first_step)
        # Still None if only other ranks have a difference.
        return ReplayResult(repeats=3, control="deterministic", difference=difference)

    def _take_steps(self, batches: Sequence[Batch], num_steps: int) -> list[StepDigest]:
        """Take the steps of the window again, from the state that ``save`` kept.

        Returns:
            A digest of each step, then one of the state after the last step.
        """
        self.state.restore()
        self.digests.start()
        source = iter(batches)
        losses = []
        for _ in range(num_steps):
            losses.append(self.job.step(source))
            self.digests.end_step()
        self.device.synchronize()
        return self.digests.finish(self.device.read(losses))
