"""Read batches ahead of the device: one thread prepares them while the device works.

Owns the thread, how far it reads ahead, and the move of batches to the device. The order is that
of the source. Must not know what batches hold, nor when they are timed.
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
from trainmark.train.evaluation import num_rows, row_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from trainmark.protocols import Device, Job

Value = TypeVar("Value")
THREAD_NAME = "read-ahead"
MOST_ROWS = 256  # of a rank, whose digests are noted
MAX_TRAINED_KEYS = (
    4 * MOST_ROWS
)  # of rows of training, with which those of evaluations are compared
_KEYS_PER_BATCH = 4
_END: Any = object()


def batches_of(
    job: Job,
    device: Device,
    epoch: int,
    *,
    depth: int,
    rows: list[int] | None = None,
    keys: list[int] | None = None,
) -> Generator[Batch, None, None]:
    """Yield the batches of ``epoch`` on the device; see ``read_ahead``.

    Args:
        rows: takes digests of the first rows of batches of the first epoch.
        keys: takes keys of some of the rows of the first epoch, as ``evaluation.row_keys`` makes.
    """

    def look(batch: Batch) -> None:
        if rows is not None:
            _note(rows, batch)
        if keys is not None:
            _note_keys(keys, batch)

    watched = epoch == 0 and (rows is not None or keys is not None)
    return read_ahead(job.batches(epoch), device, depth=depth, look=look if watched else None)


def _note(rows: list[int], batch: Batch) -> None:
    """Note a digest of the first row of a batch that counts samples."""
    if not batch.counts.samples or len(rows) >= MOST_ROWS:
        return
    rows.append(0)

    def add(tensor: Tensor) -> Tensor:
        first = tensor[:1] if tensor.dim() else tensor.reshape(1)
        plain = first.clone(memory_format=contiguous_format)  # of one row any stride counts
        rows[-1] = crc32(plain.flatten().view(uint8).numpy().tobytes(), rows[-1])
        return tensor

    map_tensors(batch.tensors, add)


def _note_keys(keys: list[int], batch: Batch) -> None:
    """Note keys of the first rows of a batch that has a row for each sample that it counts."""
    samples = batch.counts.samples
    if not samples or len(keys) >= MAX_TRAINED_KEYS:
        return
    tensors = batch.tensors if batch.identity is None else batch.identity
    if num_rows(tensors) == samples:
        keys += row_keys(tensors, min(samples, _KEYS_PER_BATCH)).tolist()


def read_ahead(
    source: Iterator[Value],
    device: Device,
    *,
    depth: int,
    look: Callable[[Value], None] | None = None,
) -> Generator[Value, None, None]:
    """Yield the values of ``source`` in their order, with their tensors on the device.

    Another thread takes values ahead of the caller and pins their tensors; copies to the device
    are started here. What ``source`` raises is raised here, after the values before it. When the
    iterator ends, is closed or dropped, its thread ends and ``source`` is closed; that waits for
    the value that is being read.

    Args:
        source: used by the thread alone; it must not overwrite tensors that it has yielded.
        depth: most values that are ready or being read while the caller uses one; 0: no thread,
            each value is read when it is asked for.
        look: called with each value, on the host, before any other is read.
    """
    closable: Any = source  # a generator is; what itertools makes is not
    with closing(closable) if hasattr(source, "close") else nullcontext():
        if not depth:
            for value in source:
                if look:
                    look(value)
                yield map_tensors(value, device.place)
            return

        def fetch() -> Any:
            value = next(source, _END)
            if look and value is not _END:
                look(value)
            return map_tensors(value, partial(_pinned, device))

        with ThreadPoolExecutor(1, THREAD_NAME) as thread:
            try:
                waiting = deque(thread.submit(fetch) for _ in range(depth))
                while (value := waiting.popleft().result()) is not _END:
                    waiting.append(thread.submit(fetch))
                    yield map_tensors(value, device.place)
            finally:
                thread.shutdown(cancel_futures=True)


def _pinned(device: Device, tensor: Tensor) -> Tensor:
    if tensor.device.type != "cpu":
        raise UsageError(
            f"a batch holds a tensor on {tensor.device}",
            where="Job.batches",
            rule="batches hold tensors of the host, which the harness reads ahead and moves",
            fix="leave out the move to the device",
        )
    return cast("Tensor", device.pin(tensor))


def map_tensors(value: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """Return ``value`` with ``move`` applied to each tensor.

    Looks into tuples, named tuples, lists, dicts and dataclasses; anything else stays as it is.
    """
    if isinstance(value, Tensor):
        return move(value)
    if isinstance(value, Batch):
        return replace(value, tensors=map_tensors(value.tensors, move))
    if isinstance(value, (tuple, list)):
        items = (map_tensors(item, move) for item in value)
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: map_tensors(item, move) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        values = {item.name: getattr(value, item.name) for item in fields(value) if item.init}
        return replace(value, **{name: map_tensors(x, move) for name, x in values.items()})
    return value
