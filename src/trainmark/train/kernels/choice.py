"""Choose the operations that a job computes with: the libraries', or those of this package.

Only this module decides, from the recipe field ``kernels`` and the kind of device. Jobs and
models call the operations that they get and must not know the choice.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from trainmark.train.kernels import (
    attention,
    embedding_rows,
    linear_cross_entropy,
    tied_table,
)
from trainmark.train.kernels.dropout import FastDropout

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from transformers import PreTrainedModel

    from trainmark.spec import Recipe


@dataclass(frozen=True, slots=True)
class Kernels:
    """One operation for each task; both implementations take the same arguments."""

    attention: Callable[..., Tensor] = attention.library_attention
    dropout: type[nn.Dropout] = nn.Dropout
    cross_entropy: Callable[..., Tensor] = linear_cross_entropy.library_cross_entropy_sum
    rows: embedding_rows.RowOperations = embedding_rows.TORCH
    tied_table: Callable[[Tensor, Tensor], tuple[Tensor, tied_table.LogProbs]] = (
        tied_table.library_look_up
    )

    def used(self, *tasks: str) -> dict[str, str]:
        """Return which operation each of ``tasks`` uses, ``own`` or ``library``."""
        return {task: "own" if task in self._own() else "library" for task in tasks}

    def put_into(self, model: PreTrainedModel) -> None:
        """Make a model of transformers compute attention and dropout with these operations."""
        own = self._own()
        if "attention" in own:
            attention.use_cpu_attention(model)
        if "dropout" in own:
            for module in model.modules():
                if type(module) is nn.Dropout:
                    module.__class__ = self.dropout

    def _own(self) -> set[str]:
        names = (item.name for item in fields(self))
        return {name for name in names if getattr(self, name) is not getattr(LIBRARY, name)}


LIBRARY = Kernels()
OWN = Kernels(
    attention=attention.attention,
    dropout=FastDropout,
    cross_entropy=linear_cross_entropy.linear_cross_entropy_sum,
    rows=embedding_rows.COMPILED,
    tied_table=tied_table.look_up,
)


def kind(recipe: Recipe, torch_type: str) -> Literal["library", "own"]:
    """Return which operations run; the default is ``own`` on a CPU, else ``library``."""
    return recipe.kernels or ("own" if torch_type == "cpu" else "library")


def choose(recipe: Recipe, torch_type: str) -> Kernels:
    """Return the operations for ``recipe`` on a kind of device.

    With ``own``, attention and dropout need uncompiled fp32 on a CPU, rows a CPU with numba.
    """
    on_cpu = torch_type == "cpu"
    if kind(recipe, torch_type) == "library":
        return LIBRARY
    unfit: dict[str, Any] = {}
    if not on_cpu or recipe.precision != "fp32" or recipe.compile:
        unfit |= {"attention": LIBRARY.attention, "dropout": LIBRARY.dropout}
    if not on_cpu or find_spec("numba") is None:
        unfit["rows"] = LIBRARY.rows
    return replace(OWN, **unfit)
