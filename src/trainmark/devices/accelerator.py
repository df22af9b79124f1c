"""What the installed torch was built for, and one accelerator that it drives, as a rank uses it.

Marks are events in the current stream. A vendor whose devices work differently overrides the
methods in its own file.
"""

from __future__ import annotations

import re
import warnings
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.devices.backend import Backend
from trainmark.errors import EnvironmentFault
from trainmark.protocols import MatmulRate, MemoryUse
from trainmark.recipe import AUTOCAST

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.recipe import Precision

# Vendors whose torch presents their devices as CUDA's, by what they add to its version:
# 2.4.1+corex.4.3.0, 2.8.0+metax3.3.0.2, 2.4.1+das.opt1.dtk2504.
_VENDORS_BY_LABEL = {"corex": "iluvatar", "metax": "metax", "das": "hygon"}
# cuDNN's attention drops weights with a probability that is a multiple of 1/16, see
# check_cudnn_dropout of torch 2.13.
_DROPOUT_STEPS = 16
_MATMUL_BYTES_PER_ELEMENT = 3 * 4  # three matrices in fp32: two operands and the product
# A line of torch's version file: `cuda: Optional[str] = '13.0'`.
_FIELD = re.compile(r"""^(\w+)\b.*= *['"](.+)['"]""", re.MULTILINE)


class TorchBuild(NamedTuple):
    """What the installed torch was built for.

    Args:
        version: with what its builder added: ``2.13.0+cu130``.
        cuda: version of CUDA, or of what another vendor offers in its place; None for a build
            without it.
        hip: version of ROCm's HIP; None for a build without it.
        xpu: version of the compiler for Intel's GPUs; None for a build without it.
    """

    version: str
    cuda: str | None
    hip: str | None = None
    xpu: str | None = None

    @property
    def maker(self) -> str | None:
        """The vendor that built this torch, if it makes its own devices appear as ``cuda``.

        None for every other torch, and for NVIDIA's and AMD's; in AMD's, ``hip`` is set.
        """
        label = self.version.partition("+")[2]  # what the builder added to torch's version
        for beginning, vendor in _VENDORS_BY_LABEL.items():
            if label.startswith(beginning):
                return vendor
        return None


def read_torch_build() -> TorchBuild | None:
    """Return what the version file of the installed torch says; None if there is no torch."""
    module_spec = find_spec("torch")
    if module_spec is None or module_spec.origin is None:
        return None
    version_file = Path(module_spec.origin).with_name("version.py")
    if not version_file.exists():
        return None
    fields = dict(_FIELD.findall(version_file.read_text()))
    version = fields.get("__version__", "unknown")
    # The folder of the installed package, beside that of torch, may have a longer version than
    # torch's file: CoreX 4.5 adds its label, ``+corex…``, only to the folder's name.
    labelled_folders = list(version_file.parents[1].glob(f"torch-{version}+*.dist-info"))
    if labelled_folders:  # only one: pip removes the folder of the version that it replaces
        version = labelled_folders[0].name.removeprefix("torch-").removesuffix(".dist-info")
    return TorchBuild(
        version, cuda=fields.get("cuda"), hip=fields.get("hip"), xpu=fields.get("xpu")
    )


class Accelerator:
    """A device of any type that torch knows; see ``Device``.

    Args:
        index: the device's number among those that the process sees.
        vendor: its vendor's name.
        torch_type: torch's type of device, ``npu`` for example.
        modules: what to import after torch so that torch knows ``torch_type``.
    """

    def __init__(
        self, index: int, *, vendor: str, torch_type: str, modules: Sequence[str] = ()
    ) -> None:
        import torch

        self._torch = torch
        self.name = vendor
        self.torch_type = torch_type
        self.index = index
        # The modules are extensions of torch, which may know ``torch_type`` only through them.
        self._open(modules)
        self._peak_used_bytes = 0  # highest use of the whole device that ``memory`` has read

    def _open(self, modules: Sequence[str]) -> None:
        """Import ``modules``, select the device, and find the calls that work on it.

        Args:
            modules: extensions of torch that make it know this type of device.

        Raises:
            EnvironmentFault: a module is missing, or the driver does not let torch open the device.
        """
        for module in modules:
            try:
                import_module(module)
            except Exception as error:  # extensions of torch raise several classes of their own
                raise EnvironmentFault(
                    f"torch {self._torch.__version__} cannot import {module}: {error}",
                    where=f"--device {self.name}",
                    fix="install the version of the module that was built for this torch version",
                ) from error
        self._backend = Backend(
            self._torch, self.torch_type, self.index, where=f"--device {self.name}"
        )
        # ``Backend`` has tried its calls on the device. Release the memory that they took, so that
        # it is not in the measured peak.
        self._backend.release()

    def mark(self) -> Any:
        """Record a timed event in the device's current stream; return it.

        ``elapsed_ns`` returns the time that passes on the device between two such events.
        """
        event = self._backend.new_event()
        event.record()
        return event

    def elapsed_ns(self, start: Any, end: Any) -> int:
        """Return the time between two events, in ns."""
        milliseconds: float = start.elapsed_time(end)
        return round(milliseconds * 1e6)

    def synchronize(self) -> None:
        """Wait for the device."""
        self._backend.synchronize()

    def read(self, losses: Sequence[Any]) -> list[float]:
        """Copy scalar losses of any dtype to the host, all in one transfer."""
        stacked = self._torch.stack([loss.float() for loss in losses])
        values: list[float] = stacked.tolist()
        return values

    def pin(self, tensor: Any) -> Any:
        """Copy to pinned memory; torch reuses it only after the copy to the device is done."""
        return tensor.pin_memory()

    def place(self, value: Any) -> Any:
        """Return a tensor or a module on the device; host tensors are copied asynchronously."""
        if isinstance(value, self._torch.Tensor) and value.device.type == "cpu":
            # Only from pinned memory a copy is asynchronous.
            return self.pin(value).to(self.torch_type, non_blocking=True)
        # A type without a number means the device that is selected.
        return value.to(self.torch_type)

    def set_precision(self, precision: Precision) -> dict[str, Any]:
        """Switch TF32 matmuls on for ``tf32`` only; for ``fp8``, try a matmul.

        The type of autocast is only returned; the training code switches it on.

        Returns:
            The settings that are then in effect, for the record.

        Raises:
            EnvironmentFault: torch does not multiply fp8 on this device.
        """
        torch = self._torch
        if precision == "fp8":
            self._try_fp8()
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        return {
            "float32_matmul": torch.get_float32_matmul_precision(),
            "tf32": precision == "tf32",
            "autocast": AUTOCAST.get(precision),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }

    def _try_fp8(self) -> None:
        """Multiply two small fp8 matrices.

        Raises:
            EnvironmentFault: torch cannot do it on this device.
        """
        from trainmark.devices.rates import prepare_matmul

        try:
            # Small, and multiples of 16, as torch requires for fp8.
            prepare_matmul(self, "fp8", (32, 32, 32)).run()
            self.synchronize()
        except (RuntimeError, TypeError, NotImplementedError) as error:
            first_line = str(error).partition("\n")[0]
            raise EnvironmentFault(
                f"precision=fp8: torch {self._torch.__version__} cannot multiply fp8 "
                f"matrices on this device: {first_line}",
                where="recipe field precision",
                fix="use precision=bf16",
            ) from error

    def memory(self) -> MemoryUse:
        """Return the peak of torch's allocator, and how much of the device all processes used.

        The use is read once in each call; the highest of all calls so far is returned.
        """
        free, total = self._backend.free_and_total_bytes()
        self._peak_used_bytes = max(self._peak_used_bytes, total - free)
        return MemoryUse(
            allocator_peak_bytes=self._backend.peak_allocated_bytes(),
            used_bytes=self._peak_used_bytes,
            total_bytes=total,
            scope="device",  # ``used_bytes`` is the use by all processes, not only by this one
        )

    def matmul_rate(self, precision: Precision) -> MatmulRate:
        """Return the best rate of matmuls whose sizes fill a large device; then release the memory.

        The two operands and the product together take at most a quarter of the memory. Small sizes
        come first: by their rate ``measure_matmul_rate`` tells whether larger ones take too long.
        """
        from trainmark.devices.rates import measure_matmul_rate

        _, total_bytes = self._backend.free_and_total_bytes()
        max_bytes = total_bytes / 4
        sizes = [
            rows for rows in (1024, 4096, 8192) if _MATMUL_BYTES_PER_ELEMENT * rows**2 <= max_bytes
        ]
        if not sizes:  # a device with very little memory
            sizes = [512]
        rate = measure_matmul_rate(self, precision, sizes=tuple(sizes))
        self._release()
        return rate

    def _release(self) -> None:
        """Give memory back that the allocator holds, and count its peak from now on."""
        self._backend.release()

    def copy_bytes_per_second(self) -> float:
        """Return bytes read plus written per second, of copies far larger than the caches."""
        from trainmark.devices.rates import measure_copy_rate

        _, total_bytes = self._backend.free_and_total_bytes()
        # 1 GiB, or less on a device with little memory: the source and the target of a copy take at
        # most an eighth of it together.
        return measure_copy_rate(self, copied_bytes=min(1 << 30, total_bytes // 16))

    def describe(self) -> dict[str, Any]:
        """Return product name, vendor and memory."""
        properties = self._torch.get_device_module(self.torch_type).get_device_properties(
            self.index
        )
        return {
            "name": str(getattr(properties, "name", "unknown")),
            "vendor": self.name,
            "memory_total_bytes": getattr(properties, "total_memory", None),
        }


class CudaDevice(Accelerator):
    """One device of torch's type ``cuda``, of NVIDIA or presented so by HIP; see ``Device``."""

    def __init__(self, index: int, *, vendor: str) -> None:
        super().__init__(index, vendor=vendor, torch_type="cuda")

    @contextmanager
    def forbid_synchronization(self) -> Iterator[None]:
        """Make torch raise an error in the block if the host would wait for the device.

        Torch does not notice the waits of sparse and collective operations.
        """
        earlier_mode = self._torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            # Torch warns once that it does not notice every wait.
            warnings.filterwarnings("ignore", "Synchronization debug mode")
            self._torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            self._torch.cuda.set_sync_debug_mode(earlier_mode)

    def set_precision(self, precision: Precision) -> dict[str, Any]:
        """Switch TF32 on for ``tf32`` only, for matmuls and convolutions alike.

        Returns:
            The settings that are then in effect, for the record.
        """
        torch = self._torch
        flags = super().set_precision(precision)
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        return flags | {
            "tf32": bool(torch.backends.cuda.matmul.allow_tf32),
            "cudnn_tf32": bool(torch.backends.cudnn.allow_tf32),
        }

    def fit_attention(self, *, dropout: float, shapes_vary: bool) -> None:
        """Switch cuDNN's attention on only if its dropout is exact and shapes do not vary.

        cuDNN rounds the dropout probability to sixteenths. Torch 2.13 itself uses cuDNN only for
        probabilities that this does not change, but torch 2.11 uses it for all. For each new shape,
        cuDNN plans for half a second, which would fall into the measured windows if shapes vary.

        Args:
            dropout: probability that an attention weight is dropped.
            shapes_vary: whether micro-batches differ in shape.
        """
        is_exact = (dropout * _DROPOUT_STEPS).is_integer()
        self._torch.backends.cuda.enable_cudnn_sdp(is_exact and not shapes_vary)

    def attention_flags(self) -> dict[str, bool]:
        """Return which of torch's attention kernels may run."""
        flags = self._torch.backends.cuda
        return {
            "flash": flags.flash_sdp_enabled(),
            "efficient": flags.mem_efficient_sdp_enabled(),
            "cudnn": flags.cudnn_sdp_enabled(),
            "math": flags.math_sdp_enabled(),
        }

    def describe(self) -> dict[str, Any]:
        """Return product name, vendor, memory, multiprocessors, capability and library versions."""
        from trainmark.devices import peaks

        torch = self._torch
        properties = torch.cuda.get_device_properties(self.index)
        return {
            "name": peaks.name_partition(properties.name, properties.multi_processor_count),
            "vendor": self.name,
            "memory_total_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "runtime": torch.version.cuda or torch.version.hip,
            "cudnn": torch.backends.cudnn.version(),
        }
