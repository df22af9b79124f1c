"""The stand-in as a rank drives it; see ``trainmark.protocols.Device``."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import backend_registration

from trainmark.devices.accelerator import Accelerator
from trainmark.devices.rates import measure_copy_rate, measure_matmul_rate
from trainmark.protocols import MatmulRate, MemoryUse
from trainmark_stand_in import autocast, collectives
from trainmark_stand_in.faults import TIMELINES
from trainmark_stand_in.memory import Memory
from trainmark_stand_in.operations import Operations
from trainmark_stand_in.vendor import (
    FAULT,
    MEMORY_BYTES,
    NAME,
    OPERATION_NS,
    read_setting,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.recipe import Precision
    from trainmark_stand_in.timeline import Mark, Timeline


class DeviceModule:
    """``torch.standin``: what torch asks of a device."""

    def __init__(self, device: StandInDevice) -> None:
        self._device = device

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1  # of this process: each rank has its own

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        pass

    def device(self, device: Any) -> Any:
        return contextlib.nullcontext()

    def synchronize(self, device: Any = None) -> None:
        self._device.synchronize()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    # Random numbers are drawn on the host, whose state torch saves and seeds itself.
    def manual_seed_all(self, seed: int) -> None:
        pass

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


class StandInDevice(Accelerator):
    """The simulated device of this process.

    Its marks, waits and memory are its own: ``torch.accelerator`` has none of a device that is
    registered from Python.
    """

    _only: StandInDevice | None = None  # of this process, once it is open

    @classmethod
    def open(cls, local_rank: int) -> StandInDevice:
        """Register the device with torch, once in a process, and return it.

        ``FAULT``, ``OPERATION_NS`` and ``MEMORY_BYTES`` name environment variables: which fault the
        device's clock has, how long each operation takes, and how much memory there is.
        """
        if StandInDevice._only is None:  # this process's device is not open yet
            # A class of clocks by the fault's name: right ("none"), or wrong on purpose.
            timeline = TIMELINES[os.environ.get(FAULT, "none")](
                operation_ns=read_setting(OPERATION_NS)
            )
            StandInDevice._only = cls(local_rank, timeline, Memory(read_setting(MEMORY_BYTES)))
        return StandInDevice._only

    def __init__(self, index: int, timeline: Timeline, memory: Memory) -> None:
        # A timeline is the queue of the device's work; ``NAME`` is the name of the simulated
        # device. Set first: the base class calls ``_open``, which needs them.
        self.timeline, self.device_memory = timeline, memory
        self.operations = Operations(memory, timeline)
        super().__init__(index, vendor=NAME, torch_type=NAME)

    def _open(self, modules: Sequence[str]) -> None:
        """Register with torch as PrivateUse1, its place for a device from outside.

        ``NAME`` is what torch then calls the device. ``DeviceModule`` is the module ``torch.NAME``,
        which answers what torch asks of a device.

        Args:
            modules: that real vendors import; not needed here.
        """
        backend_registration._setup_privateuseone_for_python_backend(
            NAME, backend_module=DeviceModule(self)
        )
        # Kept: the registrations end with these objects.
        self._registered = [
            *self.operations.register(),
            *autocast.register(),
            *collectives.register(self.operations),
        ]

    def mark(self) -> Mark:
        return self.timeline.mark()

    def elapsed_ns(self, start: Mark, end: Mark) -> int:
        return self.timeline.elapsed_ns(start, end)

    def synchronize(self) -> None:
        self.timeline.synchronize("synchronize()")

    def forbid_synchronization(self) -> contextlib.AbstractContextManager[None]:
        return self.timeline.forbid_synchronization()

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor  # all host memory counts as pinned

    def memory(self) -> MemoryUse:
        # ``device_memory`` counts the bytes of the tensors on the device, now and at most.
        peak = self.device_memory.peak_bytes
        return MemoryUse(
            allocator_peak_bytes=peak,
            used_bytes=peak,  # as of an allocator that keeps all that it ever had
            total_bytes=self.device_memory.total_bytes,
            scope="device",
        )

    def matmul_rate(self, precision: Precision) -> MatmulRate:
        # Matrices of 128 and 256 rows: small, as the host computes them.
        rate = measure_matmul_rate(self, precision, sizes=(128, 256), clock=self.timeline.clock)
        self.device_memory.reset_peak()  # the operands are no memory of the run
        return rate

    def copy_bytes_per_second(self) -> float:
        return measure_copy_rate(self, copied_bytes=1 << 20)

    def describe(self) -> dict[str, Any]:
        """Return facts for the record; ``operation_ns``: how long each operation takes."""
        return {
            "name": "Simulated accelerator",
            "vendor": self.name,
            "memory_total_bytes": self.device_memory.total_bytes,
            "operation_ns": self.timeline.operation_ns,
        }
