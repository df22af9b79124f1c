"""Apple's processors, whose graphics cores torch drives as ``mps``. On macOS only.

Written from torch's and Apple's documents; never run on such a machine.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.devices import tool
from trainmark.devices.accelerator import Accelerator
from trainmark.devices.torch_vendor import TorchVendor
from trainmark.errors import EnvironmentFault
from trainmark.protocols import DeviceSample, MemoryUse, MonitorFault
from trainmark.protocols.tested import RECORDED_OUTPUTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.protocols import Monitor

# A line of powermetrics about the graphics cores: `GPU Power: 42 mW`.
_LINE = re.compile(r"^(GPU [\w ]+): +(\S+)", re.MULTILINE)


def parse_powermetrics(text: str) -> list[DeviceSample]:
    """Return the device in what ``powermetrics`` printed; empty if there is none."""
    fields: dict[str, str] = {}
    for name, value in _LINE.findall(text):
        fields.setdefault(name, value)  # if a name has several lines, the first counts
    if not fields:
        return []
    milliwatts = tool.parse_number(fields.get("GPU Power"))
    return [
        DeviceSample(
            index=0,
            power_w=None if milliwatts is None else tool.watts(milliwatts / 1000),
            utilization_percent=tool.percent(fields.get("GPU HW active residency")),
            clock_mhz=tool.megahertz(fields.get("GPU HW active frequency")),
        )
    ]


class Apple(TorchVendor):
    """The graphics cores of one processor, as one device; see ``Vendor``."""

    name = "apple"
    tested = RECORDED_OUTPUTS
    torch_type = "mps"
    collective_backend = "gloo"
    visible_devices: str | None = None
    recorded_variables: tuple[str, ...] = (
        "PYTORCH_ENABLE_MPS_FALLBACK",
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
        "PYTORCH_MPS_FAST_MATH",
    )
    package = "torch"  # every torch for these machines drives the device
    module = None
    # The device is a part of the processor and not on a PCI bus: no class matches.
    pci_vendor = 0
    pci_classes = ()
    commands = (
        tool.Command(
            ("powermetrics", "--samplers", "gpu_power", "-i", "200", "-n", "1"), parse_powermetrics
        ),
    )

    def list_device_files(self) -> list[Path]:
        """Return the folder of Metal on an Apple processor: its one device has no driver file."""
        is_apple_processor = sys.platform == "darwin" and platform.machine() == "arm64"
        if not is_apple_processor:
            return []
        return [Path("/System/Library/Frameworks/Metal.framework")]

    def list_denied_files(self) -> list[Path]:
        """Return nothing: every user may use the device."""
        return []

    def product_names(self) -> list[str]:
        """Return the processor's name."""
        if not self.count():
            return []
        try:
            name = tool.run_tool(("sysctl", "-n", "machdep.cpu.brand_string")).strip()
        except MonitorFault:
            name = ""
        return [name or "unknown"]

    def driver_version(self) -> str | None:
        """Return the version of macOS, which brings the driver."""
        return f"macOS {platform.mac_ver()[0]}" if self.is_present() else None

    def monitor(self) -> Monitor | None:
        """Return the monitor that runs ``powermetrics``; None if the user may not run it.

        Only root may. It is None too if the machine has no such device.
        """
        is_root = os.geteuid() == 0
        return super().monitor() if self.is_present() and is_root else None

    def open(self, local_rank: int, ranks_here: int) -> MpsDevice:
        """Return the device."""
        del ranks_here
        # Only ranks of a vendor whose ``count`` is above 0 open a device, so it has a name.
        return MpsDevice(local_rank, product_name=self.product_names()[0])


class MpsDevice(Accelerator):
    """The device, which computes in the host's memory; see ``Device``.

    ``torch.accelerator`` reports nothing about that memory:
    https://github.com/pytorch/pytorch/issues/167447, 2026-11-22.
    """

    def __init__(self, index: int, *, product_name: str) -> None:
        self._product_name = product_name
        super().__init__(index, vendor=Apple.name, torch_type=Apple.torch_type)

    def _open(self, modules: Sequence[str]) -> None:
        """Check that torch can use the device.

        A machine has only one such device, so none is selected, and torch drives it without
        further modules, so none of ``modules`` is imported.

        Raises:
            EnvironmentFault: torch cannot use it.
        """
        del modules
        if not self._torch.backends.mps.is_available():
            raise EnvironmentFault(
                f"torch {self._torch.__version__} cannot use this device",
                where=f"--device {self.name}",
                rule="torch must be built with MPS and must support this version of macOS",
                fix="install torch from PyPI",
            )

    def mark(self) -> Any:
        """Record a timing event in the device's queue of work; return it."""
        event = self._torch.mps.Event(enable_timing=True)
        event.record()
        return event

    def synchronize(self) -> None:
        """Wait for the device."""
        self._torch.mps.synchronize()

    def pin(self, tensor: Any) -> Any:
        """Return ``tensor``: the device reads the host's memory."""
        return tensor

    def place(self, value: Any) -> Any:
        """Copy to the device; the copy is done when the call returns."""
        return value.to(self.torch_type)

    def memory(self) -> MemoryUse:
        """Return the memory that the process holds on the device, and what the device may use.

        Torch reports no peak for this device. ``used_bytes`` is the most that the process held at
        this or at an earlier call of this function, so a peak between two calls is missed.
        """
        mps = self._torch.mps
        self._peak_used_bytes = max(self._peak_used_bytes, mps.driver_allocated_memory())
        return MemoryUse(
            allocator_peak_bytes=None,  # torch has none for this device
            used_bytes=self._peak_used_bytes,
            total_bytes=mps.recommended_max_memory(),
            scope="process",
        )

    def _release(self) -> None:
        self._torch.mps.empty_cache()

    def describe(self) -> dict[str, Any]:
        """Return the processor's name and the memory that the device may use."""
        return {
            "name": self._product_name,
            "vendor": self.name,
            "memory_total_bytes": self._torch.mps.recommended_max_memory(),
        }
