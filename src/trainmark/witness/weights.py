"""Check what a program's optimizers change, without keeping its tensors alive.

The rules are those of every run (``rank.parameters``). What they find is noted, not raised: the
program runs on.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from trainmark.errors import RunError
from trainmark.rank.parameters import ParameterCheck
from trainmark.train.parameters import GradientWatch, TensorDigest

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor


_NUM_GRADIENT_CHECKS = 5
# A tensor that a few steps do not reach, such as an expert's, has gradients of zero honestly.
_MIN_ZERO_SHARE = 0.1
_MIN_MISSING_SHARE = 0.1  # of the elements; a model's unused head has less


class _LiveDigest:
    """The digest of tensors as the optimizers hold them now; see ``TensorDigest``."""

    def __init__(self, weights: TrainedWeights) -> None:
        self._weights = weights

    def sample(self) -> bytes:
        return TensorDigest(self._weights.collect()).sample()

    def sums(self) -> dict[str, int]:
        return TensorDigest(self._weights.collect()).sums()


class _SeenGradients:
    """What ``GradientWatch`` saw, without its tensors."""

    finished = True

    def __init__(self, watch: GradientWatch) -> None:
        self._found = watch.found()
        self._whole = {name: watch.is_whole(name) for name in self._found}

    def found(self) -> dict[str, bool]:
        return self._found

    def is_whole(self, name: str) -> bool:
        return self._whole[name]


class TrainedWeights:
    """The tensors of all optimizers that stepped.

    Args:
        clock: in nanoseconds.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._check: ParameterCheck | None = None
        self._watch: GradientWatch | None = None
        self._versions: list[int] = []  # at the end of the last step
        self._retired: list[GradientWatch] = []
        self._form: tuple[Any, ...] = ()
        self._was_replaced = False
        self._is_edge = False  # no step since the last window
        self._ids: set[int] = set()
        self.updates = 0
        self.violations: dict[str, dict[str, Any]] = {}  # messages by their codes

    @property
    def num_optimizers(self) -> int:
        """Return how many optimizers stepped so far."""
        return len(self._optimizers)

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """Watch the tensors of an optimizer from now on; called before its first step."""
        if self._watch is not None:
            self._retired.append(self._watch)
            self._watch = None
        self._optimizers.append(weakref.ref(optimizer))
        self._ids |= {id(tensor) for tensor in self.collect().values()}
        self._check = ParameterCheck(
            digest=_LiveDigest(self),  # type: ignore[arg-type]
            gradients=None,  # type: ignore[arg-type]
            updates=lambda: self.updates,
            clock=self._clock,
        )
        self._check.start()

    def before_step(self, *, step: int) -> None:
        """Check that nothing changed since the last window ended, in the first step after it."""
        if self._check is None or not self._is_edge:
            return
        self._is_edge = False
        if self._was_replaced:
            return
        try:
            self._check.after_evaluation(step=step)
        except RunError:
            self._note(RunError("witness_changed_outside", step=step))

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Count a step that should change tensors, and watch gradients from the second one on."""
        self._was_replaced = False
        while self._retired:  # torch goes through its hooks when ``add`` is called
            self._retired.pop().close()
        self._versions = self._read_versions()
        if any(_is_above_zero(group.get("lr")) for group in optimizer.param_groups):
            self.updates += 1
        if self._check is not None and self._check.gradients is None:
            # Not before, for the same reason.
            self._watch = GradientWatch(self.collect(), looks=_NUM_GRADIENT_CHECKS)
            self._check.gradients = self._watch

    def after_window(self, *, first_step: int, steps: int, exact: bool) -> None:
        """Check the window that just ended."""
        if self._check is None:
            return
        self._release_gradients()
        self._form = self._describe_form()
        self._is_edge = True
        try:
            self._check.after_window(first_step=first_step, steps=steps, exact=exact)
        except RunError as error:
            self._note(error)

    def _release_gradients(self) -> None:
        """Let go of the tensors as soon as their gradients were seen."""
        if self._watch is not None and self._watch.finished and self._check is not None:
            seen = _SeenGradients(self._watch)
            self._check.gradients = seen  # type: ignore[assignment]
            self._note_missing_gradients(seen.found())
            self._watch.close()
            self._watch = None

    def _note_missing_gradients(self, has_gradient: dict[str, bool]) -> None:
        """Note tensors that no backward pass reached, if they are a good part of all elements."""
        tensors = {name: x for name, x in self.collect().items() if x.requires_grad}
        missing = [name for name in tensors if name not in has_gradient]
        total = sum(x.numel() for x in tensors.values())
        share = sum(tensors[name].numel() for name in missing) / max(1, total)
        if share >= _MIN_MISSING_SHARE:
            error = RunError(
                "witness_gradients", number=len(missing), parameters=len(tensors), share=share
            )
            self._note(error)

    def note_replaced(self) -> None:
        """Note that the program loaded other values, which is no work."""
        self._was_replaced = True

    def end(self) -> dict[str, Any]:
        """Return the fields of the event ``parameters``; names are empty if they are gone."""
        nothing = {"changed": {}, "gradients": {}, "updates": self.updates}
        check, form = self._check, self._describe_form()
        if check is None or not form or form != self._form or self._was_replaced:
            return nothing
        if self._watch is not None:
            self._watch.close()
        if check.gradients is None:
            return nothing
        if self._read_versions() != self._versions:
            self._note(RunError("parameters_changed_after_training"))
        try:
            return check.end() | {"updates": self.updates}
        except RunError as error:
            self._note(error)
            return nothing

    def take_ns(self) -> int:
        """Return the time of the checks since the last call."""
        return 0 if self._check is None else self._check.take_ns()

    def has(self, tensor: Tensor) -> bool:
        """Tell whether an optimizer holds a tensor."""
        return id(tensor) in self._ids

    def count_elements(self) -> int:
        """Return the number of elements of all tensors."""
        return sum(tensor.numel() for tensor in self.collect().values())

    def collect(self) -> dict[str, Tensor]:
        """Return the tensors that optimizers hold now, by optimizer, group and place."""
        tensors: dict[str, Tensor] = {}
        for number, reference in enumerate(self._optimizers):
            optimizer = reference()
            if optimizer is None:
                continue
            for group_number, group in enumerate(optimizer.param_groups):
                names = group.get("param_names")
                for place, tensor in enumerate(group["params"]):
                    label = names[place] if names else str(place)
                    tensors[f"{number}.{group_number}.{label}"] = tensor
        return tensors

    def _read_versions(self) -> list[int]:
        """Return how often a few tensors were written to, which torch counts."""
        versions = []
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is not None and optimizer.param_groups[0]["params"]:
                versions.append(optimizer.param_groups[0]["params"][0]._version)
                versions.append(optimizer.param_groups[-1]["params"][-1]._version)
        return versions

    def _describe_form(self) -> tuple[Any, ...]:
        """Return names, types and sizes: after a conversion, values cannot be compared."""
        return tuple((name, x.dtype, x.numel()) for name, x in self.collect().items())

    def _note(self, error: RunError) -> None:
        details: dict[str, Any] = error.details
        if error.code == "gradients_zero":
            share = details["number"] / details["parameters"]
            if share < _MIN_ZERO_SHARE:
                return
        self.violations.setdefault(error.code, {"code": error.code, "args": dict(details)})


def _is_above_zero(rate: Any) -> bool:
    """Tell whether a learning rate changes something; a tensor is not read from its device."""
    return not isinstance(rate, int | float) or rate > 0
