"""Check that training, and only training, changes the trained parameters.

The rules: parameters must not change outside the timed steps, they must change in every window,
and each must have changed by the end. Checks run only at the edges of windows, and their time is
measured. This module does not import torch: the digest of the tensors is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainmark.errors import NotTrainedError, UntimedWorkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.train.parameters import GradientWatch, TensorDigest


MAX_NAMED = 3  # parameters in a message; the events have all


@dataclass(slots=True, kw_only=True)
class ParameterCheck:
    """Check the trained parameters of one rank.

    A cheap sample of elements is compared in every window. Only exact sums of all bits can report a
    window as untrained. They are computed before the first window, before the first one after the
    warm-up, and after a window in which the sample did not change, so that the next window can be
    judged exactly.

    Args:
        digest: computes the samples and sums of the trained parameters.
        gradients: watches the gradients of the first steps.
        updates: returns how many steps so far should have changed parameters.
        clock: in nanoseconds.

    Attributes:
        _first_sums: sums of the bits before the first step, by name of the parameter.
        _sums: those at the end of the last window; None: not computed there.
        _sample: sample of the elements at the end of the last window.
        _updates_at_sums: what ``updates`` returned when sums were last computed.
        _spent_ns: time of the checks since the last call of ``take_ns``.
    """

    digest: TensorDigest
    gradients: GradientWatch
    updates: Callable[[], int]
    clock: Callable[[], int]
    _first_sums: dict[str, int] = field(default_factory=dict, init=False)
    _sums: dict[str, int] | None = field(default=None, init=False)
    _sample: bytes = field(default=b"", init=False)
    _updates_at_sums: int = field(default=0, init=False)
    _spent_ns: int = field(default=0, init=False)
    _has_judged_gradients: bool = field(default=False, init=False)

    def start(self) -> None:
        """Record the state before the first step: exact sums, and a sample of the elements."""
        self._first_sums = self.digest.compute_sums()  # ``end`` compares with them
        self._sums = self._first_sums
        self._sample = self.digest.sample()
        # The steps before these sums that should have changed parameters. There may be some: in a
        # user's own program, which is measured with ``--witness``, ``witness.weights`` starts a new
        # check whenever an optimizer steps for the first time.
        self._updates_at_sums = self.updates()

    def check_window(self, *, first_step: int, steps: int, exact: bool = False) -> None:
        """Check at the end of a window of ``steps`` that began after ``first_step`` steps.

        Args:
            exact: compute exact sums even if the sample of elements changed, so that the next
                window has sums to be compared with.

        Raises:
            NotTrainedError: no bit changed although steps should have changed parameters; or a
                parameter received only zero gradients in the first steps.
        """
        if not self._first_sums:
            return  # this rank holds no trained parameters; other ranks check theirs
        started_ns = self.clock()
        sample = self.digest.sample()
        is_same_sample = sample == self._sample
        self._sample = sample
        previous_sums = self._sums  # None: not computed at the end of the last window
        # A changed sample proves that parameters changed. If it is the same, other elements may
        # have changed, which only sums of all bits can tell.
        self._sums = self.digest.compute_sums() if is_same_sample or exact else None
        if is_same_sample:
            updates = self.updates()  # steps so far that should have changed parameters
            # If ``previous_sums`` is None, this window cannot be judged: None equals no sums.
            if previous_sums == self._sums and updates > self._updates_at_sums:
                raise NotTrainedError(
                    "parameters_unchanged_in_window",
                    first=first_step + 1,
                    last=first_step + steps,
                    updates=updates - self._updates_at_sums,
                    parameters=len(self._first_sums),
                )
        if self._sums is not None:  # updates from here on must change these sums
            self._updates_at_sums = self.updates()
        self._judge_gradients()
        self._spent_ns += self.clock() - started_ns

    def _judge_gradients(self) -> None:
        """Refuse parameters whose gradients were all zero in the first steps, which are watched.

        Does nothing before the last of these steps has ended, and judges once. Only parameters that
        this rank holds whole are judged: the gradients of a shard may all be zero.

        Raises:
            NotTrainedError: a parameter received only zero gradients.
        """
        if self._has_judged_gradients or not self.gradients.is_finished:
            return
        self._has_judged_gradients = True
        has_gradient = self.gradients.read_flags()
        names_without = [
            name
            for name, is_nonzero in has_gradient.items()
            if not is_nonzero and self.gradients.holds_whole(name)
        ]
        if names_without:
            raise NotTrainedError(
                "gradients_zero",
                names=", ".join(names_without[:MAX_NAMED]),
                number=len(names_without),
                parameters=len(has_gradient),
            )

    def check_evaluation(self, *, step: int) -> None:
        """Check that the evaluation after ``step`` steps changed no sampled element.

        Raises:
            UntimedWorkError: sampled elements changed since the check at the end of the last
                window.
        """
        started_ns = self.clock()
        # ``_sample`` has the elements at the end of the last window.
        if self.digest.sample() != self._sample:
            raise UntimedWorkError("parameters_changed_in_evaluation", step=step)
        self._spent_ns += self.clock() - started_ns

    def take_ns(self) -> int:
        """Return the time of the checks since the last call."""
        spent_ns = self._spent_ns
        self._spent_ns = 0
        return spent_ns

    def end(self) -> dict[str, Any]:
        """Return the fields of the event ``parameters``.

        Returns:
            Three fields, by name of a parameter. ``changed``: whether it changed since ``start``.
            ``gradients``: whether any of its gradients in the first steps was not zero. ``sums``: a
            number that depends on all its bits and must be equal on all ranks; only of parameters
            with gradients that this rank holds whole.

        Raises:
            UntimedWorkError: sampled elements of parameters changed since the last check.
        """
        # Not added to ``_spent_ns``: the caller emits a span with the time of this method.
        if self.digest.sample() != self._sample:
            raise UntimedWorkError("parameters_changed_after_training")
        sums = self.digest.compute_sums()
        # By name, whether any gradient in the first steps was not zero. A parameter whose gradient
        # was always None is not in it, and gets no sum: an embedding table, for example, that is
        # updated within the backward pass, and of which each rank may have another part.
        has_gradient = self.gradients.read_flags()
        return {
            "changed": {name: sums[name] != first for name, first in self._first_sums.items()},
            "gradients": has_gradient,
            "sums": {
                name: sums[name]
                for name in has_gradient
                # ``sums`` lacks parameters of which this rank has no element.
                if name in sums and self.gradients.holds_whole(name)
            },
        }
