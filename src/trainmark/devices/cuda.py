"""A device that torch drives as ``cuda``, as a rank uses it."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trainmark.devices import peaks
from trainmark.devices.accelerator import Accelerator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.spec import Precision


class CudaDevice(Accelerator):
    """One CUDA device, NVIDIA's or one that HIP presents so; see ``Device``."""

    def __init__(self, index: int, *, vendor: str) -> None:
        super().__init__(index, vendor=vendor, torch_type="cuda")

    @contextmanager
    def forbid_synchronization(self) -> Iterator[None]:
        """Have torch raise where the host would wait; sparse and collective work apart."""
        before = self._torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            # Torch says once that it does not see every wait.
            warnings.filterwarnings("ignore", "Synchronization debug mode")
            self._torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            self._torch.cuda.set_sync_debug_mode(before)

    def set_precision(self, precision: Precision) -> dict[str, Any]:
        """Switch TF32 on for ``tf32`` only, for matmuls and convolutions alike."""
        torch = self._torch
        flags = super().set_precision(precision)
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        return flags | {
            "tf32": bool(torch.backends.cuda.matmul.allow_tf32),
            "cudnn_tf32": bool(torch.backends.cudnn.allow_tf32),
        }

    def begin_step(self) -> None:
        """Let the graphs' memory of the last step be overwritten."""
        self._torch.compiler.cudagraph_mark_step_begin()

    def graphs_left_out(self) -> int | None:
        """Return what torch counts as skipped; it has no public name for that."""
        try:
            from torch._dynamo.utils import counters
        except ImportError:
            return None
        return int(counters["inductor"]["cudagraph_skips"])

    def describe(self) -> dict[str, Any]:
        """Return product name, memory, capability and library versions."""
        torch = self._torch
        properties = torch.cuda.get_device_properties(self.index)
        return {
            "name": peaks.name_of_part(properties.name, properties.multi_processor_count),
            "vendor": self.name,
            "memory_total_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "runtime": torch.version.cuda or torch.version.hip,
            "cudnn": torch.backends.cudnn.version(),
        }
