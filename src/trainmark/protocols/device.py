"""What a device is to a rank, and what its vendor answers before a rank starts.

Tensors are typed ``Any``: no torch here, so that fakes and launchers can use the same interfaces.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.protocols.monitor import Monitor
    from trainmark.recipe import Precision, Recipe
    from trainmark.spec import RankMemory


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of device memory; None: not known.

    Args:
        allocator_peak_bytes: largest amount that torch's allocator held.
        used_bytes: the most that was found in use so far: by all processes if ``scope`` is
            ``device``, by this one if it is ``process``.
    """

    allocator_peak_bytes: int | None
    used_bytes: int | None
    total_bytes: int | None
    scope: Literal["device", "process"]


# Keys that ``describe`` and ``set_precision`` must return, because figures and pages read them.
DESCRIBE_KEYS = ("name", "vendor", "memory_total_bytes")
PRECISION_KEYS = ("tf32", "autocast", "deterministic")


class MatmulRate(NamedTuple):
    """The rate of a large matmul, and how much it changed during the measurement.

    Args:
        swing: how much less time the faster half of the repetitions took than the slower half, as
            a share of the slower half's time; None: a single repetition.
    """

    flops_per_second: float
    swing: float | None


class Device(Protocol):
    """One accelerator as a rank uses it. Torch is imported inside the methods only.

    A device that can tell where the host waits for it also has ``forbid_synchronization()``: a
    context in which every such wait raises a ``RuntimeError``, for ``conformance.probe``. One whose
    libraries have several kernels of attention may have ``fit_attention(dropout=, shapes_vary=)``,
    as ``train.attention`` calls it, and ``attention_flags()``: which of them may run, by name.
    """

    name: str  # of its vendor, as ``Vendor.name``
    torch_type: str  # as in ``torch.device``: ``cuda``, ``npu`` …

    def mark(self) -> Any:
        """Return a point in the device's stream of work (host time on a CPU)."""

    def elapsed_ns(self, start: Any, end: Any) -> int:
        """Return the device time between two marks; both must have been synchronised."""

    def synchronize(self) -> None:
        """Wait until the device has finished all work given to it."""

    def read(self, losses: Sequence[Any]) -> list[float]:
        """Copy scalar losses to the host in one transfer."""

    def pin(self, tensor: Any) -> Any:
        """Return a tensor in host memory from which the device can copy asynchronously.

        It may be ``tensor`` itself. ``place`` then copies it to the device without waiting. This
        method is called by another thread than the others, while the device works.
        """

    def place(self, value: Any) -> Any:
        """Move a tensor or module to the device; the copy may still be in progress."""

    def set_precision(self, precision: Precision) -> dict[str, Any]:
        """Set the precision of matmuls; return the flags that are then in effect.

        Keys: at least ``PRECISION_KEYS``, which figures and pages read: whether matmuls use
        ``tf32``, the type of ``autocast``, and whether kernels are ``deterministic``.
        """

    def memory(self) -> MemoryUse:
        """Return memory use since the process started."""

    def matmul_rate(self, precision: Precision) -> MatmulRate:
        """Measure the rate of a large square matmul in ``precision``."""

    def copy_bytes_per_second(self) -> float:
        """Measure the rate of a large copy within the device's memory, read plus written."""

    def describe(self) -> dict[str, Any]:
        """Return product name, driver, memory and similar facts for the record.

        Keys: at least ``DESCRIBE_KEYS``, which figures and pages read.
        """


class Refusal(NamedTuple):
    """Why a device cannot run something, and what to do instead."""

    why: str
    fix: str


class ContainerNeeds(NamedTuple):
    """What a container needs in addition to its image, so that a vendor's devices work in it.

    A vendor has one as ``container_needs`` if containers do not get its devices by themselves.

    Args:
        devices: files and folders of the driver below ``/dev``, as patterns of a shell; those that
            exist on the node are passed to the container.
        mounts: parts of the driver that the image does not have; mounted read-only under the same
            path.
        options: further options, by the name of the runtime: docker, podman or apptainer.
    """

    devices: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = MappingProxyType({})


class Vendor(Protocol):
    """A kind of device as planning uses it, without importing torch.

    A vendor whose ``open`` changes settings of the process also has ``attach()``, for ``witness``:
    it returns the device with the settings of the running program.
    ``counts_cores``: ``count`` counts processor cores, which ranks share. More ranks than cores
    are then allowed and labelled ``oversubscribed``. Otherwise each rank needs its own device.
    ``collective_backend``: of ``init_process_group``; empty: ranks cannot exchange tensors.
    ``visible_devices``: the environment variable that hides devices; None: there is none.
    ``recorded_variables``: environment variables that affect its devices, that one among them; a
    name that ends in ``*`` is all variables that begin so. They must not contain secrets, because
    they go into the record.
    A vendor should also have ``tested``: a ``Text`` that says what it was tested on.
    """

    name: str  # by which users choose it: ``nvidia``, ``cpu`` …
    torch_type: str  # as in ``torch.device``: ``cuda``, ``npu`` …
    collective_backend: str
    visible_devices: str | None
    recorded_variables: tuple[str, ...]
    counts_cores: bool

    def count(self) -> int:
        """Return how many devices ranks can use here; 0 when there are none."""

    def product_names(self) -> list[str]:
        """Return the product name of each device."""

    def rank_memory(self, nproc: int) -> RankMemory | None:
        """Return the memory available to one of ``nproc`` ranks; None if only torch can tell."""

    def refuse(self, recipe: Recipe, nproc: int) -> Refusal | None:
        """Return why ``recipe`` on ``nproc`` ranks cannot run here, or None."""

    def driver_version(self) -> str | None:
        """Return the driver's version; None if there is no driver or it cannot be found out."""

    def open(self, local_rank: int, ranks_here: int) -> Device:
        """Return the device of one rank; the first method that may import torch.

        Those that planning and launching call before must not, because these work without torch.

        Args:
            local_rank: number of the rank among those of this machine, from 0.
            ranks_here: number of ranks of this machine.
        """

    def collective_library(self) -> str:
        """Return name and version of the collective library; called by a rank."""

    def monitor(self) -> Monitor | None:
        """Return what reads the devices while ranks work; None: nothing can.

        Raises:
            MonitorFault: the tool or library is not installed.
        """

    def monitored(self, nproc: int) -> list[int]:
        """Return ``DeviceSample.index`` of the device of each of this machine's ``nproc`` ranks.

        In the order of local ranks. Empty if it is not known which of the monitor's devices ranks
        use.
        """


class Occupant(NamedTuple):
    """A process on a device that does not belong to this run.

    Args:
        device: the device, as messages name it.
        process: its name and number, as far as they can be found out.
        used_bytes: the device's memory that it holds; None: unknown.
        computes: whether it may compute there; false: it only draws the screen.
    """

    device: str
    process: str
    used_bytes: int | None
    computes: bool

    def describe(self) -> str:
        """Return which process uses the device, in words."""
        memory = "" if self.used_bytes is None else f", {self.used_bytes / 2**30:.1f} GiB"
        return f"{self.device}: used by {self.process}{memory}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """How a device is set up, as its driver reports it; None: not reported.

    Args:
        index: as in ``DeviceSample``.
        power_limit_w: power above which the device lowers its clocks.
        default_power_limit_w: the limit with which the device was shipped.
        persistence: whether the driver stays loaded without a program.
        ecc: whether its memory corrects errors.
        partitioned: whether it is divided into slices.
    """

    index: int
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    persistence: bool | None = None
    ecc: bool | None = None
    partitioned: bool | None = None


@runtime_checkable
class ReportsSettings(Protocol):
    """A vendor that can tell how its devices are set up."""

    def read_settings(self, nproc: int) -> list[DeviceSettings]:
        """Return the settings of the devices of ``nproc`` ranks that are known."""


@runtime_checkable
class Diagnoses(Protocol):
    """A vendor that can tell what is wrong with its devices before a rank opens one."""

    def unusable(self) -> Refusal | None:
        """Return why devices that are here cannot be used; None if they can or none is here."""

    def occupants(self, nproc: int) -> list[Occupant]:
        """Return the processes on the devices of ``nproc`` ranks; called before they start."""
