"""Random text that programs train on: the same for all."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

WORDS = 256


class Texts(Dataset):  # type: ignore[type-arg]
    """Rows of token ids that are drawn when they are read."""

    def __init__(self, rows: int, length: int) -> None:
        self.rows, self.length = rows, length

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= self.rows:
            raise IndexError(index)
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, WORDS, (self.length,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}
