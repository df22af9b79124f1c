"""Count the batches that a ``DataLoader`` yields to a program, and find those that it trains.

A program may evaluate on batches of another loader, and may read batches before it trains them. A
data set counts as trained if its batch was the last one before a backward pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from trainmark.protocols import Counts

if TYPE_CHECKING:
    from collections.abc import Iterator

_INPUTS = ("input_ids", "input", "inputs", "tokens")  # usual keys of the model's input
_MASK = "attention_mask"
_MAX_DEPTH = 4  # of nested lists and mappings in a batch
_MAX_ROWS = 256  # rows of a data set whose digests are kept


@dataclass(slots=True)
class Fetch:
    """A batch that a loader yielded.

    Args:
        dataset_id: id of its data set.
        counts: counts of the batch; None: it has no tensor that can be counted.
        marks: the device's marks before and after it was fetched.
    """

    dataset_id: int
    counts: Counts | None
    marks: tuple[Any, Any]


@dataclass(slots=True)
class _FirstRows:
    """Digests of the first rows of the first epoch of a data set.

    Args:
        epoch_number: number of this epoch, as ``BatchCounter.add`` gets it.
    """

    epoch_number: int
    digests: list[int] = field(default_factory=list)


@dataclass(slots=True)
class BatchCounter:
    """The batches of one rank since its last step.

    Args:
        sample_dimension: dimension of the counted tensor whose size is the number of samples.
        token_dimension: likewise for tokens; None: the elements of an integer tensor with two
            dimensions are tokens.

    Attributes:
        trained_ids: ids of the data sets that are trained on.
        _fetches: the batches since the last step, of all data sets.
        _last_dataset_id: id of the data set of the last batch.
        _num_steps_without_batch: number of steps in a row without a batch of these data sets.
        _rows: digests of the first rows of each data set, by its id.
    """

    sample_dimension: int = 0
    token_dimension: int | None = None
    trained_ids: set[int] = field(default_factory=set)
    _fetches: list[Fetch] = field(default_factory=list)
    _last_dataset_id: int | None = None
    _num_steps_without_batch: int = 0
    _rows: dict[int, _FirstRows] = field(default_factory=dict)

    def add(
        self, dataset_id: int, batch: Any, marks: tuple[Any, Any], *, epoch_number: int = 0
    ) -> None:
        """Add a batch that a loader yielded.

        Args:
            dataset_id: id of the loader's data set.
            marks: marks in the device's stream of work before and after the batch was fetched; the
                device returns the time between them.
            epoch_number: number of the epoch; each epoch of each loader has its own.
        """
        self._fetches.append(Fetch(dataset_id, self.measure(batch), marks))
        self._last_dataset_id = dataset_id  # a backward pass that follows may train on it
        # Only rows of a data set's first epoch tell whether rows are read more than once in an
        # epoch: in a later epoch each row comes again anyway.
        rows = self._rows.setdefault(dataset_id, _FirstRows(epoch_number))
        if epoch_number == rows.epoch_number and len(rows.digests) < _MAX_ROWS:
            rows.digests += _digest_rows(_find_inputs(batch), self.sample_dimension)

    def list_rows(self) -> list[int]:
        """Return digests of the first rows of the first epoch, of the data sets trained on.

        The record compares them to find rows that were read more than once in the epoch.
        """
        digests: list[int] = []
        for dataset_id in self.trained_ids:
            if dataset_id in self._rows:
                digests += self._rows[dataset_id].digests
        return digests

    def note_backward(self) -> None:
        """Note that a backward pass begins: the data set of the last batch may be trained on.

        The first such data set is one to train on. A further one is added only if several steps in
        a row had no batch of those known so far. Otherwise a data set for evaluation would be added
        if its batch happened to be read just before a backward pass.
        """
        if self._last_dataset_id is None:  # no batch was read
            return
        if not self.trained_ids or self._num_steps_without_batch > 1:
            self.trained_ids.add(self._last_dataset_id)

    def take_fetches(self) -> list[Fetch]:
        """Return the training batches fetched since the last call; called when a step has ended."""
        trained_fetches = [fetch for fetch in self._fetches if fetch.dataset_id in self.trained_ids]
        # After several steps in a row without a batch, ``note_backward`` adds a data set.
        if trained_fetches:
            self._num_steps_without_batch = 0
        else:
            self._num_steps_without_batch += 1
        self._fetches.clear()
        return trained_fetches

    def measure(self, batch: Any) -> Counts | None:
        """Return the samples and tokens of a batch; None if no tensor of it has samples.

        Each sample counts as one sequence.
        """
        tensor = _find_inputs(batch)
        if tensor is None or tensor.dim() <= self.sample_dimension:
            return None
        samples = int(tensor.shape[self.sample_dimension])
        tokens_padded = self._count_padded_tokens(tensor, samples)
        tokens = tokens_padded  # unless an attention mask tells which of them are padding
        mask: Any = batch.get(_MASK) if isinstance(batch, Mapping) else None
        # A mask that is no tensor is not used. One on the device is not read, because that would
        # wait for the device.
        if tokens_padded and hasattr(mask, "device") and mask.device.type == "cpu":
            num_unmasked = float(mask.sum())
            # Only a mask with a 1 for each token that is no padding, and a 0 for each other one, is
            # used. Others have an element for each pair of tokens, or -inf for those to ignore.
            if mask.numel() == tokens_padded and 0 < num_unmasked <= tokens_padded:
                tokens = int(num_unmasked)
        return Counts(
            samples=samples, sequences=samples, tokens=tokens, tokens_padded=tokens_padded
        )

    def _count_padded_tokens(self, tensor: Any, samples: int) -> int:
        """Return the number of tokens in a tensor, padding included; 0 if it has no tokens."""
        if self.token_dimension is not None:
            if tensor.dim() <= self.token_dimension:
                return 0
            # Further dimensions, such as the features of a token, do not count.
            return samples * int(tensor.shape[self.token_dimension])
        # The user states no token dimension: an integer tensor (samples, tokens) holds token ids.
        is_text = tensor.dim() == 2 and not tensor.is_floating_point()
        return int(tensor.numel()) if is_text else 0


def _find_inputs(batch: Any) -> Any | None:
    """Return the tensor by which a batch's samples and tokens are counted; None: there is none.

    It is the one with a usual key of the model's input (``_INPUTS``), else the first one.
    """
    if isinstance(batch, Mapping):
        for key in _INPUTS:
            if key in batch and hasattr(batch[key], "dim"):
                return batch[key]
    return next(_iterate_tensors(batch, _MAX_DEPTH), None)


def _iterate_tensors(batch: Any, depth: int) -> Iterator[Any]:
    """Yield the tensors of a batch, without scalars.

    Args:
        batch: a tensor, or a list or mapping of batches; anything else has no tensors.
        depth: levels of lists and mappings in which tensors are still looked for.
    """
    if hasattr(batch, "dim") and hasattr(batch, "shape"):  # a tensor; torch is not imported here
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
    """Return digests of the first rows of a tensor on the host.

    There are none for a tensor on a device, which would have to be waited for, and for a sparse
    one, whose rows do not lie in memory.

    Args:
        dimension: the dimension along which the rows lie.
    """
    if tensor is None or tensor.device.type != "cpu" or tensor.dim() <= dimension:
        return []
    if str(tensor.layout) != "torch.strided":
        return []
    digests = []
    for row in tensor.detach().unbind(dimension)[:_MAX_ROWS]:
        elements = row.contiguous()  # in one piece of memory
        # The program waits: the bytes are read at once, and not one by one in Python.
        content = ctypes.string_at(elements.data_ptr(), elements.numel() * elements.element_size())
        # With 7 bytes, the number fits into a signed integer of 64 bits.
        digests.append(int.from_bytes(blake2b(content, digest_size=7).digest(), "big"))
    return digests
