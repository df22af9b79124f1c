"""Add up what an evaluation scores: on this rank as it goes, over all ranks at its end.

Owns the keys of rows, by which the harness tells whether an evaluation scored rows twice, others
than before, or rows of training. Must not know what rows hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from trainmark.protocols import Evaluation, RankScores
from trainmark.train.stepper import add_over_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    Keys = NDArray[np.uint64]

MAX_KEYS = 1 << 20  # of a rank in one evaluation; the other rows are counted only
_WORD = 8  # bytes


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """The rows of one batch of an evaluation that count: how many, and a key of each."""

    count: int
    keys: Keys

    @classmethod
    def of(cls, tensors: Any, count: int) -> ScoredRows:
        """Return the first ``count`` rows of ``tensors`` on the host; see ``row_keys``."""
        return cls(count, row_keys(tensors, count))


def scored_rows(batches: Iterable[tuple[Any, int]]) -> Iterator[tuple[Any, ScoredRows]]:
    """Yield batches on the host with the rows of them that count, in place of their number.

    Args:
        batches: tensors and how many of their rows count, as ``evaluation_batches`` yields them.
    """
    for tensors, count in batches:
        yield tensors, ScoredRows.of(tensors, count)


def num_rows(tensors: Any) -> int:
    """Return the rows of the first tensor that has any dimension; 0 if there is none."""
    return next((len(tensor) for tensor in _tensors_in(tensors) if tensor.dim()), 0)


def row_keys(tensors: Any, count: int) -> Keys:
    """Return a key of each of the first ``count`` rows: equal rows have equal keys.

    Zeros at the end of a row do not change its key, so padding with zeros may differ.

    Args:
        tensors: on the host, at any depth of tuples, lists and dicts. Those with as many rows as
            the first one count.
    """
    if count == 0:
        return np.empty(0, np.uint64)
    tensors_with_rows = [tensor for tensor in _tensors_in(tensors) if tensor.dim()]
    keys = np.zeros(count, np.uint64)
    for tensor in tensors_with_rows:
        if len(tensor) == len(tensors_with_rows[0]):
            keys = _mixed(keys * np.uint64(31) + _sums(tensor[:count]))
    return keys


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, np.ndarray):
        yield torch.from_numpy(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors_in(item)


def _sums(tensor: Tensor) -> Keys:
    """Return the sum of each row's words, each times a number of its place, modulo 2 ** 64."""
    plain = tensor.detach().reshape(len(tensor), -1).contiguous()
    data = plain.view(torch.uint8).numpy()
    if padding := -data.shape[1] % _WORD:
        data = np.pad(data, [(0, 0), (0, padding)])
    words = data.view(np.uint64)
    sums: Keys = (words * _multipliers(words.shape[1])).sum(axis=1, dtype=np.uint64)
    return sums


@lru_cache(maxsize=16)
def _multipliers(count: int) -> Keys:
    """Return odd numbers, one for each place of a row."""
    odd: Keys = _mixed(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)
    return odd


def _mixed(keys: Keys) -> Keys:
    """Return well distributed numbers: the finalizer of splitmix64 (Steele et al. 2014)."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Keys = keys ^ (keys >> np.uint64(31))
    return mixed


class EvaluationSum:
    """What this rank scored in one evaluation, and how all ranks together did."""

    def __init__(self) -> None:
        self.rows = 0
        self._keys: list[Keys] = []
        self._num_keys = 0
        self._total: Tensor | float = 0.0
        self.weight = 0.0
        self._is_mean = False

    @property
    def total(self) -> float:
        """Sum of this rank's scores; waits for the device."""
        return float(self._total)

    def add(
        self, rows: ScoredRows, total: Tensor | float | None = None, weight: float | None = None
    ) -> None:
        """Add a batch.

        Args:
            total: sum of the scores of its rows, a tensor on the device or a number; None: the
                quality is not a mean.
            weight: what the sum is divided by in the end; None: the number of rows.
        """
        self.rows += rows.count
        if self._num_keys < MAX_KEYS:
            self._keys.append(rows.keys)
            self._num_keys += len(rows.keys)
        if total is not None:
            self._is_mean = True
            self._total = self._total + total
            self.weight += rows.count if weight is None else weight

    def scores(self, of: str = "") -> RankScores:
        """Return what this rank scored.

        Args:
            of: the detail that is the mean; empty: the value of the evaluation.
        """
        total = self.total if self._is_mean else None
        weight = self.weight if self._is_mean else None
        keys = np.concatenate([*self._keys, np.empty(0, np.uint64)])[:MAX_KEYS]
        return RankScores(self.rows, keys, total, weight, of)

    def over_ranks(self, *, world_size: int, device: torch.device) -> tuple[float, float, int]:
        """Return total, weight and rows of all ranks; every rank must call it."""
        total, weight = add_over_ranks(
            self.total, self.weight, world_size=world_size, device=device
        )
        (rows,) = add_over_ranks(self.rows, world_size=world_size, device=device)
        return total, weight, int(rows)

    def mean(self, *, world_size: int, device: torch.device) -> Evaluation:
        """Return the mean over all ranks as an evaluation; every rank must call it."""
        total, weight, rows = self.over_ranks(world_size=world_size, device=device)
        return Evaluation(total / weight if weight else float("nan"), rows, scores=self.scores())
