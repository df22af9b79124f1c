"""Embedding tables of the torchrec package, in the shape of ``embeddings.FusedTables``.

Owns how ids, rates and weights reach torchrec's fused collection, whose kernels (fbgemm)
take the SGD step inside the backward pass. The package is an extra; ``recipe`` asks for it.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from trainmark.cases.dlrm_criteo.embeddings import fill_rows, scale_or_zero
from trainmark.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Sequence

# The last operation of a step. Builds of fbgemm differ in the devices that it has kernels for.
_UPDATE = "fbgemm::split_embedding_backward_codegen_sgd_unweighted_pt2_wrapper"


class TorchrecTables(nn.Module):
    """Look rows up with torchrec, on the default device; as ``FusedTables`` otherwise.

    Raises:
        EnvironmentFault: the installed fbgemm has no kernels for the device.
    """

    def __init__(self, cardinalities: Sequence[int], dim: int, *, seed: int | None) -> None:
        super().__init__()
        self.cardinalities, self.dim = tuple(cardinalities), dim
        self.learning_rate: float = 0.0
        self.grad_scale: float | Tensor = 1.0
        self._device = torch.get_default_device()
        self._keys = [str(table) for table in range(len(self.cardinalities))]
        self.collection = _build_collection(self.cardinalities, dim, self._device)
        (lookup,) = self.collection._emb_modules  # one: all tables are alike
        self._kernel: Any = lookup._emb_module
        self._offsets = torch.zeros(1, dtype=torch.int64, device=self._device)
        if seed is not None:
            for table, part in enumerate(self.weight.split(self.cardinalities)):
                fill_rows(part, table=table, first_row=0, cardinality=len(part), seed=seed)

    @property
    def weight(self) -> Tensor:
        """The tables one after the other, (sum of cardinalities, dim)."""
        on_host = self._device.type == "cpu"
        flat = cast("Tensor", self._kernel.weights_host if on_host else self._kernel.weights_dev)
        return flat.detach().view(sum(self.cardinalities), self.dim)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ``ids`` (T, B), int32 or int64, as (B, T, dim)."""
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        tables, samples = ids.shape
        if len(self._offsets) != ids.numel() + 1:  # every bag holds one id
            self._offsets = torch.arange(ids.numel() + 1, device=self._device)
        bags = KeyedJaggedTensor(
            self._keys,
            ids.reshape(-1).long(),
            offsets=self._offsets,
            stride=samples,
            length_per_key=[samples] * tables,  # otherwise read back from the device
        )
        scale = self.grad_scale
        on_device = isinstance(scale, Tensor)
        self._kernel.set_learning_rate(self.learning_rate / (1.0 if on_device else float(scale)))
        found = cast("Tensor", self.collection(bags).values())
        if isinstance(scale, Tensor) and found.requires_grad:
            found.register_hook(lambda grad: scale_or_zero(grad, 1.0 / scale))
        return found.view(samples, tables, self.dim)


def _has_kernels(device: torch.device) -> bool:
    """Tell whether the installed fbgemm, which is loaded, can take a step on such a device."""
    key = torch._C._dispatch_key_for_device(device.type)
    dispatched = torch._C._dispatch_has_kernel(_UPDATE)
    return bool(dispatched and torch._C._dispatch_has_kernel_for_dispatch_key(_UPDATE, key))


def _build_collection(cardinalities: Sequence[int], dim: int, device: torch.device) -> Any:
    """Return torchrec's bags of embeddings with the SGD step in their backward pass."""
    with warnings.catch_warnings():
        # Importing fbgemm warns of every kernel that its CPU build does not have.
        warnings.simplefilter("ignore")
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from torchrec.modules.embedding_configs import EmbeddingBagConfig
        from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

        if not _has_kernels(device):
            raise EnvironmentFault(
                f"engine=torchrec was asked to look up on {device.type}",
                rule="the installed fbgemm has no kernels for it",
                fix="engine=plain, --device cpu, or a build of fbgemm-gpu for the device",
            )
        tables = [
            EmbeddingBagConfig(
                name=f"table_{table}",
                feature_names=[str(table)],
                num_embeddings=rows,
                embedding_dim=dim,
            )
            for table, rows in enumerate(cardinalities)
        ]
        location = EmbeddingLocation.HOST if device.type == "cpu" else EmbeddingLocation.DEVICE
        return FusedEmbeddingBagCollection(
            tables,
            optimizer_type=torch.optim.SGD,
            optimizer_kwargs={"lr": 0.0},
            device=device,
            location=location,
        )
