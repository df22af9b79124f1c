"""What DLRM is compared with: a bag a table, pairs by index, plain SGD; and ids to look up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness import choose_size
from trainmark.cases.dlrm_criteo.model import build_mlp

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCH, TABLE_ROWS = choose_size((8192, 100_000), (64, 200))
NUM_TABLES, DIM, NUM_NUMERICAL = 26, 128, 13
BOTTOM, TOP = (512, 256, 128), (1024, 1024, 512, 256, 1)
NUM_FEATURES = 480
ZIPF_EXPONENT = 1.05


def draw_ids(kind: str, batch: int, *, seed: int) -> Tensor:
    """Return ids (NUM_TABLES, batch), int32: ``uniform``, or ``zipf`` as categories fall."""
    rng = np.random.default_rng(seed)
    shape = (NUM_TABLES, batch)
    if kind == "uniform":
        return torch.from_numpy(rng.integers(TABLE_ROWS, size=shape, dtype=np.int32))
    chances = (np.arange(TABLE_ROWS) + 1.0) ** -ZIPF_EXPONENT
    bounds = np.cumsum(chances / chances.sum())
    ranks = np.searchsorted(bounds, rng.random(shape)).clip(max=TABLE_ROWS - 1)
    # A category's number says nothing of its frequency.
    return torch.from_numpy(rng.permutation(TABLE_ROWS)[ranks].astype(np.int32))


def draw_batch(kind: str, batch: int, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return numbers (batch, 13), labels (batch,) and ids."""
    generator = torch.Generator().manual_seed(seed)
    numerical = torch.rand(batch, NUM_NUMERICAL, generator=generator)
    labels = (torch.rand(batch, generator=generator) < 0.3).float()
    return numerical, labels, draw_ids(kind, batch, seed=seed)


class PlainTables(nn.Module):
    """One ``EmbeddingBag`` a table of ``rows``; ``sparse`` gradients or dense ones."""

    def __init__(self, *, sparse: bool, rows: int = TABLE_ROWS) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(rows, DIM, mode="sum", sparse=sparse) for _ in range(NUM_TABLES)
        )

    def forward(self, ids: Sequence[Tensor]) -> list[Tensor]:
        return [bag(row) for bag, row in zip(self.bags, ids, strict=True)]


class PlainDlrm(nn.Module):
    """The same mathematics, written as one would at first."""

    def __init__(self, *, sparse: bool, rows: int = TABLE_ROWS) -> None:
        super().__init__()
        self.tables = PlainTables(sparse=sparse, rows=rows)
        self.bottom = build_mlp([NUM_NUMERICAL, *BOTTOM])
        self.top = build_mlp([NUM_FEATURES, *TOP], last_is_linear=True)
        row, column = torch.tril_indices(NUM_TABLES + 1, NUM_TABLES + 1, -1)
        self.row, self.column = row, column

    def forward(self, numerical: Tensor, ids: Sequence[Tensor]) -> Tensor:
        dense = self.bottom(numerical)
        vectors = torch.stack([dense, *self.tables(ids)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs = products[:, self.row, self.column]
        padding = dense.new_zeros(len(dense), NUM_FEATURES - DIM - pairs.shape[1])
        logits: Tensor = self.top(torch.cat([dense, pairs, padding], 1))
        return logits.squeeze(1)


def make_bags(ids: Tensor) -> list[Any]:
    """Return ids as bags of one, the form ``EmbeddingBag`` takes: (batch, 1) a table."""
    return [row.long()[:, None] for row in ids]
