"""Find the tensors that training changes, and check that they change and get gradients.

Has cheap checks and exact ones; neither copies a whole tensor. ``rank.parameters`` decides when
they are made. Gradients are checked because a parameter may change without learning anything, for
example by weight decay alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

_SAMPLED_TENSORS = 32  # in a sample, evenly distributed over all tensors
_SAMPLED_ELEMENTS = 64  # of each sampled tensor, evenly spaced; up to twice as many
_WORD_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def trained(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of ``module`` that have a gradient, by name; DTensors as they are."""
    return {name: item for name, item in module.named_parameters() if item.requires_grad}


class TensorDigest:
    """Compute digests of tensors by name; of a DTensor, of this rank's shard.

    Args:
        tensors: their values are read again at each call; tensors that are added to the mapping or
            replaced later are not seen. Tensors without an element on this rank are left out.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        # Without tensors of which this rank has no element.
        self._tensors = {
            name: tensor for name, tensor in tensors.items() if get_local_shard(tensor).numel()
        }
        local_tensors = list(self._tensors.values())
        count = min(_SAMPLED_TENSORS, len(local_tensors))
        # The tensors that ``sample`` reads: evenly spaced among all.
        self._sampled = [
            local_tensors[number * len(local_tensors) // count] for number in range(count)
        ]

    @torch.no_grad()
    def sample(self) -> bytes:
        """Return the bytes of a few elements of a few tensors, with one host copy per dtype.

        A cheap check: if two samples differ, a tensor has changed between them.
        """
        elements_by_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in self._sampled:
            flat = _flatten(get_local_shard(tensor))
            step = max(1, flat.numel() // _SAMPLED_ELEMENTS)
            elements = flat[::step]
            elements_by_type.setdefault(elements.dtype, []).append(elements)
        return b"".join(
            torch.cat(elements).view(torch.uint8).cpu().numpy().tobytes()
            for elements in elements_by_type.values()
        )

    @torch.no_grad()
    def compute_sums(self) -> dict[str, int]:
        """Return by name, for each tensor, a number that depends on every bit of it.

        Synchronises: the numbers of ``compute_digests``, copied from the device to the host.
        """
        return read_digests(self.compute_digests())

    @torch.no_grad()
    def compute_digests(self) -> dict[str, Tensor]:
        """Return by name, for each tensor, a number on the device that depends on every bit of it.

        Does not synchronise.
        """
        return {name: digest_tensor(tensor) for name, tensor in self._tensors.items()}


def read_digests(digests: Mapping[str, Tensor]) -> dict[str, int]:
    """Return digests that are on the device, each a single integer, as integers on the host.

    All are copied to the host at once. Both dicts are by name.
    """
    if not digests:
        return {}
    return dict(zip(digests, torch.stack(list(digests.values())).tolist(), strict=True))


def get_local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or a plain tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def digest_tensor(tensor: Tensor) -> Tensor:
    """Return a number on the device that depends on every bit of this rank's shard."""
    return _sum_bits(_flatten(get_local_shard(tensor)))


def _flatten(tensor: Tensor) -> Tensor:
    """Return the elements of ``tensor`` (numel,), in the order in which they lie in memory.

    Nothing is copied if the elements lie in memory without gaps.
    """
    if tensor.is_contiguous():  # the usual case, and faster than permuting
        return tensor.detach().view(-1)
    # Dimensions from the largest to the smallest stride.
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.detach().permute(order).reshape(-1)


def _sum_bits(flat: Tensor) -> Tensor:
    """Return the sum modulo 2**64 of the elements (numel,), on the device.

    The bits of each element are read as an integer of the same size. If there is no integer of the
    size, elements are read byte by byte.
    """
    words = flat.view(_WORD_TYPES.get(flat.element_size(), torch.uint8))
    return words.sum(dtype=torch.int64)


class GradientWatch:
    """Watch the gradients of ``tensors`` in the first ``num_steps`` steps of any optimizer.

    Nothing is copied to the host before ``read_flags`` is called. A tensor that no optimizer holds,
    such as a table that is updated within the backward pass, is not watched.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, num_steps: int) -> None:
        # Names of the watched tensors, by ``id``, because optimizers do not know names.
        self._names = {id(x): name for name, x in tensors.items()}
        self._tensors = tensors  # keep them alive: an id is unique only among live objects
        self._steps_left = num_steps
        # By name, a flag on the device: whether any gradient so far was not all zero. A tensor
        # whose gradient was always None has no flag.
        self._had_gradient: dict[str, Tensor] = {}
        # Torch calls the hook before each step of any optimizer; the handle removes it later.
        self._handle = register_optimizer_step_pre_hook(self._note_gradients)

    @property
    def is_finished(self) -> bool:
        """Tell whether the gradients of all steps that are to be watched were seen."""
        return self._steps_left == 0

    def close(self) -> None:
        """Stop watching; the flags can still be read."""
        self._handle.remove()

    @torch.no_grad()
    def _note_gradients(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Note the gradients of an optimizer's parameters; torch calls this before its step."""
        if self.is_finished:
            return
        has_watched_gradient = False
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._names.get(id(parameter))
                gradient = parameter.grad
                if name is None or gradient is None:
                    continue
                local = get_local_shard(gradient)
                # Of a sparse gradient, such as an embedding's, only the stored values.
                values = local._values() if local.is_sparse else local
                is_nonzero = values.any()
                earlier = self._had_gradient.get(name)
                if earlier is not None:
                    is_nonzero = earlier | is_nonzero
                self._had_gradient[name] = is_nonzero
                has_watched_gradient = True
        if has_watched_gradient:  # else the step is that of another optimizer
            self._steps_left -= 1

    def read_flags(self) -> dict[str, bool]:
        """Return, by name, whether a parameter had a non-zero gradient in a watched step.

        A parameter whose gradient was None in all watched steps is not in the result.

        Synchronises with the device.
        """
        if not self._had_gradient:
            return {}
        flags = torch.stack(list(self._had_gradient.values())).tolist()
        return dict(zip(self._had_gradient, flags, strict=True))

    def holds_whole(self, name: str) -> bool:
        """Tell whether this rank holds a whole parameter, not a shard of it."""
        return not isinstance(self._tensors[name], DTensor)
