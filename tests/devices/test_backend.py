"""Missing torch functions are replaced by those of the backend module, or named on opening."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainmark.devices.backend import Backend
from trainmark.errors import EnvironmentFault

GIB = 1 << 30
NO_ALLOCATOR = "device_allocator INTERNAL ASSERT FAILED: not a DeviceAllocator"


class Event:
    """An event whose time in milliseconds is the number of earlier events."""

    recorded = 0

    def __init__(self, *_: Any, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.recorded += 1
        self.time_ms = Event.recorded

    def elapsed_time(self, end: Event) -> float:
        return float(end.time_ms - self.time_ms)


class BackwardEvent(Event):
    """An event of a clock that runs backwards."""

    def elapsed_time(self, end: Event) -> float:
        return -super().elapsed_time(end)


def make_failing_call(message: str) -> Any:
    """Return a function that takes any arguments and raises an error with this message."""

    def call(*_: Any, **__: Any) -> Any:
        raise RuntimeError(message)

    return call


def make_torch(module: Any, *, event: Any = Event, **accelerator: Any) -> Any:
    """Return a torch whose backend has ``module`` and these calls of ``torch.accelerator``.

    Args:
        module: what ``torch.get_device_module`` returns, such as ``torch.npu``.
        event: the class ``torch.Event``.
        accelerator: functions of ``torch.accelerator`` by name; they replace those that choose a
            device and wait for it, or are further ones.
    """
    calls = {"set_device_index": lambda _: None, "synchronize": lambda: None, **accelerator}
    # The device computes: adding 1 to a tensor of zeros gives 1.
    scalar = SimpleNamespace(add_=lambda _: SimpleNamespace(item=lambda: 1.0))
    return SimpleNamespace(
        __version__="2.13.0",
        accelerator=SimpleNamespace(**calls),
        Event=event,
        zeros=lambda *_, **__: scalar,
        get_device_module=lambda _: module,
    )


def make_allocator_calls(calls: list[str]) -> dict[str, Any]:
    """Return the memory functions of ``torch.accelerator``; those that reset or free add a word.

    Args:
        calls: the list to which they add "reset" or "empty".
    """
    return {
        "get_memory_info": lambda _: (3 * GIB, 4 * GIB),
        "max_memory_allocated": lambda _: 2 * GIB,
        "reset_peak_memory_stats": lambda _: calls.append("reset"),
        "empty_cache": lambda: calls.append("empty"),
    }


def open_backend(torch: Any) -> Backend:
    """Return the backend of device 1 of the type ``acme``."""
    return Backend(torch, "acme", 1, where="--device acme")


def test_backend_with_an_allocator_of_torch_uses_it() -> None:
    # ``open_backend`` opens device 1 with this simulated torch, whose module of the backend is
    # empty: memory is known only by ``torch.accelerator``. ``calls`` gets a word for each call that
    # resets ("reset") or frees ("empty").
    calls: list[str] = []
    backend = open_backend(make_torch(SimpleNamespace(), **make_allocator_calls(calls)))
    # The values that ``make_allocator_calls`` returns.
    assert backend.free_and_total_bytes() == (3 * GIB, 4 * GIB)
    assert backend.peak_allocated_bytes() == 2 * GIB
    calls.clear()  # forget the calls made by opening
    backend.release()
    assert calls == ["empty", "reset"]


def test_backend_without_an_allocator_of_torch_uses_its_module() -> None:
    # ``open_backend`` opens device 1 with a simulated torch, whose module of the backend is
    # ``module``. ``calls`` gets the number of a device whose peak is reset, and "empty" for a call
    # that frees memory.
    calls: list[Any] = []
    module = SimpleNamespace(
        mem_get_info=lambda index: (index * GIB, 4 * GIB),
        max_memory_allocated=lambda index: index * GIB // 2,
        reset_peak_memory_stats=calls.append,
        empty_cache=lambda: calls.append("empty"),
    )
    # All memory functions of ``torch.accelerator`` fail with torch's own message (``NO_ALLOCATOR``)
    # for a backend whose allocator it does not know.
    failing = dict.fromkeys(make_allocator_calls([]), make_failing_call(NO_ALLOCATOR))
    backend = open_backend(make_torch(module, **failing))
    # What the functions of ``module`` return for the device that is opened, number 1.
    assert backend.free_and_total_bytes() == (GIB, 4 * GIB)
    assert backend.peak_allocated_bytes() == GIB // 2
    calls.clear()  # forget the calls made by opening
    backend.release()
    assert calls == ["empty", 1]  # the peak of device 1 was reset


@pytest.mark.parametrize("missing", ["max_memory_allocated", "reset_peak_memory_stats"])
def test_peak_that_cannot_be_reset_is_unknown(missing: str) -> None:
    # A peak counts from opening on, so that both functions are needed; ``make_torch`` gives a
    # ``torch.accelerator`` that has neither. ``open_backend`` opens a device with it. All numbers
    # are arbitrary.
    module = SimpleNamespace(
        mem_get_info=lambda _: (0, GIB),
        max_memory_allocated=lambda _: GIB,
        reset_peak_memory_stats=lambda _: None,
    )
    delattr(module, missing)
    backend = open_backend(make_torch(module))
    assert backend.peak_allocated_bytes() is None
    backend.release()  # raises nothing


def test_events_of_the_backend_module_replace_missing_torch_events() -> None:
    # ``make_torch`` returns a simulated torch with this module of the backend (as ``torch.npu``);
    # its ``torch.Event`` raises an error. ``Event`` is a made class of events. ``open_backend``
    # opens a device with this torch.
    module = SimpleNamespace(mem_get_info=lambda _: (0, GIB), Event=Event)
    backend = open_backend(
        make_torch(module, event=make_failing_call("Backend doesn't support events."))
    )
    assert isinstance(backend.new_event(), Event)


@pytest.mark.parametrize(
    ("torch", "fault"),
    [
        (
            make_torch(
                SimpleNamespace(mem_get_info=lambda _: (0, 1)), event=make_failing_call("no events")
            ),
            "no function to make timed events is available: no events",
        ),
        (
            make_torch(SimpleNamespace(mem_get_info=lambda _: (0, 1)), event=BackwardEvent),
            "no function to make timed events is available: the time between two events is "
            "negative: -1.0 ms",
        ),
        (
            make_torch(SimpleNamespace(), get_memory_info=make_failing_call(NO_ALLOCATOR)),
            f"no function to report the device's memory is available: {NO_ALLOCATOR}",
        ),
        (
            make_torch(SimpleNamespace(), synchronize=make_failing_call("no stream")),
            "no function to wait for the device is available: no stream",
        ),
    ],
)
def test_missing_backend_function_is_named(torch: Any, fault: str) -> None:
    """A backend that lacks a needed function cannot be opened; the error says what it lacks.

    ``open_backend`` opens device 1 of the type "acme" with this torch. The time between two of
    ``BackwardEvent`` is negative: -1 ms. ``NO_ALLOCATOR`` is the message of torch for a backend
    without an allocator of its own kind.
    """
    with pytest.raises(EnvironmentFault) as refused:
        open_backend(torch)
    assert refused.value.what.startswith(f"torch 2.13.0, acme device 1: {fault}")
    # The rule lists all functions that a backend needs.
    assert "mem_get_info" in (refused.value.rule or "")


def test_device_that_does_not_compute_is_refused_first() -> None:
    # Opening first adds 1 to a tensor of ``torch.zeros``, which fails here.
    torch = make_torch(SimpleNamespace())  # functions that report memory are missing, too
    torch.zeros = make_failing_call("no kernel image is available")
    with pytest.raises(EnvironmentFault) as refused:
        open_backend(torch)
    assert refused.value.what.endswith("the device cannot compute: no kernel image is available")
    assert "driver" in (refused.value.fix or "")
