"""NVIDIA accelerators, and others that torch drives as ``cuda``.

Planning counts devices from the driver's files and checks the installed torch without
importing it; a rank times its work with device events.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trainmark.devices import cuda_choice, nvidia_driver
from trainmark.devices.cuda_choice import VISIBLE_DEVICES
from trainmark.errors import EnvironmentFault
from trainmark.protocols import MatmulRate, MemoryUse, Refusal
from trainmark.spec import RankMemory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.devices.nvidia_driver import Card
    from trainmark.protocols import Occupant
    from trainmark.spec import Precision, Recipe

# Lowest compute capability whose matrix units support a precision,
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions, 2026-11-21
_LEAST_CAPABILITY: dict[str, tuple[int, int]] = {"fp16": (5, 3), "bf16": (8, 0), "tf32": (8, 0)}


class Cuda:
    """Planning's view of CUDA devices; see ``Vendor``."""

    name = "cuda"
    torch_type = "cuda"
    collective_backend = "nccl"
    visible_devices: str | None = VISIBLE_DEVICES
    recorded_variables: tuple[str, ...] = (
        VISIBLE_DEVICES, "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG",
        "NVIDIA_TF32_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF", "NCCL_DEBUG", "NCCL_ALGO", "NCCL_PROTO",
        "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE",
    )  # fmt: skip
    counts_cores = False

    def count(self) -> int:
        """Return the visible devices; 0 when the installed torch cannot drive them."""
        return len(self.product_names())

    def product_names(self) -> list[str]:
        """Return the product name of each visible device."""
        return [card.name for card in self._usable()]

    def _usable(self) -> list[Card]:
        return cuda_choice.usable(nvidia_driver.cards(), os.environ.get(VISIBLE_DEVICES))

    def unusable(self) -> Refusal | None:
        """Return why no card that is here can be used; see ``protocols.Diagnoses``."""
        return cuda_choice.why_unusable(nvidia_driver.cards(), os.environ.get(VISIBLE_DEVICES))

    def occupants(self, nproc: int) -> list[Occupant]:
        """Return what is on the first ``nproc`` cards now; see ``protocols.Diagnoses``."""
        return [one for card in self._usable()[:nproc] for one in cuda_choice.occupants(card)]

    def rank_memory(self, nproc: int) -> RankMemory | None:
        """Return the least memory that is free on a device of ``nproc`` ranks.

        None without the management library.
        """
        known = [
            (card.free_bytes, card)
            for card in self._usable()[:nproc]
            if card.free_bytes is not None
        ]
        if not known:
            return None
        free_bytes, least = min(known, key=lambda pair: pair[0])
        held = (
            f"{one.process} holds {cuda_choice.gib(one.used_bytes)}"
            for one in cuda_choice.occupants(least)
        )
        return RankMemory(free_bytes, held=", ".join(held))

    def refuse(self, recipe: Recipe, nproc: int) -> Refusal | None:
        """Refuse ranks that find no device of their own; of the rest only torch knows.

        ``CudaDevice`` refuses a card or a precision that torch cannot do.
        """
        del recipe
        usable, variable = self._usable(), os.environ.get(VISIBLE_DEVICES)
        if nproc > 1 and any(card.is_slice for card in usable):
            return Refusal(
                f"{nproc} ranks on MIG slices: a process sees one slice, and NCCL joins slices "
                "only as an experiment",
                "use --nproc 1, or whole cards",
            )
        if nproc > len(usable) > 0 and variable is not None:
            return Refusal(
                f"{nproc} ranks need {nproc} devices, and {VISIBLE_DEVICES}={variable!r} leaves "
                f"{len(usable)} of {cuda_choice.listed(nvidia_driver.cards())}",
                f"use --nproc {len(usable)}, or name more devices in {VISIBLE_DEVICES}",
            )
        return None

    def driver_version(self) -> str | None:
        """Return the version of the kernel module."""
        return nvidia_driver.driver_version()

    def collective_library(self) -> str:
        """Return the version of NCCL, or of the library that torch has instead."""
        from torch.cuda import nccl

        return "nccl " + ".".join(str(part) for part in nccl.version())

    def monitor(self) -> None:
        """Return None: nothing reads the cards yet."""

    def monitored(self, nproc: int) -> list[int]:
        """Return nothing, as there is no monitor."""
        del nproc
        return []

    def open(self, local_rank: int, ranks_here: int) -> CudaDevice:
        """Return the device with the rank's local number."""
        del ranks_here
        usable = self._usable()
        return CudaDevice(local_rank, is_slice=any(card.is_slice for card in usable))


class CudaDevice:
    """One CUDA device; see ``Device``. Marks are events in the current stream."""

    name = "cuda"
    torch_type = "cuda"

    def __init__(self, index: int, *, is_slice: bool = False) -> None:
        import torch

        self._torch = torch
        self.index = index
        self._is_slice = is_slice
        self._open()
        torch.cuda.reset_peak_memory_stats()
        self._peak_used_bytes = 0

    def _open(self) -> None:
        """Select the device, before anything is built on it.

        Raises:
            EnvironmentFault: the driver does not let torch open it, or torch has no code for it.
        """
        torch = self._torch
        try:
            torch.cuda.init()
            torch.cuda.set_device(self.index)
        except Exception as error:  # torch raises several classes, some of its own
            raise EnvironmentFault(
                f"torch {torch.__version__} cannot open cuda device {self.index}: {error}",
                where="--device cuda",
                remedy="check the driver with `nvidia-smi` and the devices with "
                "`trainmark list devices`",
            ) from error
        capability = torch.cuda.get_device_capability(self.index)
        built = torch.cuda.get_arch_list()
        if not cuda_choice.has_code_for(capability, built):
            raise EnvironmentFault(
                f"{torch.cuda.get_device_name(self.index)} has compute capability "
                f"{capability[0]}.{capability[1]}, and torch {torch.__version__} is built for "
                f"{', '.join(built)}",
                where="--device cuda",
                rule="code runs on its own major version, PTX (compute_...) on later ones too",
                remedy=f"install a torch built for sm_{capability[0]}{capability[1]}",
            )

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

    def read(self, losses: Sequence[Any]) -> list[float]:
        """Copy all losses in one transfer."""
        stacked: list[float] = self._torch.stack([loss.float() for loss in losses]).tolist()
        return stacked

    def pin(self, tensor: Any) -> Any:
        """Copy to pinned memory; torch reuses it only after the copy to the device is done."""
        return tensor.pin_memory()

    def place(self, value: Any) -> Any:
        """Move to the device; host tensors are pinned and copied asynchronously."""
        if isinstance(value, self._torch.Tensor) and value.device.type == "cpu":
            return self.pin(value).to("cuda", non_blocking=True)
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
        # By its identity: the library's order is not that of the visible devices.
        uuid = self._torch.cuda.get_device_properties(self.index).uuid
        return nvidia_driver.clocks(f"GPU-{uuid}")

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
        name: str = properties.name
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
