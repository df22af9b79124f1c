"""Check the tensors that a program's optimizers change, without keeping them alive.

The rules are those of every run (``rank.parameters``). Violations are noted, not raised: the
program continues.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from trainmark.errors import RunError
from trainmark.rank.parameters import ParameterCheck
from trainmark.train.parameters import GradientWatch, TensorDigest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import torch
    from torch import Tensor


_NUM_GRADIENT_CHECKS = 5  # steps whose gradients are watched; see ``rank.worker`` for the number
# Share of tensors with only zero gradients. Fewer are normal: a few steps may not reach an expert.
_MIN_ZERO_SHARE = 0.1
# Share of elements without a gradient. Fewer are normal: a head of the model may be unused.
_MIN_MISSING_SHARE = 0.1


class _LiveDigest:
    """Digests of the tensors that the optimizers hold at each call; see ``TensorDigest``.

    It stands in for a ``TensorDigest``, which would keep the tensors alive.
    """

    def __init__(self, weights: TrainedWeights) -> None:
        self._weights = weights

    def sample(self) -> bytes:
        """Return a digest of parts of the tensors."""
        return TensorDigest(self._weights.collect_tensors()).sample()

    def compute_sums(self) -> dict[str, int]:
        """Return the sum of the bits of each tensor."""
        return TensorDigest(self._weights.collect_tensors()).compute_sums()


class _GradientFlags:
    """The results of a ``GradientWatch`` that has finished, without its tensors.

    It stands in for the watch, which would keep the tensors alive.
    """

    is_finished = True

    def __init__(self, watch: GradientWatch) -> None:
        self._flags = watch.read_flags()
        self._whole = {name: watch.holds_whole(name) for name in self._flags}

    def read_flags(self) -> dict[str, bool]:
        """Return by name of the tensor whether its gradients were not all zero."""
        return self._flags

    def holds_whole(self, name: str) -> bool:
        """Tell whether this rank holds the whole tensor, and not a shard of it."""
        return self._whole[name]


class TrainedWeights:
    """The tensors of all optimizers that have stepped, and the checks of them.

    The program keeps running when a rule is violated: violations are collected, not raised.

    Args:
        clock: returns nanoseconds.

    Attributes:
        updates: number of optimizer steps that should have changed tensors.
        violations: messages of violated rules of training by their codes.
        _check: compares the tensors at the ends of windows, which are steps in a row that are
            timed together; None: no optimizer has stepped.
        _watch: watches the gradients of the first steps; None: not yet, or no longer.
        _watched_numbers: numbers of the optimizers that have stepped while gradients were watched.
        _has_watch_finished: whether the watch had seen enough steps at the end of the last step.
        _retired: watches that miss the tensors of an optimizer that was added after them.
        _optimizers: weak references to the optimizers, which must not be kept alive.
        _tensor_ids: ids of all tensors that these optimizers held when they were added.
        _versions: torch's counts of writes to some of the tensors, at the end of the last step.
        _window_layout: names, dtypes and sizes of the tensors at the end of the last window.
        _was_replaced: whether the program has loaded other values since the last step.
        _is_between_windows: whether no step has begun since the last window.
        _spent_ns: time of checks that ``take_check_ns`` has not returned yet.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._check: ParameterCheck | None = None  # of all tensors; None: no optimizer has stepped
        self._watch: GradientWatch | None = None  # until enough gradients have been seen
        # Numbers of the optimizers that have stepped while gradients were watched.
        self._watched_numbers: set[int] = set()
        self._has_watch_finished = False  # as of the end of the last step
        # Torch's counts of writes to some of the tensors, at the end of the last step.
        self._versions: list[int] = []
        # Watches that miss the tensors of a new optimizer; closed when its first step has ended.
        self._retired: list[GradientWatch] = []
        self._spent_ns = 0  # time of checks that ``take_check_ns`` has not returned yet
        # Names, dtypes and sizes of the tensors at the end of the last window.
        self._window_layout: tuple[Any, ...] = ()
        self._was_replaced = False  # the program has loaded other values since the last step
        self._is_between_windows = False  # no step has begun since the last window
        self._tensor_ids: set[int] = set()  # of all tensors that optimizers held when added
        self.updates = 0  # number of optimizer steps that should have changed tensors
        # Messages of the rules of training that the program broke, by their codes.
        self.violations: dict[str, dict[str, Any]] = {}

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """Add the tensors of an optimizer; called before its first step.

        The check starts anew, with the tensors of all optimizers. The watch of gradients does so
        when this step has ended.
        """
        # Each watch has a hook that torch calls before steps. Torch is calling these hooks now, so
        # none may be removed: ``count_step`` closes this watch later.
        if self._watch is not None:
            self._retired.append(self._watch)
            self._watch = None
        if self._check is not None:
            self._spent_ns += self._check.take_ns()  # time of the check that is replaced
        self._optimizers.append(weakref.ref(optimizer))
        self._tensor_ids |= {id(tensor) for tensor in self.collect_tensors().values()}
        self._check = ParameterCheck(
            # A ``TensorDigest`` would keep the tensors alive.
            digest=_LiveDigest(self),  # type: ignore[arg-type]
            gradients=None,  # type: ignore[arg-type]  # until ``count_step`` starts the watch
            updates=lambda: self.updates,  # the check reads the current number
            clock=self._clock,
        )
        self._check.start()

    def find_number(self, optimizer: torch.optim.Optimizer) -> int | None:
        """Return the number of optimizers that were added before this one; None: it was not added.

        An id would not do: an optimizer that replaces another one often gets its id.
        """
        for number, reference in enumerate(self._optimizers):
            if reference() is optimizer:
                return number
        return None

    def check_before_step(self, *, step: int) -> None:
        """Check, in the first step after a window, that nothing changed since the window ended.

        The time of this check is not kept: it is part of the new window, and ``take_check_ns``
        returns only the time of checks between windows.
        """
        if self._check is None or not self._is_between_windows:
            return
        self._is_between_windows = False
        if self._was_replaced:  # the program itself loaded other values: a change is no fault
            return
        self._spent_ns += self._check.take_ns()  # keep the time of earlier checks
        try:
            # Whether or not there was an evaluation, this compares with the end of the last window.
            self._check.check_evaluation(step=step)
        except RunError:  # its message blames an evaluation, so another one is noted
            self._note_violation(RunError("witness_changed_outside", step=step))
        self._check.take_ns()  # drop the time of this check

    def count_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimizer has stepped; count the step if it should change tensors.

        After the first step of an optimizer, the gradients of all tensors are watched.
        """
        self._was_replaced = False  # from here on, the tensors change by steps again
        # Also if the window ended within this step, by an evaluation in its closure: the step may
        # have changed the tensors after that.
        self._is_between_windows = False
        # Watches that ``add`` could not close, because torch was calling their hooks.
        while self._retired:
            self._retired.pop().close()
        self._versions = self._read_versions()
        if any(_is_above_zero(group.get("lr")) for group in optimizer.param_groups):
            self.updates += 1
        # The watch saw the gradients when this step began, and may have finished with them.
        number = self.find_number(optimizer)
        if self._watch is not None and not self._has_watch_finished and number is not None:
            self._watched_numbers.add(number)
            self._has_watch_finished = self._watch.is_finished
        # None: ``add`` has started a new check, for which no gradients are watched yet.
        if self._check is not None and self._check.gradients is None:
            self._watch = GradientWatch(self.collect_tensors(), num_steps=_NUM_GRADIENT_CHECKS)
            self._check.gradients = self._watch
            self._watched_numbers = set()
            self._has_watch_finished = False

    def check_window(self, *, first_step: int, steps: int, exact: bool) -> None:
        """Note a violation if the window that just ended did not change the tensors.

        A sample of the elements is compared with that at the end of the window before. If it is
        unchanged, exact sums of all bits are compared, provided that the window before has them
        too. Once gradients have been watched for enough steps, a violation is also noted if those
        of a tensor were all zero.

        Args:
            first_step: number of steps before the window.
            steps: number of the window's steps.
            exact: compute the sums even if the sample has changed, so that those of the next window
                can be compared with them.
        """
        # No gradients are watched yet in the first step of an optimizer. A window may end in it, by
        # an evaluation in the closure of the step.
        if self._check is None or self._check.gradients is None:
            return
        self._release_gradients()
        self._window_layout = self._describe_layout()
        self._is_between_windows = True
        try:
            self._check.check_window(first_step=first_step, steps=steps, exact=exact)
        except RunError as error:
            self._note_violation(error)

    def _release_gradients(self) -> None:
        """Replace the watch of gradients by its results as soon as it has seen enough steps.

        The watch keeps the tensors alive; its results do not. A violation is noted if tensors
        without any gradient hold a large share of all elements.
        """
        if self._watch is not None and self._watch.is_finished and self._check is not None:
            gradient_flags = _GradientFlags(self._watch)
            self._check.gradients = gradient_flags  # type: ignore[assignment]
            # By name, whether any gradient was not zero; only of tensors that had a gradient.
            is_nonzero = gradient_flags.read_flags()
            self._note_missing_gradients(reached=is_nonzero.keys())
            self._watch.close()
            self._watch = None

    def _note_missing_gradients(self, reached: Collection[str]) -> None:
        """Note tensors that no backward pass reached, if they hold a large share of all elements.

        Frozen tensors, whose ``requires_grad`` is False, are neither noted nor part of all, nor are
        those of optimizers that did not step while gradients were watched.

        Args:
            reached: names of the tensors that a backward pass reached, also if their gradients were
                all zero.
        """
        tensors = {
            name: tensor
            for name, tensor in self.collect_tensors().items()
            # A name begins with the number of the optimizer.
            if tensor.requires_grad and int(name.split(".")[0]) in self._watched_numbers
        }
        missing_names = [name for name in tensors if name not in reached]
        total = sum(tensor.numel() for tensor in tensors.values())
        share = sum(tensors[name].numel() for name in missing_names) / max(1, total)
        if share >= _MIN_MISSING_SHARE:
            error = RunError(
                "witness_gradients",
                number=len(missing_names),
                parameters=len(tensors),
                share=share,
            )
            self._note_violation(error)

    def note_replaced(self) -> None:
        """Note that the program loaded other values, so that tensors may change without a step."""
        self._was_replaced = True

    def check_at_end(self) -> dict[str, Any]:
        """Check the tensors at the end of the program; return the fields of ``parameters``.

        This event tells for each tensor whether training changed it (``changed``), whether any of
        its first gradients was not zero (``gradients``), and its checksum if this rank holds it
        whole (``sums``). It names no tensor if the tensors cannot be compared, or if elements that
        are compared changed after the last window. ``updates`` is the number of steps that should
        have changed tensors.
        """
        without_tensors = {"changed": {}, "gradients": {}, "updates": self.updates}
        check = self._check
        layout = self._describe_layout()
        # The tensors cannot be compared if no optimizer has stepped, if they are gone (``layout``
        # is empty), if their names, dtypes or sizes differ from those at the end of the last
        # window, or if the program has loaded other values since the last step.
        if check is None or not layout or layout != self._window_layout or self._was_replaced:
            return without_tensors
        if self._watch is not None:
            self._watch.close()  # removes its hook; ``check.end`` can still read its flags
        # No step has ended since the last optimizer was added, so that no gradients were watched.
        if check.gradients is None:
            return without_tensors
        # Nothing may write to the tensors after the last step. Torch's counts show any write, but
        # are read for some tensors only; ``check.end`` compares some elements of all tensors. A
        # write that changed none of those is noted here, and the tensors are still compared.
        if self._read_versions() != self._versions:
            self._note_violation(RunError("parameters_changed_after_training"))
        try:
            return check.end() | {"updates": self.updates}
        except RunError as error:
            self._note_violation(error)
            return without_tensors

    def take_check_ns(self) -> int:
        """Return the time of the checks between windows since the last call."""
        if self._check is not None:
            self._spent_ns += self._check.take_ns()
        spent_ns = self._spent_ns
        self._spent_ns = 0
        return spent_ns

    def has(self, tensor: Tensor) -> bool:
        """Tell whether an optimizer held a tensor when it was added."""
        return id(tensor) in self._tensor_ids

    def count_elements(self) -> int:
        """Return the number of elements of all tensors."""
        return sum(tensor.numel() for tensor in self.collect_tensors().values())

    def collect_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that optimizers hold now, by optimizer, group and name or index."""
        tensors: dict[str, Tensor] = {}
        for number, reference in enumerate(self._optimizers):
            optimizer = reference()
            if optimizer is None:
                continue  # the program has deleted it
            for group_number, group in enumerate(optimizer.param_groups):
                names = group.get("param_names")  # None: the program has given no names
                for index, tensor in enumerate(group["params"]):
                    label = names[index] if names else str(index)
                    tensors[f"{number}.{group_number}.{label}"] = tensor
        return tensors

    def _read_versions(self) -> list[int]:
        """Return torch's counts of writes to the first and last tensor of each optimizer.

        They show any write to these tensors; a digest of parts of them may miss some.
        """
        versions = []
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is None:  # the program has deleted it
                continue
            tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
            if tensors:
                versions += [tensors[0]._version, tensors[-1]._version]
        return versions

    def _describe_layout(self) -> tuple[Any, ...]:
        """Return names, dtypes and sizes of the tensors.

        Values of the tensors at two times can be compared only if these are the same.
        """
        tensors = self.collect_tensors()
        return tuple((name, tensor.dtype, tensor.numel()) for name, tensor in tensors.items())

    def _note_violation(self, error: RunError) -> None:
        """Keep the first violation of each code; zero gradients of few tensors are normal."""
        details: dict[str, Any] = error.details
        if error.code == "gradients_zero":
            # Of all tensors, the share of those with only zero gradients.
            zero_share = details["number"] / details["parameters"]
            if zero_share < _MIN_ZERO_SHARE:
                return
        if error.code not in self.violations:
            self.violations[error.code] = {"code": error.code, "args": dict(details)}


def _is_above_zero(rate: Any) -> bool:
    """Tell whether a learning rate is above 0; a tensor counts as such, without reading it."""
    return not isinstance(rate, int | float) or rate > 0
