"""Embedding tables of the torchrec package, in the shape of ``embeddings.FusedTables``.

Owns how ids, rates and weights reach torchrec's fused collection, whose kernels (fbgemm)
take the SGD step inside the backward pass. The package is an extra; ``recipe`` asks for it.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from trainmark.errors import EnvironmentFault

from .initial import fill_rows

if TYPE_CHECKING:
    from collections.abc import Sequence


class TorchrecTables(nn.Module):
    """Look rows up with torchrec; arguments and attributes as ``FusedTables`` has them."""

    row_operations = "fbgemm"

    def __init__(self, cardinalities: Sequence[int], dim: int, *, seed: int | None) -> None:
        super().__init__()
        self.cardinalities, self.dim = tuple(cardinalities), dim
        self.learning_rate: float = 0.0
        self.grad_scale: float | Tensor = 1.0
        self._keys = [str(table) for table in range(len(self.cardinalities))]
        self.collection = _collection(self.cardinalities, dim)
        (lookup,) = self.collection._emb_modules  # one: all tables are alike
        self._kernel: Any = lookup._emb_module
        self._offsets = torch.zeros(1, dtype=torch.int64)
        if seed is not None:
            for table, part in enumerate(self.weight.split(self.cardinalities)):
                fill_rows(part, table=table, first_row=0, cardinality=len(part), seed=seed)

    @property
    def weight(self) -> Tensor:
        """The tables one after the other, (sum of cardinalities, dim)."""
        flat = cast("Tensor", self._kernel.weights_host)
        return flat.detach().view(sum(self.cardinalities), self.dim)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ``ids`` (T, B), int32 or int64, as (B, T, dim).

        Raises:
            EnvironmentFault: the ids are on another device than a CPU.
        """
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        if ids.device.type != "cpu":
            raise EnvironmentFault(
                f"engine=torchrec was asked to look up on {ids.device.type}",
                rule="the fbgemm that fits this torch is its CPU build",
                remedy="engine=plain, or --device cpu",
            )
        if len(self._offsets) != ids.numel() + 1:
            self._offsets = torch.arange(ids.numel() + 1)  # every bag holds one id
        bags = KeyedJaggedTensor(self._keys, ids.reshape(-1).long(), offsets=self._offsets)
        self._kernel.set_learning_rate(self.learning_rate / float(self.grad_scale))
        found = cast("Tensor", self.collection(bags).values())
        if isinstance(self.grad_scale, Tensor) and found.requires_grad:
            found.register_hook(_or_zero)
        return found.view(ids.shape[1], len(self.cardinalities), self.dim)


def _collection(cardinalities: Sequence[int], dim: int) -> Any:
    """Return torchrec's bags of embeddings with the SGD step in their backward pass."""
    with warnings.catch_warnings():
        # Importing fbgemm warns of every kernel that its CPU build does not have.
        warnings.simplefilter("ignore")
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from torchrec.modules.embedding_configs import EmbeddingBagConfig
        from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

        tables = [
            EmbeddingBagConfig(
                name=f"table_{table}", feature_names=[str(table)],
                num_embeddings=rows, embedding_dim=dim,
            )
            for table, rows in enumerate(cardinalities)
        ]  # fmt: skip
        return FusedEmbeddingBagCollection(
            tables, optimizer_type=torch.optim.SGD, optimizer_kwargs={"lr": 0.0},
            device=torch.device("cpu"), location=EmbeddingLocation.HOST,
        )  # fmt: skip


def _or_zero(grad: Tensor) -> Tensor:
    """Return ``grad``, or zeros where a number of it overflowed under the loss scale."""
    return torch.where(torch.isfinite(grad.sum()), grad, torch.zeros_like(grad))
