"""Sum the scores of an evaluation: on this rank batch by batch, over all ranks at its end.

Computes keys of rows. By them the harness detects that an evaluation scored rows twice, scored
other rows than before, or scored rows of training. Knows nothing about the content of rows.
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

MAX_KEYS = 1 << 20  # of a rank in one evaluation; further rows are only counted
_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """The rows of a batch that an evaluation counts: their number, and a key of each."""

    count: int
    keys: Keys

    @classmethod
    def of(cls, tensors: Any, count: int) -> ScoredRows:
        """Return the number of scored rows of a batch, and a key of each: equal rows, equal keys.

        Args:
            tensors: of the batch, on the host, nested in tuples, lists and dicts.
            count: the first ``count`` rows of the batch are scored.
        """
        return cls(count, compute_row_keys(tensors, count))


def scored_rows(batches: Iterable[tuple[Any, int]]) -> Iterator[tuple[Any, ScoredRows]]:
    """Yield the tensors of each batch with the number and the keys of its scored rows.

    Args:
        batches: tensors on the host and the number of their first rows that are scored, as
            ``evaluation_batches`` yields them. In a filler batch, which a rank without rows left
            gets, this number is 0.
    """
    for tensors, count in batches:
        yield tensors, ScoredRows.of(tensors, count)


def count_rows(tensors: Any) -> int:
    """Return the length of the first tensor that is no scalar; 0 if there is none."""
    for tensor in _iterate_tensors(tensors):
        if tensor.dim():
            return len(tensor)
    return 0


def compute_row_keys(tensors: Any, count: int) -> Keys:
    """Return a key of each of the first ``count`` rows: equal rows have equal keys.

    By the keys the harness recognizes rows that a job scores twice, or trains and scores. Zeros at
    the end of a row do not change its key: it has the same key in a batch that is padded with more
    zeros.

    Args:
        tensors: tensors or arrays on the host, nested in tuples, lists and dicts. Those without
            dimensions are ignored. So are those with another number of rows than the first one
            that has dimensions: they do not hold one row for each row of the batch.
        count: number of rows.
    """
    if count == 0:
        return np.empty(0, np.uint64)
    tensors_with_rows = [tensor for tensor in _iterate_tensors(tensors) if tensor.dim()]
    keys = np.zeros(count, np.uint64)
    for tensor in tensors_with_rows:
        if len(tensor) == len(tensors_with_rows[0]):
            # The factor lets the order of the tensors count; 31 as in many string hashes.
            keys = _mix_keys(keys * np.uint64(31) + _sum_words(tensor[:count]))
    return keys


def _iterate_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors and arrays that are nested in ``value``, as tensors."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, np.ndarray):
        yield torch.from_numpy(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _iterate_tensors(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _iterate_tensors(item)


def _sum_words(tensor: Tensor) -> Keys:
    """Return a hash of each row, which depends on the order of its words.

    A word is eight bytes of the row, read as an integer; zeros fill the last one. Each word is
    multiplied by a factor that depends on its place. The hash is the sum, modulo 2 ** 64.
    """
    rows = tensor.detach().reshape(len(tensor), -1).contiguous()
    # A single number may count as contiguous with any stride, which ``view`` refuses; a copy has
    # the stride 1.
    if rows.stride(-1) != 1:
        rows = rows.clone(memory_format=torch.contiguous_format)
    data = rows.view(torch.uint8).numpy()  # (rows, bytes)
    padding = -data.shape[1] % _WORD_BYTES  # bytes up to the next whole word
    if padding:
        data = np.pad(data, [(0, 0), (0, padding)])
    words = data.view(np.uint64)
    sums: Keys = (words * _make_multipliers(words.shape[1])).sum(axis=1, dtype=np.uint64)
    return sums


@lru_cache(maxsize=16)
def _make_multipliers(count: int) -> Keys:
    """Return a factor for each of ``count`` places of a row.

    Odd, so that no bit of a word is lost: different words have different products modulo 2 ** 64.
    """
    odd: Keys = _mix_keys(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)
    return odd


def _mix_keys(keys: Keys) -> Keys:
    """Return well distributed keys, by the finalizer of splitmix64 (Steele et al. 2014)."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Keys = keys ^ (keys >> np.uint64(31))
    return mixed


class EvaluationSum:
    """The scores of this rank in one evaluation, and their sum over all ranks."""

    def __init__(self) -> None:
        self.rows = 0  # number of scored rows
        self.weight = 0.0  # the mean is the total divided by this, both over all ranks
        # Sum of the scores. A tensor stays on the device, so that no batch waits for it.
        self._total: Tensor | float = 0.0
        self._is_mean = False  # whether any batch had a total: the quality is then a mean of scores
        # A key of each scored row, an array for each batch. Equal rows have equal keys, so that the
        # harness detects rows that were scored twice.
        self._keys: list[Keys] = []
        self._num_keys = 0  # in all these arrays; from ``MAX_KEYS`` on, no more are added

    @property
    def total(self) -> float:
        """Return the sum of this rank's scores; waits for the device."""
        return float(self._total)

    def add(
        self, rows: ScoredRows, total: Tensor | float | None = None, weight: float | None = None
    ) -> None:
        """Add a batch.

        Args:
            rows: the rows of the batch that count.
            total: sum of their scores, a tensor on the device or a number; None: the quality is
                not a mean of scores.
            weight: what the batch adds to the divisor of the mean; None: its number of rows.
        """
        self.rows += rows.count
        if self._num_keys < MAX_KEYS:  # later rows are only counted, without keys
            self._keys.append(rows.keys)
            self._num_keys += len(rows.keys)
        if total is not None:
            self._is_mean = True
            self._total = self._total + total
            self.weight += rows.count if weight is None else weight

    def scores(self, of: str = "") -> RankScores:
        """Return the scores of this rank.

        Args:
            of: which number of the ``Evaluation`` is the mean of these scores: a key of its
                ``detail``, such as ``val_loss``; empty: its ``value``.
        """
        no_keys = np.empty(0, np.uint64)  # for a rank that scored no rows
        # The last batch may go beyond ``MAX_KEYS``: the harness gets no more keys than that.
        keys = np.concatenate([*self._keys, no_keys])[:MAX_KEYS]
        if not self._is_mean:  # no batch had a total, so this rank adds nothing to a mean
            # ``of`` even so: other ranks may have scored batches, and all must name the same.
            return RankScores(self.rows, keys, of=of)
        return RankScores(self.rows, keys, self.total, self.weight, of)

    def sum_over_ranks(self, *, world_size: int, device: torch.device) -> tuple[float, float, int]:
        """Return the sums over all ranks of total, weight and rows; every rank must call it."""
        total, weight = add_over_ranks(
            self.total, self.weight, world_size=world_size, device=device
        )
        # Separately: ``add_over_ranks`` adds exactly only if all its numbers are integers.
        (rows,) = add_over_ranks(self.rows, world_size=world_size, device=device)
        return total, weight, int(rows)

    def mean(self, *, world_size: int, device: torch.device) -> Evaluation:
        """Return the mean over all ranks as an evaluation; every rank must call it.

        The mean is NaN if no rank scored anything.
        """
        total, weight, rows = self.sum_over_ranks(world_size=world_size, device=device)
        return Evaluation(total / weight if weight else float("nan"), rows, scores=self.scores())
