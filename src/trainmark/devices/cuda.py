"""A device that torch drives as ``cuda``, as a rank uses it."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trainmark.devices import cuda_choice, nvml, peaks
from trainmark.devices.accelerator import Accelerator
from trainmark.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.spec import Precision

# Lowest compute capability whose matrix units support a precision,
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions, 2026-11-21
_LEAST_CAPABILITY: dict[str, tuple[int, int]] = {"fp16": (5, 3), "bf16": (8, 0), "tf32": (8, 0)}


class CudaDevice(Accelerator):
    """One CUDA device; see ``Device``."""

    def __init__(self, index: int, *, vendor: str, is_slice: bool = False) -> None:
        self._is_slice = is_slice
        super().__init__(index, vendor=vendor, torch_type="cuda")

    def _open(self, modules: Sequence[str]) -> None:
        """Select the device.

        Raises:
            EnvironmentFault: the driver does not let torch open it, or torch has no code for it.
        """
        super()._open(modules)
        torch = self._torch
        capability = torch.cuda.get_device_capability(self.index)
        built = torch.cuda.get_arch_list()
        if not cuda_choice.has_code_for(capability, built):
            raise EnvironmentFault(
                f"{torch.cuda.get_device_name(self.index)} has compute capability "
                f"{capability[0]}.{capability[1]}, and torch {torch.__version__} is built for "
                f"{', '.join(built)}",
                where=f"--device {self.name}",
                rule="code runs on its own major version, PTX (compute_...) on later ones too",
                remedy=f"install a torch built for sm_{capability[0]}{capability[1]}",
            )

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
        """Switch TF32 on for ``tf32`` only, for matmuls and convolutions alike.

        Raises:
            EnvironmentFault: the device would emulate the precision, or ignore the switch.
        """
        torch = self._torch
        capability = torch.cuda.get_device_capability(self.index)
        least = _LEAST_CAPABILITY.get(precision, (0, 0))
        if capability < least:
            raise EnvironmentFault(
                f"precision={precision} on {torch.cuda.get_device_name(self.index)}, compute "
                f"capability {capability[0]}.{capability[1]}",
                where="recipe field precision",
                rule=f"matrix units support {precision} from {least[0]}.{least[1]} on",
                remedy="use precision=fp32"
                + (" or fp16" if precision == "bf16" and capability >= (5, 3) else ""),
            )
        flags = super().set_precision(precision)
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        return flags | {
            "tf32": bool(torch.backends.cuda.matmul.allow_tf32),
            "cudnn_tf32": bool(torch.backends.cudnn.allow_tf32),
        }

    def clocks(self) -> dict[str, float | None]:
        """Return clocks, power and temperature as the management library has them now."""
        # By its identity: the library's order is not that of the visible devices.
        uuid = self._torch.cuda.get_device_properties(self.index).uuid
        return nvml.clocks(f"GPU-{uuid}")

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
        name = peaks.name_of_part(properties.name, properties.multi_processor_count)
        return {
            # A slice must not be taken for the whole card, which has another peak.
            "name": name if "MIG" in name or not self._is_slice else f"{name} MIG",
            "vendor": self.name,
            "memory_total_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "runtime": torch.version.cuda or torch.version.hip,
            "cudnn": torch.backends.cudnn.version(),
        }
