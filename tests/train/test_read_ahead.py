"""Values come in the order of their source from one thread, which ends with the iterator."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch

from support.fakes import FakeClock, SyncDevice
from trainmark.train.read_ahead import THREAD_NAME, read_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 600  # reached only if a value never comes
DEPTHS = pytest.mark.parametrize("depth", [0, 1, 2, 5])  # 0: the caller reads for itself


def list_threads() -> list[threading.Thread]:
    """Return the living threads that read ahead, which have names that begin alike."""
    return [item for item in threading.enumerate() if item.name.startswith(THREAD_NAME)]


@dataclass
class Source:
    """Yields numbers and records what was yielded, by which thread, and whether it was closed."""

    length: int = 10
    fault: BaseException | None = None  # raised after the last number
    yielded: list[int] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    closed: bool = False
    # Released once for each number, so that a test can wait for it.
    due: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __iter__(self) -> Iterator[int]:
        """Yield 0 to ``length`` - 1, then raise ``fault``, if there is one."""
        try:
            for number in range(self.length):
                self.yielded.append(number)
                self.threads.add(threading.current_thread().name)
                self.due.release()  # for ``wait_for``
                yield number
            if self.fault is not None:
                raise self.fault
        finally:
            self.closed = True

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` more numbers were yielded; fail if one takes ``WAIT_S``, 600 s."""
        for _ in range(count):
            assert self.due.acquire(timeout=WAIT_S)


@pytest.fixture
def device(clock: FakeClock) -> SyncDevice:
    return SyncDevice(clock)


@DEPTHS
def test_all_values_come_in_order_from_one_thread(device: SyncDevice, depth: int) -> None:
    # ``DEPTHS``: 0, 1, 2 or 5 values are read ahead, by a thread that is called ``THREAD_NAME``.
    source = Source(length=500)
    assert list(read_ahead(iter(source), device, depth=depth)) == list(range(500))
    # Without reading ahead, the caller's own thread takes the values from the source.
    (name,) = source.threads
    assert name.startswith(THREAD_NAME) is (depth > 0)
    assert source.closed
    assert not list_threads()


@pytest.mark.parametrize("depth", [1, 3])
def test_at_most_depth_values_are_read_ahead(device: SyncDevice, depth: int) -> None:
    source = Source()  # of the numbers 0 to 9; it keeps in ``yielded`` those that were taken
    values = read_ahead(iter(source), device, depth=depth)
    assert not list_threads()  # the first request starts the thread
    assert next(values) == 0
    source.wait_for(1 + depth)  # the value that was taken, and ``depth`` more
    assert next(values) == 1  # makes room for one more value
    source.wait_for(1)
    values.close()
    assert source.yielded == list(range(2 + depth))


@DEPTHS
@pytest.mark.parametrize("fault", [OSError("gone"), KeyboardInterrupt()])
def test_error_of_the_source_is_raised_after_earlier_values(
    device: SyncDevice, depth: int, fault: BaseException
) -> None:
    # ``Source`` yields 0, 1 and 2, then raises ``fault``. ``DEPTHS``: how many values are read
    # ahead by a thread, 0, 1, 2 or 5.
    values = read_ahead(iter(Source(length=3, fault=fault)), device, depth=depth)
    assert [next(values) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(type(fault)) as caught:
        next(values)
    assert caught.value is fault
    # The traceback leads into the source.
    assert "__iter__" in [frame.name for frame in caught.traceback]
    assert not list_threads()


@DEPTHS
@pytest.mark.parametrize("end", ["close", "drop", "raise"])
def test_an_iterator_that_ends_early_ends_its_thread_and_its_source(
    device: SyncDevice, depth: int, end: str
) -> None:
    # ``list_threads`` has the threads that read ahead; ``DEPTHS``: 0, 1, 2 or 5 values.
    source = Source(length=10_000)
    values = read_ahead(iter(source), device, depth=depth)
    assert next(values) == 0
    assert len(list_threads()) == min(depth, 1)  # one thread; none if nothing is read ahead
    if end == "close":
        values.close()
    elif end == "drop":
        del values
        gc.collect()
    else:
        with pytest.raises(KeyboardInterrupt):
            values.throw(KeyboardInterrupt())
    assert source.closed
    assert not list_threads()


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Choices:
    ids: Any
    count: int
    width: int = field(init=False, default=7)


class Recorder(SyncDevice):
    """Pins by adding 1 and moves by adding 100, each noted with its thread."""

    def pin(self, tensor: Any) -> Any:
        """Return the tensor plus 1; note the name of the calling thread, without its number."""
        self.calls.append(f"pin {threading.current_thread().name.split('_')[0]}")
        return tensor + 1

    def place(self, value: Any) -> Any:
        """Return the value plus 100; note the name of the calling thread, without its number."""
        self.calls.append(f"place {threading.current_thread().name.split('_')[0]}")
        return value + 100


@pytest.mark.parametrize(("depth", "moved"), [(0, 100), (2, 101)])
def test_every_tensor_is_pinned_by_the_thread_and_moved_by_the_caller(
    clock: FakeClock, depth: int, moved: int
) -> None:
    # ``Recorder`` adds 1 to what it pins and 100 to what it moves; without a thread (depth 0),
    # nothing is pinned. ``THREAD_NAME`` is the name of the thread that reads ahead.
    tensor = torch.zeros(())
    # A tensor in each container that is searched, beside values that stay as they are. ``Choices``
    # has a field ``width``, always 7, which its constructor does not take.
    value = [(tensor, "a"), Pair(tensor, 3), {"z": [tensor]}, Choices(tensor, 5), None, 0.5]
    device = Recorder(clock)
    (read_value,) = read_ahead(iter([value]), device, depth=depth)
    (first, name), pair, table, choices, none, half = read_value
    assert type(pair) is Pair
    assert type(choices) is Choices
    tensors = [first, pair.x, table["z"][0], choices.ids]
    assert [int(item) for item in tensors] == [moved] * 4
    assert (name, pair.y, choices.count, choices.width, none, half) == ("a", 3, 5, 7, None, 0.5)
    main = threading.current_thread().name
    pinned = [f"pin {THREAD_NAME}"] * 4 if depth else []
    assert device.calls == pinned + [f"place {main}"] * 4
