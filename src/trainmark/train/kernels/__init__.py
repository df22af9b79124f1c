"""The operations that a job computes with: the libraries', or CPU kernels of this package.

Only this module decides, from the recipe field ``kernels`` and the kind of device. Jobs and
models call the operations that they get and must not know the choice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from trainmark.train.kernels import attention, linear_cross_entropy

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from transformers import PreTrainedModel

    from trainmark.recipe import Recipe

CPU_ATTENTION = "cpu_dropout"  # its name among transformers' attentions


@dataclass(frozen=True, slots=True)
class Kernels:
    """One operation for each task; both implementations take the same arguments."""

    attention: Callable[..., Tensor] = attention.library_attention
    cross_entropy: Callable[..., Tensor] = linear_cross_entropy.library_cross_entropy_sum

    def used(self, *tasks: str) -> dict[str, str]:
        """Return which operation each of ``tasks`` uses, ``own`` or ``library``."""
        return {
            task: "library" if getattr(self, task) is getattr(LIBRARY, task) else "own"
            for task in tasks
        }

    def install_attention(self, model: PreTrainedModel) -> None:
        """Make a model of transformers compute attention with this operation."""
        if self.attention is LIBRARY.attention:
            return
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register(CPU_ATTENTION, attention.attention_forward)
        AttentionMaskInterface.register(CPU_ATTENTION, sdpa_mask)
        model.set_attn_implementation(CPU_ATTENTION)


LIBRARY = Kernels()
OWN = Kernels(attention.attention, linear_cross_entropy.linear_cross_entropy_sum)


def kind(recipe: Recipe, torch_type: str) -> Literal["library", "own"]:
    """Return which operations run; the default is ``own`` on a CPU, else ``library``."""
    return recipe.kernels or ("own" if torch_type == "cpu" else "library")


def choose(recipe: Recipe, torch_type: str) -> Kernels:
    """Return the operations for ``recipe`` on a kind of device.

    With ``own``, attention needs uncompiled fp32 on a CPU.
    """
    if kind(recipe, torch_type) == "library":
        return LIBRARY
    if torch_type != "cpu" or recipe.precision != "fp32" or recipe.compile:
        return replace(OWN, attention=LIBRARY.attention)
    return OWN
