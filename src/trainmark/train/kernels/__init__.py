"""Choose the operation that computes a language model's loss: torch's, or one of this package.

The choice depends on the recipe field ``kernels`` and the type of device. Jobs and models call the
operation that they get, and do not know the choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainmark.train.kernels import linear_cross_entropy

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from trainmark.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Kernels:
    """An operation for each task; all implementations take the same arguments.

    Args:
        cross_entropy: see ``linear_cross_entropy.linear_cross_entropy_sum``.
    """

    cross_entropy: Callable[..., Tensor] = linear_cross_entropy.library_cross_entropy_sum

    def describe_used(self, *tasks: str) -> dict[str, str]:
        """Return whose implementation each task uses: torch's, ``library``, or ours, ``own``.

        Args:
            tasks: names of fields of this class.
        """
        implementations = {}
        for task in tasks:  # ``LIBRARY`` has torch's operation for each task
            is_library = getattr(self, task) is getattr(LIBRARY, task)
            implementations[task] = "library" if is_library else "own"
        return implementations


LIBRARY = Kernels()
OWN = Kernels(linear_cross_entropy.linear_cross_entropy_sum)


def choose_kernel_kind(recipe: Recipe, torch_type: str) -> Literal["library", "own"]:
    """Return whose kernels a recipe uses: torch's, ``library``, or those of this package, ``own``.

    The default is ``own`` on a CPU, else ``library``.
    """
    if recipe.kernels is not None:
        return recipe.kernels
    # On a CPU ``own`` saves memory, because it computes in blocks. On other devices a figure should
    # show what torch achieves on the device: see docs/decisions/kernels.md.
    return "own" if torch_type == "cpu" else "library"


def choose_kernels(recipe: Recipe, torch_type: str) -> Kernels:
    """Return the operations for ``recipe`` on a type of device."""
    return LIBRARY if choose_kernel_kind(recipe, torch_type) == "library" else OWN
