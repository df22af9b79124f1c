"""The device that torch drives through ``torch.accelerator``, on a torch with given answers."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from trainmark.devices.accelerator import Accelerator
from trainmark.errors import EnvironmentFault
from trainmark.protocols import MemoryUse

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 1 << 30


class FakeTorch:
    """Of torch what an accelerator needs; ``calls`` are those that change something."""

    __version__ = "2.11.0"

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.free = 70 * GIB
        self.clock_ms = 0.0
        self.accelerator = SimpleNamespace(
            set_device_index=self.called("set_device_index"),
            reset_peak_memory_stats=self.called("reset_peak_memory_stats"),
            synchronize=self.called("synchronize"),
            get_memory_info=lambda: (self.free, 80 * GIB),
            max_memory_allocated=lambda: 3 * GIB,
        )

    def zeros(self, *_: Any, device: str) -> Any:
        assert device == "npu"
        return torch.zeros(())

    def called(self, name: str) -> Callable[..., None]:
        return lambda *args: self.calls.append((name, *args))

    def Event(self, device: str, *, enable_timing: bool) -> Any:  # noqa: N802 - torch's name
        assert (device, enable_timing) == ("npu", True)
        event = SimpleNamespace()

        def record() -> None:
            event.ms = self.clock_ms

        event.record = record
        event.elapsed_time = lambda end: end.ms - event.ms
        return event

    def get_device_module(self, torch_type: str) -> Any:
        assert torch_type == "npu"
        told = SimpleNamespace(name="Ascend910B3", total_memory=64 * GIB)
        return SimpleNamespace(get_device_properties=lambda index: told)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    made = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


def opened(**more: Any) -> Accelerator:
    return Accelerator(3, vendor="ascend", torch_type="npu", **more)


def test_it_is_selected_before_anything_is_built_on_it(fake: FakeTorch) -> None:
    device = opened(modules=("json",))
    assert (device.name, device.torch_type, device.index) == ("ascend", "npu", 3)
    assert fake.calls == [("set_device_index", 3), ("reset_peak_memory_stats",)]


def test_time_is_that_of_events(fake: FakeTorch) -> None:
    device = opened()
    start = device.mark()
    fake.clock_ms = 1.25
    end = device.mark()
    assert device.elapsed_ns(start, end) == 1_250_000
    device.synchronize()
    assert fake.calls[-1] == ("synchronize",)


def test_memory_is_the_most_in_use_at_any_call(fake: FakeTorch) -> None:
    device = opened()
    assert device.memory() == MemoryUse(3 * GIB, 10 * GIB, 80 * GIB, "device")
    fake.free = 50 * GIB
    assert device.memory().used_bytes == 30 * GIB
    fake.free = 75 * GIB
    assert device.memory().used_bytes == 30 * GIB


def test_what_cannot_be_opened_is_refused_with_torchs_words(fake: FakeTorch) -> None:
    with pytest.raises(EnvironmentFault, match="torch_nowhere") as caught:
        opened(modules=("torch_nowhere",))
    assert caught.value.where == "--device ascend"

    def fail(index: int) -> None:
        raise RuntimeError("The argument is invalid: device 3")

    fake.accelerator.set_device_index = fail
    with pytest.raises(EnvironmentFault, match="cannot open npu device 3: The argument"):
        opened()


def test_precision_switches_matmuls(monkeypatch: pytest.MonkeyPatch) -> None:
    device = object.__new__(Accelerator)
    device._torch = torch
    before = torch.get_float32_matmul_precision()
    try:
        assert device.set_precision("tf32")["float32_matmul"] == "high"
        assert device.set_precision("bf16") == {
            "float32_matmul": "highest", "tf32": False, "autocast": "bf16", "deterministic": False,
        }  # fmt: skip
    finally:
        torch.set_float32_matmul_precision(before)
