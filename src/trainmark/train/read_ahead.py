"""Read batches ahead of the device: a thread prepares them while the device works.

Batches keep the order of their source, and are moved to the device here. Knows nothing about the
content of batches, nor when they are timed.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from zlib import crc32

from torch import Tensor, contiguous_format, uint8

from trainmark.errors import UsageError
from trainmark.protocols import Batch
from trainmark.train.evaluation import compute_row_keys, count_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from trainmark.protocols import Device, Job

Value = TypeVar("Value")
THREAD_NAME = "read-ahead"
MAX_ROWS = 256  # of a rank whose digests are noted
MAX_TRAINED_KEYS = 4 * MAX_ROWS  # of rows of training, with which evaluations are compared
_KEYS_PER_BATCH = 4
_END: Any = object()  # what the thread returns after the last value


def iterate_batches(
    job: Job,
    device: Device,
    epoch: int,
    *,
    depth: int,
    row_digests: list[int] | None = None,
    keys: list[int] | None = None,
) -> Generator[Batch, None, None]:
    """Yield the batches of ``epoch`` on the device; a thread reads them ahead.

    Digests and keys are noted only in the first epoch. Later epochs train the same rows again,
    which is no fault.

    Args:
        depth: maximum number of batches that are ready or being read while the caller uses one; 0:
            no thread, each batch is read when it is needed.
        row_digests: list to which a digest of each batch's first row is appended. By these digests
            the checks of a record find rows that come more than once.
        keys: list to which the keys of some rows are appended, by which evaluations are searched
            for trained rows. A key is a number that equal rows share.
    """

    def note_batch(batch: Batch) -> None:
        """Append the digest of the batch and its keys to the two lists, if wanted."""
        if row_digests is not None:
            _note_row(row_digests, batch)
        if keys is not None:
            _note_keys(keys, batch)

    is_noted = epoch == 0 and (row_digests is not None or keys is not None)
    inspect = note_batch if is_noted else None
    return read_ahead(job.batches(epoch), device, depth=depth, inspect=inspect)


def _note_row(row_digests: list[int], batch: Batch) -> None:
    """Append to ``row_digests`` a digest of the first row of a batch.

    With the digests, the checks of a record find rows that are trained more than once. Batches that
    count no samples are left out, because they repeat rows without a fault: they hold a filler row,
    or another rank counts the samples of the same rows. After ``MAX_ROWS`` digests nothing is
    appended.
    """
    if not batch.counts.samples or len(row_digests) >= MAX_ROWS:
        return
    row_digests.append(0)  # the crc32 of nothing, to which ``add_to_digest`` adds the row's tensors

    def add_to_digest(tensor: Tensor) -> Tensor:
        """Add the tensor's first row to the last digest; return the tensor unchanged."""
        first_row = tensor[:1] if tensor.dim() else tensor.reshape(1)
        # A copy, because a tensor with one row may count as contiguous with any stride, which
        # ``view`` refuses.
        dense = first_row.clone(memory_format=contiguous_format)
        row_digests[-1] = crc32(dense.flatten().view(uint8).numpy().tobytes(), row_digests[-1])
        return tensor

    map_tensors(batch.tensors, add_to_digest)  # called for its effect on ``row_digests``


def _note_keys(keys: list[int], batch: Batch) -> None:
    """Append to ``keys`` the keys of the first rows of a batch.

    A key is a number computed from a row, so that equal rows have equal keys. With the keys,
    evaluations are searched for rows that were trained. Nothing is appended if the batch counts no
    samples, if its tensors do not have one row for each sample, or if ``keys`` already has
    ``MAX_TRAINED_KEYS``.
    """
    samples = batch.counts.samples
    if not samples or len(keys) >= MAX_TRAINED_KEYS:
        return
    # ``identity`` has a row for each sample if ``tensors`` do not.
    tensors = batch.tensors if batch.identity is None else batch.identity
    if count_rows(tensors) == samples:
        keys += compute_row_keys(tensors, min(samples, _KEYS_PER_BATCH)).tolist()


def read_ahead(
    source: Iterator[Value],
    device: Device,
    *,
    depth: int,
    inspect: Callable[[Value], None] | None = None,
) -> Generator[Value, None, None]:
    """Yield the values of ``source`` in their order, with their tensors on the device.

    Another thread reads values ahead of the caller and pins their tensors; copies to the device
    are started in the caller's thread. An error of ``source`` is raised here, after the values
    before it. When the iterator ends, is closed or is dropped, its thread ends and ``source`` is
    closed; that waits for the value that is being read.

    Args:
        source: used only by the thread; it must not overwrite tensors that it has yielded.
        depth: maximum number of values that are ready or being read while the caller uses one; 0:
            no thread, each value is read when it is needed.
        inspect: called with each value, on the host, before the next one is read.
    """
    closable: Any = source  # a generator has ``close``; an iterator of itertools does not
    with closing(closable) if hasattr(source, "close") else nullcontext():
        if not depth:
            for value in source:
                if inspect:
                    inspect(value)
                yield map_tensors(value, device.place)
            return

        def fetch() -> Any:
            """Return the next value with pinned tensors, or ``_END``; runs in the thread."""
            value = next(source, _END)
            if inspect and value is not _END:
                inspect(value)
            return map_tensors(value, partial(_pin, device))

        # One thread, so that values keep their order.
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix=THREAD_NAME) as thread:
            try:
                waiting = deque(thread.submit(fetch) for _ in range(depth))
                while True:
                    value = waiting.popleft().result()
                    if value is _END:
                        break
                    waiting.append(thread.submit(fetch))
                    yield map_tensors(value, device.place)
            finally:
                thread.shutdown(cancel_futures=True)


def _pin(device: Device, tensor: Tensor) -> Tensor:
    """Return a host tensor in memory from which the device can copy asynchronously.

    Raises:
        UsageError: the tensor is not on the host.
    """
    if tensor.device.type != "cpu":
        raise UsageError(
            f"a batch contains a tensor on {tensor.device}",
            where="Job.batches",
            rule=(
                "batches must contain host tensors, which the harness reads ahead and moves to "
                "the device"
            ),
            fix="do not move tensors to the device in Job.batches",
        )
    return cast("Tensor", device.pin(tensor))


def map_tensors(value: Any, convert: Callable[[Tensor], Tensor]) -> Any:
    """Return ``value`` with each tensor replaced by what ``convert`` returns for it.

    Looks into tuples, named tuples, lists, dicts and dataclasses; anything else stays as it is. Of
    a ``Batch``, only ``tensors`` are converted.
    """
    if isinstance(value, Tensor):
        return convert(value)
    if isinstance(value, Batch):  # its other tensors, in ``identity``, stay on the host
        return replace(value, tensors=map_tensors(value.tensors, convert))
    if isinstance(value, (tuple, list)):
        items = (map_tensors(item, convert) for item in value)
        is_named_tuple = hasattr(value, "_fields")
        return type(value)(*items) if is_named_tuple else type(value)(items)
    if isinstance(value, dict):
        return {key: map_tensors(item, convert) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        converted_fields = {}
        for item in fields(value):
            if item.init:  # ``replace`` refuses other fields
                converted_fields[item.name] = map_tensors(getattr(value, item.name), convert)
        return replace(value, **converted_fields)
    return value
