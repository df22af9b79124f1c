"""The operation that computes a language model's loss: torch's, or one of this package.

Only this module decides, from the recipe field ``kernels`` and the kind of device. Jobs and
models call the operation that they get and must not know the choice.
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
    """One operation for each task; both implementations take the same arguments."""

    cross_entropy: Callable[..., Tensor] = linear_cross_entropy.library_cross_entropy_sum

    def used(self, *tasks: str) -> dict[str, str]:
        """Return which operation each of ``tasks`` uses, ``own`` or ``library``."""
        return {
            task: "library" if getattr(self, task) is getattr(LIBRARY, task) else "own"
            for task in tasks
        }


LIBRARY = Kernels()
OWN = Kernels(linear_cross_entropy.linear_cross_entropy_sum)


def kind(recipe: Recipe, torch_type: str) -> Literal["library", "own"]:
    """Return which operations run; the default is ``own`` on a CPU, else ``library``."""
    return recipe.kernels or ("own" if torch_type == "cpu" else "library")


def choose(recipe: Recipe, torch_type: str) -> Kernels:
    """Return the operations for ``recipe`` on a kind of device."""
    return LIBRARY if kind(recipe, torch_type) == "library" else OWN
