"""Reading ahead changes when batches are ready and nothing else, and all waiting is reported.

The loop and the reading are the real ones; clock, device and thread are played. What they must
report is computed apart, from the times of the batches alone.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fakes import AsyncDevice, Events, FakeClock, Micro, ScriptedJob, SyncDevice
from trainmark.rank.loop import MeasuredLoop, Schedule
from trainmark.train.read_ahead import read_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainmark.protocols import Batch

START_NS = 1_000
END_OF_EPOCH_NS = 7  # to find that an epoch has no further batch


class Arriving(Future[Any]):
    """A result that is ready at a given time; asking for it waits until then."""

    def __init__(self, clock: FakeClock, at_ns: int) -> None:
        super().__init__()
        self.clock, self.at_ns = clock, at_ns

    def result(self, timeout: float | None = None) -> Any:
        """Return the result, at the time at which it is ready or later."""
        self.clock.now_ns = max(self.clock.now_ns, self.at_ns)
        return super().result(timeout)


class PlayedThread(Executor):
    """Runs calls one after another in parallel to the caller; each takes its given time."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.free_at_ns = clock, clock.now_ns

    def submit(self, call: Callable[..., Any], /, *args: Any, **keywords: Any) -> Arriving:
        """Call at once, on the clock of the thread; the result is ready when the thread is done."""
        # ``Arriving`` is a future whose result sets the clock to the given time if that is later.
        # The call runs on the thread's own time: from now, or from when the thread is free; then
        # the clock returns to the caller's time.
        here_ns = self.clock.now_ns
        self.clock.now_ns = max(here_ns, self.free_at_ns)
        result = call(*args, **keywords)
        self.free_at_ns, self.clock.now_ns = self.clock.now_ns, here_ns
        arriving = Arriving(self.clock, self.free_at_ns)
        arriving.set_result(result)
        return arriving


@dataclass(frozen=True)
class Times:
    """How long pinning and copying a batch take."""

    pin_ns: int
    copy_ns: int


@dataclass
class Host(SyncDevice):
    """A CPU that copies a batch when it is placed."""

    times: Times = Times(pin_ns=0, copy_ns=0)

    def pin(self, tensor: Any) -> Any:
        self.clock.advance(self.times.pin_ns)
        return tensor

    def place(self, value: Any) -> Any:
        self.work(self.times.copy_ns)
        return value


@dataclass
class Card(AsyncDevice, Host):
    """An accelerator that copies a batch after the work that it already has."""


class OneTensorEach(ScriptedJob):
    """Its batches have a tensor besides the times."""

    def batches(self, epoch: int) -> Iterator[Batch]:
        for batch in super().batches(epoch):
            yield replace(batch, tensors=(batch.tensors, torch.zeros(())))

    def step(self, batches: Iterator[Batch]) -> float | None:
        return super().step(replace(batch, tensors=batch.tensors[0]) for batch in batches)


def train_and_list_windows(
    device: Host, epochs: list[list[Micro]], depth: int, **schedule: Any
) -> list[Any]:
    """Train on fakes; return the events of the windows, each of a few steps.

    The loop and the reading ahead are those of the program. The thread that reads ahead is played:
    it moves the fake clock, so that all times are exact.

    Args:
        device: fake of a CPU or an accelerator, with the fake clock.
        epochs: the micro-batches of each epoch.
        depth: number of batches that are read ahead.
        schedule: further fields of ``Schedule``.
    """
    clock = device.clock
    job = OneTensorEach(clock, device, epochs, end_of_epoch_ns=END_OF_EPOCH_NS)
    events = Events(clock, device.calls)
    loop = MeasuredLoop(
        job=job,
        open_batches=lambda epoch: read_ahead(job.batches(epoch), device, depth=depth),
        schedule=Schedule(max_epochs=len(epochs), warmup_steps=1, **schedule),
        device=device,
        clock=clock,
        barrier=lambda: None,
        emit=events,
    )
    thread = "trainmark.train.read_ahead.ThreadPoolExecutor"
    with patch(thread, lambda **_: PlayedThread(clock)):
        loop.run()
    return events.named("window")


class QueueModel:
    """The read-ahead of one epoch: when each batch is ready, on the host's clock.

    The queue has ``depth`` places: a batch is begun when the one before it is ready and a place is
    free, that is, when the step took the batch ``depth`` places before.
    """

    def __init__(self, depth: int, epoch_start_ns: int) -> None:
        """Begin an epoch.

        Args:
            depth: places of the queue.
            epoch_start_ns: when the first batch is begun.
        """
        self.depth = depth
        self.epoch_start_ns = epoch_start_ns  # the queue is filled from here
        self.previous_ready_ns = epoch_start_ns
        self.taken_ns: list[int] = []  # when the step took each batch

    def finish_next(self, duration_ns: int) -> int:
        """Return when the next batch, or the end of the epoch, is ready.

        Args:
            duration_ns: time that its reading takes once it is begun.
        """
        number = len(self.taken_ns)
        place_free_ns = self.epoch_start_ns
        if number >= self.depth:
            place_free_ns = self.taken_ns[number - self.depth]
        self.previous_ready_ns = max(place_free_ns, self.previous_ready_ns) + duration_ns
        return self.previous_ready_ns


def compute_expected_waits(
    epochs: list[list[Micro]],
    times: Times,
    *,
    depth: int,
    asynchronous: bool,
    window_steps: int,
    max_steps: int,
) -> list[int]:
    """Return the time in ns that each step waits for its batches.

    The clock begins at ``START_NS``. ``END_OF_EPOCH_NS`` is how long it takes to find that an epoch
    has no further batch.

    Args:
        epochs: the micro-batches of each epoch.
        times: how long pinning and copying a batch take; only batches read ahead are pinned.
        depth: number of batches that are read ahead; 0: each is read when the step asks for it.
        window_steps: largest number of steps of a window, at whose end the device has no work left.
        max_steps: number of steps after which the training ends.
        asynchronous: whether the device works on its own, so that a step only launches its work;
            such a device is waiting when it is idle.
    """
    now = START_NS  # of the host
    busy_until = START_NS  # of the device
    waits: list[int] = []  # of each step
    for micros in epochs:
        queue = QueueModel(depth, epoch_start_ns=now)
        waited = 0  # of the current step, so far
        # The number of steps at which the window ends; the first window of all has one step.
        window_end = len(waits) + (window_steps if waits else 1)
        for micro in micros:
            asked = now  # when the step asked for the batch
            if depth == 0:
                now += micro.fetch_ns
            else:
                now = max(now, queue.finish_next(micro.fetch_ns + times.pin_ns))
            queue.taken_ns.append(now)
            if asynchronous:
                # The device waits from when it is idle until the batch is copied to it.
                idle_from = max(busy_until, asked)
                busy_until = max(busy_until, now) + times.copy_ns
                waited += busy_until - idle_from
                now += micro.launch_ns
                busy_until = max(busy_until, now) + micro.work_ns
            else:
                now += times.copy_ns
                waited += now - asked
                now += micro.launch_ns + micro.work_ns
            if micro.closes_step:
                waits.append(waited)
                waited = 0
                if len(waits) == max_steps:
                    return waits
                if len(waits) == window_end:
                    now = max(now, busy_until)  # a window ends with the device's work
                    window_end += window_steps
        # The end of the epoch is found by asking for one more; a window ends there.
        if depth == 0:
            now += END_OF_EPOCH_NS
        else:
            now = max(now, queue.finish_next(END_OF_EPOCH_NS))
        now = max(now, busy_until)
    return waits


durations = st.integers(0, 300)
micros = st.builds(
    Micro,
    fetch_ns=durations,
    work_ns=durations,
    launch_ns=st.integers(0, 50),
    closes_step=st.booleans(),
    loss=st.integers(0, 9).map(float),
)
short_epochs = st.lists(micros, min_size=2, max_size=4)
long_epochs = st.lists(micros, min_size=8, max_size=16)


def close_last_step(epoch: list[Micro]) -> list[Micro]:
    """Return the epoch with a last micro-batch that closes its step."""
    return [*epoch[:-1], replace(epoch[-1], closes_step=True)]


epochs = (short_epochs | long_epochs).map(close_last_step)


@pytest.mark.parametrize("device_type", [Host, Card])
@settings(max_examples=200)
@given(
    epoch=epochs,
    num_epochs=st.integers(1, 3),
    depth=st.integers(0, 3),
    times=st.builds(Times, pin_ns=st.integers(0, 30), copy_ns=st.integers(0, 30)),
    window_steps=st.integers(1, 4),
    max_steps=st.integers(1, 60),
)
def test_data_wait_of_each_step_matches_a_model_of_the_queue(  # noqa: PLR0917
    device_type: type[Host],
    epoch: list[Micro],
    num_epochs: int,
    depth: int,
    times: Times,
    window_steps: int,
    max_steps: int,
) -> None:
    # An epoch is a list of micro-batches with random times: ``fetch_ns`` to read one, ``launch_ns``
    # to queue its work on the device, and ``work_ns`` for this work. ``times`` are those of pinning
    # a batch in memory and of copying it to the device. The clock begins at ``START_NS``.
    all_epochs = [epoch] * num_epochs
    device = device_type(FakeClock(START_NS), times=times)
    schedule = {"window_steps": window_steps, "max_steps": max_steps}
    windows = train_and_list_windows(device, all_epochs, depth, **schedule)
    waits_ns = [wait_ns for window in windows for wait_ns in window["wait_ns"]]
    asynchronous = device_type is Card  # an accelerator, which works on its own
    # A second computation of the waits, from these times alone, without the loop under test.
    assert waits_ns == compute_expected_waits(
        all_epochs, times, depth=depth, asynchronous=asynchronous, **schedule
    )
    # What was trained is the same as without reading ahead, which is depth 0.
    windows_without = train_and_list_windows(
        device_type(FakeClock(START_NS), times=times), all_epochs, depth=0, **schedule
    )
    for name in ("loss", "samples", "step_samples", "first_step", "tokens", "micro_batches"):
        assert [item[name] for item in windows] == [item[name] for item in windows_without], name
    for window in windows:
        for step_ns, wait_ns in zip(window["step_ns"], window["wait_ns"], strict=True):
            assert 0 <= wait_ns <= step_ns
