"""Count what a ``DataLoader`` yields to a program, separately for what it trains.

A program may evaluate on batches of another loader, and may read batches before it trains them. A
data set counts as trained if its batch was the last one before a backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from trainmark.protocols import Counts

if TYPE_CHECKING:
    from collections.abc import Iterator

_INPUTS = ("input_ids", "input", "inputs", "tokens")  # keys of the tensor that is counted
_MASK = "attention_mask"
_MAX_DEPTH = 4  # of lists and tables in a batch
_MAX_ROWS = 256  # of which digests are kept


@dataclass(slots=True)
class Fetch:
    """A batch that a loader yielded.

    Args:
        dataset: id of its data set.
        counts: of the batch; None: it holds no tensor that can be counted.
        marks: before and after it was fetched.
    """

    dataset: int
    counts: Counts | None
    marks: tuple[Any, Any]


@dataclass(slots=True)
class BatchCounter:
    """The batches of one rank since its last step.

    Args:
        sample_dimension, token_dimension: of the counted tensor; no token dimension: tokens are
            all elements of a tensor of integers with two dimensions.
    """

    sample_dimension: int = 0
    token_dimension: int | None = None
    trained: set[int] = field(default_factory=set)  # ids of data sets
    has_token_batches: bool = False
    _fetches: list[Fetch] = field(default_factory=list)
    _last: int | None = None
    _idle_steps: int = 0
    _rows: dict[int, tuple[int, list[int]]] = field(default_factory=dict)  # by data set

    def add(self, dataset: int, batch: Any, marks: tuple[Any, Any], *, iterator: int = 0) -> None:
        """Take a batch that a loader yielded.

        Args:
            iterator: id of the loader's iterator: a new one begins another epoch.
        """
        self._fetches.append(Fetch(dataset, self.measure(batch), marks))
        self._last = dataset
        first, rows = self._rows.setdefault(dataset, (iterator, []))
        if iterator == first and len(rows) < _MAX_ROWS:
            rows += _digest_rows(_find_inputs(batch), self.sample_dimension)

    def list_rows(self) -> list[int]:
        """Return digests of the first rows that were trained, of the first epoch."""
        return [row for dataset in self.trained for row in self._rows.get(dataset, (0, []))[1]]

    def backward(self) -> None:
        """Note that a backward pass begins: the last batch is one that is trained."""
        if self._last is not None and (not self.trained or self._idle_steps > 1):
            self.trained.add(self._last)

    def take_step(self) -> list[Fetch]:
        """Return the batches of training since the last step, and forget all."""
        fetched = [fetch for fetch in self._fetches if fetch.dataset in self.trained]
        self._idle_steps = 0 if fetched else self._idle_steps + 1
        self._fetches.clear()
        return fetched

    def measure(self, batch: Any) -> Counts | None:
        """Return the samples and tokens of a batch; None if it holds no tensor."""
        tensor = _find_inputs(batch)
        if tensor is None or tensor.dim() <= self.sample_dimension:
            return None
        rows = int(tensor.shape[self.sample_dimension])
        padded = self._count_tokens(tensor, rows)
        tokens = padded
        mask = batch.get(_MASK) if isinstance(batch, Mapping) else None
        if padded and mask is not None and mask.device.type == "cpu":
            tokens = int(mask.sum())
        return Counts(rows, rows, tokens, padded)

    def _count_tokens(self, tensor: Any, rows: int) -> int:
        if self.token_dimension is not None:
            if tensor.dim() <= self.token_dimension:
                return 0
            return rows * int(tensor.shape[self.token_dimension])
        is_text = tensor.dim() == 2 and not tensor.is_floating_point()
        return int(tensor.numel()) if is_text else 0


def _find_inputs(batch: Any) -> Any | None:
    """Return the tensor that is counted: that of a known key, else the first."""
    if isinstance(batch, Mapping):
        for key in _INPUTS:
            if key in batch and hasattr(batch[key], "dim"):
                return batch[key]
    return next(_iterate_tensors(batch, _MAX_DEPTH), None)


def _iterate_tensors(batch: Any, depth: int) -> Iterator[Any]:
    """Yield the tensors of a batch that have a dimension."""
    if hasattr(batch, "dim") and hasattr(batch, "shape"):
        if batch.dim():
            yield batch
        return
    if depth == 0 or isinstance(batch, str | bytes):
        return
    values: Sequence[Any] = ()
    if isinstance(batch, Mapping):
        values = list(batch.values())
    elif isinstance(batch, Sequence):
        values = batch
    for value in values:
        yield from _iterate_tensors(value, depth - 1)


def _digest_rows(tensor: Any | None, dimension: int) -> list[int]:
    """Return a digest of each row of a tensor on the host; empty of one on a device."""
    if tensor is None or tensor.device.type != "cpu" or tensor.dim() <= dimension:
        return []
    rows = tensor.detach().contiguous().unbind(dimension)[:_MAX_ROWS]
    return [
        int.from_bytes(
            blake2b(bytes(row.contiguous().untyped_storage()), digest_size=7).digest(), "big"
        )
        for row in (row.clone() for row in rows)
    ]
