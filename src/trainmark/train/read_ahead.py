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

from torch import Tensor

from trainmark.errors import UsageError
from trainmark.protocols import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from trainmark.protocols import Device, Job

Value = TypeVar("Value")
THREAD_NAME = "read-ahead"
_END: Any = object()  # what the thread returns after the last value


def iterate_batches(
    job: Job,
    device: Device,
    epoch: int,
    *,
    depth: int,
    note_batch: Callable[[Batch], None] | None = None,
) -> Generator[Batch, None, None]:
    """Yield the batches of ``epoch`` on the device; a thread reads them ahead.

    Args:
        depth: maximum number of batches that are ready or being read while the caller uses one; 0:
            no thread, each batch is read when it is needed.
        note_batch: called with each batch of the first epoch, on the host, when it is read. It is
            not called in later epochs, which train the same rows again.
    """
    inspect = note_batch if epoch == 0 else None
    return read_ahead(job.batches(epoch), device, depth=depth, inspect=inspect)


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
