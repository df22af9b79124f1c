"""The host processor as a device: synchronous, timed by the host clock."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from trainmark.devices.cores import count_usable_cores, read_memory_limits
from trainmark.errors import UsageError
from trainmark.protocols import MatmulRate, MemoryUse, Refusal
from trainmark.protocols.tested import REAL_RUNS
from trainmark.recipe import AUTOCAST
from trainmark.spec import RankMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainmark.protocols import Monitor
    from trainmark.recipe import Precision, Recipe

# Numbers of options of mallopt, in malloc.h of glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
# Linux counts ru_maxrss in KiB, macOS in bytes (getrusage(2) of each).
_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


def _read_fields(file: str) -> dict[str, str]:
    """Return the fields ``name: value`` of a file of the kernel; empty if it cannot be read.

    If a name has several lines, as each processor has in ``/proc/cpuinfo``, the last one counts.
    """
    try:
        text = Path(file).read_text()
    except OSError:
        return {}
    return {name: value.strip() for name, value in re.findall(r"(?m)^(\w[^\t:]*)\s*:(.*)$", text)}


def read_model_name() -> str:
    """Return the processor's product name, or its architecture if the kernel has no name."""
    name = _read_fields("/proc/cpuinfo").get("model name")
    return name or platform.processor() or platform.machine()


def has_fp16_units() -> bool:
    """Tell whether the processor multiplies in fp16, by the kernel's list of features.

    It does in matrix units (``amx_fp16``) or in vectors (``avx512_fp16``, and ``asimdhp`` of Arm).
    Without either, a matmul is emulated at about a hundredth of the fp32 rate.
    """
    cpu_info = _read_fields("/proc/cpuinfo")
    if not cpu_info:
        # Not Linux. In macOS, every processor of the architecture arm64 does.
        return platform.machine() == "arm64"
    features = cpu_info.get("flags", cpu_info.get("Features", "")).split()  # x86, Arm
    return any(name in features for name in ("avx512_fp16", "amx_fp16", "asimdhp"))


def read_total_memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory that all ranks here share: the machine's, or a lower cgroup limit.

    Args:
        root: of the file system in which the limits are read.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *read_memory_limits(root).values()])


def read_peak_resident_bytes() -> int:
    """Return the most bytes that this process has held."""
    peak = _read_fields("/proc/self/status").get("VmHWM")  # in kB, which are KiB
    if peak:
        return int(peak.split()[0]) * 1024
    # The second choice, because on Linux this value includes the peak of the parent process. Its
    # unit depends on the system.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT_BYTES


def keep_freed_memory() -> bool:
    """Make glibc reuse freed blocks in the next step; tell whether it accepted the setting.

    By default each tensor above 32 MiB, the gradient of a word embedding for instance, is
    mapped anew, faulted in page by page and unmapped again at every step.
    """
    import ctypes  # slow to import: `trainmark list` does without it

    if sys.platform != "linux":
        return False
    # The libraries of this process, in which only glibc has mallopt. It returns 0 if it refuses.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # At most 0 blocks are mapped on their own: all come from the heap, which keeps freed ones.
    is_accepted = bool(mallopt(_M_MMAP_MAX, 0))
    if not is_accepted:
        return False
    # The top of the heap is returned to the system from this size on; the largest value: never.
    return bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


class Cpu:
    """Examine and open the CPU; see ``protocols.Vendor``."""

    name = "cpu"
    tested = REAL_RUNS
    torch_type = "cpu"
    collective_backend = "gloo"
    ray_resource = "CPU"
    visible_devices: str | None = None
    recorded_variables: tuple[str, ...] = ()
    counts_cores = True

    def count(self) -> int:
        """Return the usable cores; more ranks than that are allowed, as oversubscribed."""
        return count_usable_cores()

    def product_names(self) -> list[str]:
        """Return the processor's name, once: cores are not devices."""
        return [read_model_name()]

    def rank_memory(self, nproc: int) -> RankMemory:
        """Return an equal share of the machine's memory for each of ``nproc`` ranks.

        ``machine_bytes`` says that the ranks share this memory: none has memory of its own.
        """
        total_bytes = read_total_memory_bytes()
        return RankMemory(total_bytes // nproc, machine_bytes=total_bytes)

    def refuse(self, recipe: Recipe, nproc: int) -> Refusal | None:
        """Refuse TF32 and fp8, which no CPU has, and fp16 where it would be emulated."""
        del nproc
        name = recipe.precision  # also the name of the matrix units that it needs
        if name in ("fp8", "tf32") or (name == "fp16" and not has_fp16_units()):
            return Refusal(
                f"precision={name} needs {name} matrix units, which this processor does not have",
                f"use precision=fp32 or bf16, or a device with {name} units",
            )
        return None

    def driver_version(self) -> None:
        """Return None: a processor has no driver."""

    def collective_library(self) -> str:
        """Return torch's own backend, whose version is torch's."""
        return self.collective_backend

    def monitor(self) -> Monitor | None:
        """Return None: the sampler reads the host itself."""
        return None

    def monitored(self, nproc: int) -> list[int]:
        """Return an empty list: no monitor reads a processor as one of its devices."""
        del nproc
        return []

    def open(self, local_rank: int, ranks_here: int) -> CpuDevice:
        """Return the CPU with its cores divided evenly among the ranks of this machine."""
        del local_rank
        return CpuDevice(threads=threads_of_rank(ranks_here))

    def attach(self) -> CpuDevice:
        """Return the CPU as a program that runs already has set it; nothing is changed."""
        return CpuDevice(threads=None)


def threads_of_rank(ranks_here: int) -> int:
    """Return the number of threads of a rank: as the user chose, or its even share of the cores.

    Args:
        ranks_here: number of ranks on this machine.
    """
    chosen_threads = get_chosen_threads(os.environ)
    if chosen_threads is not None:
        return chosen_threads
    return max(1, count_usable_cores() // ranks_here)


def get_chosen_threads(variables: Mapping[str, str]) -> int | None:
    """Return the number of threads of each rank by ``OMP_NUM_THREADS``; None: it is not set.

    Raises:
        UsageError: its value is not a whole number from 1 to 9999.
    """
    chosen = variables.get("OMP_NUM_THREADS")
    if chosen is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,3}", chosen):
        raise UsageError(
            f"OMP_NUM_THREADS={chosen} is not valid",
            where="environment",
            rule="the number of threads per rank must be a whole number from 1 to 9999",
            fix="unset OMP_NUM_THREADS; the ranks then share the cores evenly",
        )
    return int(chosen)


class CpuDevice:
    """A rank's share of the CPU; see ``Device``.

    Args:
        threads: number of threads of the rank; None: threads and memory settings stay as the
            process has them.
        clock: the host's, in ns.
    """

    name = "cpu"
    torch_type = "cpu"

    def __init__(self, *, threads: int | None, clock: Callable[[], int] = perf_counter_ns) -> None:
        import torch

        self._clock = clock
        self._total_bytes = read_total_memory_bytes()
        self._keeps_freed_memory = False
        # None: attached to a program that already runs, whose settings stay as they are.
        if threads is not None:
            self._keeps_freed_memory = keep_freed_memory()
            torch.set_num_threads(threads)
        self.threads = torch.get_num_threads()

    def mark(self) -> int:
        """Return the host time."""
        return self._clock()

    def elapsed_ns(self, start: int, end: int) -> int:
        """Return the host time between two marks."""
        return end - start

    def synchronize(self) -> None:
        """Return at once: CPU work is done when the call returns."""

    def read(self, losses: Sequence[Any]) -> list[float]:
        """Return the losses as numbers."""
        return [float(loss) for loss in losses]

    def pin(self, tensor: Any) -> Any:
        """Return ``tensor``: nothing is copied."""
        return tensor

    def place(self, value: Any) -> Any:
        """Return ``value``: it is on the host already."""
        return value

    def set_precision(self, precision: Precision) -> dict[str, Any]:
        """Compute fp32 matmuls in fp32; the job itself switches autocast on.

        Returns:
            The settings that are then in effect, for the record.
        """
        import torch

        torch.set_float32_matmul_precision("highest")
        return {
            "float32_matmul": torch.get_float32_matmul_precision(),
            "tf32": False,
            "autocast": AUTOCAST.get(precision),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }

    def memory(self) -> MemoryUse:
        """Return the process's peak resident memory and the machine's total."""
        return MemoryUse(
            allocator_peak_bytes=None,  # torch does not count what its allocator for CPUs holds
            used_bytes=read_peak_resident_bytes(),
            total_bytes=self._total_bytes,
            scope="process",
        )

    def matmul_rate(self, precision: Precision) -> MatmulRate:
        """Return the best matmul rate that this rank's threads reach.

        Matmuls of 1024 and 2048 rows are measured only if, by the rate of the smaller ones, each
        takes at most a second: a precision without matrix units can be much slower.
        """
        from trainmark.devices.rates import measure_matmul_rate

        return measure_matmul_rate(self, precision, sizes=(256, 1024, 2048))

    def copy_bytes_per_second(self) -> float:
        """Return the rate at which this rank's threads copy memory.

        A copy has 256 MiB, more than the rank's share of the largest caches, so that the memory is
        measured and not a cache.
        """
        from trainmark.devices.rates import measure_copy_rate

        return measure_copy_rate(self, copied_bytes=256 << 20)

    def describe(self) -> dict[str, Any]:
        """Return name, threads and memory."""
        import torch

        return {
            "name": read_model_name(),
            "vendor": self.name,
            "threads": self.threads,
            "usable_cores": count_usable_cores(),
            "memory_total_bytes": self._total_bytes,
            "keeps_freed_memory": self._keeps_freed_memory,
            "capability": torch.backends.cpu.get_cpu_capability(),
        }
