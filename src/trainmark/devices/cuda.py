"""NVIDIA accelerators, and others that torch drives as ``cuda``.

Planning counts devices from the driver's files and checks the installed torch without
importing it; a rank times its work with device events.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.errors import EnvironmentFault
from trainmark.protocols import MatmulRate, MemoryUse
from trainmark.spec import RankMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.spec import Precision, Recipe

_DRIVER = Path("/proc/driver/nvidia")
_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
# Lowest compute capability whose matrix units support a precision,
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions, 2026-11-21
_LEAST_CAPABILITY: dict[str, tuple[int, int]] = {"fp16": (5, 3), "bf16": (8, 0), "tf32": (8, 0)}

# What the management library tells of a device: function, further arguments, unit of its answer.
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
_CLOCKS: dict[str, tuple[str, tuple[str, ...], float]] = {
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", ("NVML_CLOCK_SM",), 1),
    "sm_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_SM",), 1),
    "memory_clock_mhz": ("nvmlDeviceGetClockInfo", ("NVML_CLOCK_MEM",), 1),
    "memory_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_MEM",), 1),
    "power_w": ("nvmlDeviceGetPowerUsage", (), 1e-3),
    "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit", (), 1e-3),
    "temperature_c": ("nvmlDeviceGetTemperature", ("NVML_TEMPERATURE_GPU",), 1),
}


def torch_is_built_for_cuda() -> bool:
    """Tell whether the installed torch has CUDA, from its version file, without importing it."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return False
    version_file = Path(found.origin).with_name("version.py")
    if not version_file.exists():
        return False
    for line in version_file.read_text().splitlines():
        name, _, value = line.partition("=")
        if name.split(":")[0].strip() == "cuda":
            return value.strip() not in ("", "None")
    return False


def _product_name(gpu: Path) -> str:
    information = gpu / "information"
    for line in information.read_text().splitlines():
        if line.startswith("Model:"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def _driver_names() -> list[str]:
    """Return product names from the driver's proc files, or from its management library."""
    gpus = _DRIVER / "gpus"
    if gpus.is_dir():
        return [_product_name(gpu) for gpu in sorted(gpus.iterdir())]
    names = _ask_each_device("nvmlDeviceGetName")
    if names is None:
        # Without the library, torch finds the devices when a rank opens one.
        return ["unknown"] * len(list(Path("/dev").glob("nvidia[0-9]*")))
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names]


def _driver_memory_bytes() -> list[int]:
    """Return the memory of each device of this machine; empty if it cannot be found out."""
    return [info.total for info in _ask_each_device("nvmlDeviceGetMemoryInfo") or ()]


def _ask_each_device(question: str) -> list[Any] | None:
    """Call a function of the management library for each device; None without the library."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    ask = getattr(pynvml, question)
    answers = [
        ask(pynvml.nvmlDeviceGetHandleByIndex(index))
        for index in range(pynvml.nvmlDeviceGetCount())
    ]
    pynvml.nvmlShutdown()
    return answers


def visible_names(driver_names: list[str], variable: str | None) -> list[str]:
    """Return the names left visible by a ``CUDA_VISIBLE_DEVICES`` value.

    Like the driver, it ends the list at the first index that does not exist. A UUID is assumed
    to name an existing device, whose product is known only if all devices are the same.
    """
    if variable is None:
        return driver_names
    chosen: list[str] = []
    for item in (part.strip() for part in variable.split(",")):
        if item.isascii() and item.isdigit() and int(item) < len(driver_names):
            chosen.append(driver_names[int(item)])
        elif item.startswith(("GPU-", "MIG-")):
            chosen.append(driver_names[0] if len(set(driver_names)) == 1 else "unknown")
        else:
            break
    return chosen


class Cuda:
    """Planning's view of CUDA devices; see ``Vendor``."""

    name = "cuda"
    torch_type = "cuda"
    collective_backend = "nccl"
    recorded_variables: tuple[str, ...] = (
        _VISIBLE_DEVICES, "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE",
        "PYTORCH_CUDA_ALLOC_CONF", "NCCL_DEBUG", "NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE",
        "NCCL_IB_DISABLE",
    )  # fmt: skip
    counts_cores = False

    def count(self) -> int:
        """Return the visible devices; 0 when the installed torch cannot drive them."""
        return len(self.product_names())

    def product_names(self) -> list[str]:
        """Return the product name of each visible device."""
        if not torch_is_built_for_cuda():
            return []
        return visible_names(_driver_names(), os.environ.get(_VISIBLE_DEVICES))

    def rank_memory(self, nproc: int) -> RankMemory | None:
        """Return the smallest device's memory, if the management library is there."""
        del nproc
        found = _driver_memory_bytes()
        return RankMemory(min(found)) if found else None

    def refuse(self, recipe: Recipe, nproc: int) -> None:
        """Refuse nothing: only torch knows, so ``CudaDevice.set_precision`` refuses."""
        del recipe, nproc

    def driver_version(self) -> str | None:
        """Return the version of the kernel module."""
        file = _DRIVER / "version"
        if not file.exists():
            return None
        found = re.search(r"(\d+\.\d+(?:\.\d+)?)", file.read_text())
        return found.group(1) if found else None

    def collective_library(self) -> str:
        """Return the version of NCCL, or of the library that torch has instead."""
        from torch.cuda import nccl

        return "nccl " + ".".join(str(part) for part in nccl.version())

    def open(self, local_rank: int, ranks_here: int) -> CudaDevice:
        """Return the device with the rank's local number."""
        del ranks_here
        return CudaDevice(local_rank)


class CudaDevice:
    """One CUDA device; see ``Device``. Marks are events in the current stream."""

    name = "cuda"
    torch_type = "cuda"

    def __init__(self, index: int) -> None:
        import torch

        self._torch = torch
        self.index = index
        torch.cuda.set_device(index)
        torch.cuda.reset_peak_memory_stats()
        self._peak_used_bytes = 0

    def mark(self) -> Any:
        """Record and return an event."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_ns(self, start: Any, end: Any) -> int:
        """Return the time between two events; the driver resolves about half a microsecond."""
        milliseconds: float = start.elapsed_time(end)
        return round(milliseconds * 1e6)

    def synchronize(self) -> None:
        """Wait for the device."""
        self._torch.cuda.synchronize()

    def read(self, losses: Sequence[Any]) -> list[float]:
        """Copy all losses in one transfer."""
        stacked: list[float] = self._torch.stack([loss.float() for loss in losses]).tolist()
        return stacked

    def place(self, value: Any) -> Any:
        """Move to the device; pinned host tensors are copied asynchronously."""
        if isinstance(value, self._torch.Tensor) and value.device.type == "cpu":
            return value.pin_memory().to("cuda", non_blocking=True)
        return value.to("cuda")

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
        tf32 = precision == "tf32"
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
        return {
            "float32_matmul": torch.get_float32_matmul_precision(),
            "tf32": bool(torch.backends.cuda.matmul.allow_tf32),
            "cudnn_tf32": bool(torch.backends.cudnn.allow_tf32),
            "autocast": precision if precision in ("bf16", "fp16") else None,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }

    def memory(self) -> MemoryUse:
        """Return allocator peak and the highest device-wide use seen by these calls."""
        free, total = self._torch.cuda.mem_get_info()
        self._peak_used_bytes = max(self._peak_used_bytes, total - free)
        return MemoryUse(
            allocator_peak_bytes=self._torch.cuda.max_memory_allocated(),
            used_bytes=self._peak_used_bytes,
            total_bytes=total,
            scope="device",
        )

    def clocks(self) -> dict[str, float | None]:
        """Return clocks, power and temperature as the management library has them now."""
        found: dict[str, float | None] = dict.fromkeys(_CLOCKS)
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # noqa: BLE001 - no such package, or NVMLError, whose class it holds
            return found
        try:
            # By its identity: the library's order is not that of the visible devices.
            uuid = self._torch.cuda.get_device_properties(self.index).uuid
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            for name, (question, words, unit) in _CLOCKS.items():
                with suppress(pynvml.NVMLError):  # this device does not tell it
                    arguments = [getattr(pynvml, word) for word in words]
                    found[name] = getattr(pynvml, question)(handle, *arguments) * unit
        except pynvml.NVMLError:
            pass  # a slice of a device: only the whole one has clocks
        finally:
            pynvml.nvmlShutdown()
        return found

    def matmul_rate(self, precision: Precision) -> MatmulRate:
        """Measure at sizes that fill a large device, then release the memory."""
        from trainmark.devices.rates import best_matmul_rate

        rate = best_matmul_rate(self, precision, sizes=(1024, 4096, 8192))
        self._torch.cuda.empty_cache()
        self._torch.cuda.reset_peak_memory_stats()
        return rate

    def copy_bytes_per_second(self) -> float:
        """Measure on far more bytes than the second-level cache holds."""
        from trainmark.devices.rates import best_copy_rate

        return best_copy_rate(self, copied_bytes=1 << 30)

    def describe(self) -> dict[str, Any]:
        """Return product name, memory, capability and library versions."""
        torch = self._torch
        properties = torch.cuda.get_device_properties(self.index)
        return {
            "name": properties.name,
            "vendor": self.name,
            "memory_total_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "runtime": torch.version.cuda or torch.version.hip,
            "cudnn": torch.backends.cudnn.version(),
        }
