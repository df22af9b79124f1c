"""Save and restore all state that a step changes, and compute digests of its results.

Works for jobs that step with ``train.stepper.Stepper``; ``rank.replay`` decides when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainmark.protocols import StepDigest
from trainmark.train.parameters import (
    TensorDigest,
    digest_tensor,
    get_local_shard,
    read_digests,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from trainmark.train.stepper import Stepper, StepperCounts


def list_generator_modules(device: torch.device) -> list[Any]:
    """Return the modules whose ``get_rng_state`` reads the generators that training uses.

    They are ``torch``, for the host, and on an accelerator also torch's module of its device type.
    """
    if device.type == "cpu":
        return [torch]
    return [torch, torch.get_device_module(device.type)]


class StepperState:
    """A copy, in the host's memory, of all state that a step of ``stepper`` changes.

    It has weights, buffers, the optimizer's state, counters, the loss scale and the states of
    random generators; for a sharded tensor it has this rank's shard.
    """

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        # What ``save`` keeps; None and empty until then.
        self._copies: list[Tensor] = []  # of weights, buffers and the optimizer's state
        self._counts: StepperCounts | None = None
        self._random_states: list[Tensor] = []  # one for each random generator

    @torch.no_grad()
    def save(self) -> None:
        """Copy the present state to the host's memory."""
        tensors = list(self._iterate_tensors())
        # Allocate the copies at the first call, and again after the optimizer has made its state.
        if len(self._copies) != len(tensors):
            self._copies = [torch.empty_like(tensor, device="cpu") for tensor in tensors]
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor)
        self._counts = self._stepper.read_counts()
        self._random_states = [
            x.get_rng_state() for x in list_generator_modules(self._stepper.device)
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Return to the state that was saved last.

        The optimizer must have made its state before it was saved: there is then a copy of each of
        its tensors.
        """
        assert self._counts is not None, "save comes first"
        # The tensors come in the order in which they were saved.
        for copy, tensor in zip(self._copies, self._iterate_tensors(), strict=True):
            tensor.copy_(copy)
        self._stepper.set_counts(self._counts)
        modules = list_generator_modules(self._stepper.device)
        for module, state in zip(modules, self._random_states, strict=True):
            module.set_rng_state(state)

    def _iterate_tensors(self) -> Iterator[Tensor]:
        """Yield trained weights, buffers and optimizer state, always in the same order.

        Of sharded tensors it yields this rank's shards.
        """
        model = self._stepper.model
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for tensor in (*parameters, *model.buffers()):
            yield get_local_shard(tensor)
        for parameter_state in self._stepper.optimizer.state.values():
            for value in parameter_state.values():
                if isinstance(value, torch.Tensor):
                    yield get_local_shard(value)


class StepDigests:
    """Computes digests of the steps of a pass; nothing is copied to the host before its end.

    A pass takes the steps of a window once. ``rank.replay`` repeats a window from its saved state
    and compares the digests of the passes.

    Digests of weights are computed right before an update: a bit that has flipped since the last
    step is then wrong only on its own rank, even if the forward pass has spread the error. For the
    same reason gradients are digested before they are reduced over ranks.

    Args:
        parameters: the trained parameters, by name.
        stepper: takes the steps; its sharded model and its optimizer are watched too. None: only
            the parameters are watched.
    """

    def __init__(self, parameters: Mapping[str, Tensor], stepper: Stepper | None = None) -> None:
        self._parameters = parameters
        self._stepper = stepper  # None: only the parameters are watched
        self._weight_digester = TensorDigest(parameters)
        self._handles: list[Any] = []  # of torch's hooks, from ``start`` to ``finish``
        # Digests by name, one dict for each step; the last one is that of the current step.
        self._gradient_digests: list[dict[str, Tensor]] = []
        self._weight_digests: list[dict[str, Tensor]] = []  # of weights before the step's update

    def start(self) -> None:
        """Begin a pass over the steps of a window.

        From now on weights are watched, and gradients before they are reduced over ranks.
        """
        # The digests of the first step, by name; the hooks below fill them.
        self._gradient_digests = [{}]
        self._weight_digests = [{}]
        if not self._handles:  # else an earlier pass was not finished, and its hooks still watch
            self._handles.append(register_optimizer_step_pre_hook(self._note_weights))
            # Leaves: the tensors in which backward passes accumulate gradients.
            for name, parameter in self._iterate_leaves():
                self._watch(name, parameter)

    def _watch(self, name: str, parameter: Tensor) -> None:
        """Digest the gradient of ``parameter`` after each backward pass that has added to it."""

        @torch.no_grad()
        def note_gradient(leaf: Tensor) -> None:
            """Digest ``leaf.grad``; torch calls this when a micro-batch has been added to it."""
            assert leaf.grad is not None, "the hook follows the accumulation of a gradient"
            digest = digest_tensor(leaf.grad)
            digests_of_step = self._gradient_digests[-1]
            if name in digests_of_step:
                # Combine the digests after several micro-batches so that their order counts.
                digest = 31 * digests_of_step[name] + digest
            digests_of_step[name] = digest

        self._handles.append(parameter.register_post_accumulate_grad_hook(note_gradient))

    def _note_weights(self, *_: Any) -> None:
        """Digest the weights; torch calls this before each step of an optimizer."""
        self._weight_digests[-1] = self._weight_digester.compute_digests()

    def end_step(self) -> None:
        """End a step: later digests belong to the next step. Does not synchronise."""
        self._gradient_digests.append({})
        self._weight_digests.append({})

    def finish(self, losses: Sequence[float]) -> list[StepDigest]:
        """End the pass; return a digest of each step and, last, of the state after these steps.

        Args:
            losses: the loss of each step.
        """
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        # The last entries are those that ``end_step`` added for a step that has not begun.
        steps = zip(losses, self._gradient_digests[:-1], self._weight_digests[:-1], strict=True)
        digests = [
            StepDigest(
                weights=read_digests(weights),
                loss=loss.hex(),  # the exact number as text
                gradients=read_digests(gradients),
            )
            for loss, gradients, weights in steps
        ]
        # The state after the steps: weights and optimizer.
        state = self._weight_digester.compute_digests() | self._digest_optimizer()
        return [*digests, StepDigest(weights=read_digests(state), loss="", gradients={})]

    def _digest_optimizer(self) -> dict[str, Tensor]:
        """Return digests of the optimizer's tensors, by names of the parameter and the tensor."""
        if self._stepper is None:  # only the parameters are watched
            return {}
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        digests = {}
        for number, (parameter, parameter_state) in enumerate(
            self._stepper.optimizer.state.items()
        ):
            # The optimizer may also update a parameter that is not among ``self._parameters``.
            name = names.get(id(parameter), f"parameter {number}")
            for tensor_name, value in parameter_state.items():  # ``exp_avg`` for example
                # A rank may have an empty shard, which has no digest.
                if isinstance(value, torch.Tensor) and get_local_shard(value).numel():
                    digests[f"{name} {tensor_name}"] = digest_tensor(value)
        return digests

    def _iterate_leaves(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors in which backward passes accumulate gradients, by name.

        FSDP accumulates gradients in whole parameters, which exist only during a pass; its shards
        get gradients only after they are reduced.
        """
        for name, parameter in self._parameters.items():
            if parameter.requires_grad and not isinstance(parameter, DTensor):
                yield name, parameter
        if self._stepper is None:
            return
        model = self._stepper.model
        root = getattr(model, "_orig_mod", model)  # the module in a compiled model
        # The modules that FSDP shards. They are listed before the loop, because ``unshard`` changes
        # the parameters of modules.
        sharded_modules: list[tuple[str, Any]] = [
            (prefix, module)
            for prefix, module in root.named_modules()
            if isinstance(module, FSDPModule)
        ]
        for prefix, module in sharded_modules:
            # Now the module's whole parameters exist. ``reshard`` frees their memory, but FSDP uses
            # the same tensors in later passes, so hooks on them stay.
            module.unshard()
            for name, parameter in module.named_parameters(prefix):
                # DTensors are left out: those of FSDP modules within this one come in their own
                # turn, and those that tensor parallelism cuts are not watched.
                if parameter.requires_grad and not isinstance(parameter, DTensor):
                    yield name, parameter
            module.reshard()
