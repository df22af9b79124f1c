"""What vendors have in common whose devices torch drives through ``torch.accelerator``.

A vendor's file says the facts: torch type, package, driver's files, tool. Owns detection from
them. Does not import torch.
"""

from __future__ import annotations

import os
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.devices import pci
from trainmark.protocols import MonitorFault, Refusal
from trainmark.spec import RankMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.devices.accelerator import Accelerator
    from trainmark.protocols import DeviceSample, Monitor
    from trainmark.spec import Recipe

ROOT = Path("/")


class TorchVendor:
    """A vendor whose devices torch drives; see ``protocols.Vendor``. Subclasses give the facts.

    Args:
        nodes: pattern of the driver's device files below ``/``, one for each device.
        package: distribution that adds ``torch_type`` to torch; None: torch itself was built
            for it, see ``drives``.
        module: the kernel module, whose version is the driver's.
        pci_vendor: the vendor's id on the PCI bus.
    """

    name: str
    torch_type: str
    collective_backend: str
    visible_devices: str | None
    recorded_variables: tuple[str, ...]
    counts_cores = False
    nodes: str
    package: str | None
    module: str | None
    pci_vendor: int

    def monitor(self) -> Monitor | None:
        """Return what reads the devices; see ``Vendor.monitor``."""
        raise NotImplementedError

    def here(self) -> bool:
        """Tell whether a device of this vendor is in the machine, by its driver's files."""
        return bool(self.device_files())

    def device_files(self) -> list[Path]:
        """Return the driver's file of each device, in the order of their numbers."""
        found = ROOT.glob(self.nodes.lstrip("/"))
        return sorted(found, key=lambda path: (len(path.name), path.name))

    def drives(self) -> bool:
        """Tell whether the installed torch drives these devices."""
        return self.package is None or find_spec(self.package) is not None

    def visible(self) -> list[int]:
        """Return the numbers of the devices that the environment leaves to ranks, in its order."""
        here = list(range(len(self.device_files())))
        chosen = os.environ.get(self.visible_devices) if self.visible_devices else None
        if chosen is None:
            return here
        found: list[int] = []
        for item in chosen.split(","):
            if not item.strip().isdecimal() or int(item) not in here or int(item) in found:
                break  # as the drivers do: the list ends at the first that names nothing
            found.append(int(item))
        return found

    def count(self) -> int:
        """Return the devices ranks can use."""
        return len(self.visible()) if self.here() and self.drives() else 0

    @cached_property
    def _first_reading(self) -> dict[int, DeviceSample]:
        """The devices as the monitor told them first, by number; empty if it tells nothing."""
        try:
            monitor = self.monitor()
            if monitor is None:
                return {}
            try:
                return {sample.index: sample for sample in monitor.read()}
            finally:
                monitor.close()
        except MonitorFault:
            return {}

    def product_names(self) -> list[str]:
        """Return the product name of each visible device, ``unknown`` where no tool tells it."""
        if not self.count():
            return []
        told = self._first_reading
        return [
            (told[index].name if index in told else None) or "unknown" for index in self.visible()
        ]

    def rank_memory(self, nproc: int) -> RankMemory | None:
        """Return the least free memory among the ranks' devices; None without a monitor."""
        free = [
            sample.memory_total_bytes - (sample.memory_used_bytes or 0)
            for index in self.visible()[:nproc]
            if (sample := self._first_reading.get(index)) and sample.memory_total_bytes
        ]
        return RankMemory(max(0, min(free))) if free else None

    def refuse(self, recipe: Recipe, nproc: int) -> Refusal | None:
        """Refuse device graphs, which only CUDA's own devices record here."""
        del nproc
        if recipe.replays_graphs:
            return Refusal(
                f"compile=reduce-overhead replays device graphs, untried on {self.name} devices",
                "use compile=true or compile=false",
            )
        return None

    def unusable(self) -> Refusal | None:
        """Return why no device that is here can be used; see ``protocols.Diagnoses``."""
        if not self.here() or self.count():
            return None
        if not self.drives():
            return Refusal(
                f"{len(self.device_files())} {self.name} device(s) here, but {self._no_torch()}",
                "install the vendor's torch, then `make clean` and "
                "`make install TORCH=system PYTHON=...` with the Python that has it",
            )
        return Refusal(
            f"{self.visible_devices}={os.environ.get(self.visible_devices or '')!r} names none "
            f"of the {len(self.device_files())} {self.name} devices here",
            f"unset {self.visible_devices}, or name devices from 0 on",
        )

    def _no_torch(self) -> str:
        return f"the package {self.package} is not installed" if self.package else "no torch for it"

    def driver_version(self) -> str | None:
        """Return the version of the kernel module; None if it does not tell it."""
        if self.module is None:
            return None
        file = ROOT / "sys/module" / self.module / "version"
        return file.read_text().strip() or None if file.exists() else None

    def collective_library(self) -> str:
        """Return the backend, with the version of the vendor's package."""
        if self.package is None:
            return self.collective_backend
        try:
            return f"{self.collective_backend} of {self.package} {version(self.package)}"
        except PackageNotFoundError:
            return self.collective_backend

    def monitored(self, nproc: int) -> list[int]:
        """Return the devices of the ranks by number; see ``Vendor.monitored``."""
        return self.visible()[:nproc]

    def numa_node(self, local_rank: int) -> int | None:
        """Return the NUMA node of a rank's device; see ``protocols.Located``."""
        nodes = pci.numa_nodes(self.pci_vendor, root=ROOT)
        visible = self.visible()
        # Known only if each device is one function on the bus, in the order of the numbers.
        if len(nodes) != len(self.device_files()) or local_rank >= len(visible):
            return None
        return nodes[visible[local_rank]]

    def open(self, local_rank: int, ranks_here: int) -> Accelerator:
        """Return the device with the rank's local number."""
        del ranks_here
        from trainmark.devices.accelerator import Accelerator

        return Accelerator(local_rank, vendor=self.name, torch_type=self.torch_type,
                           modules=self.modules())  # fmt: skip

    def modules(self) -> Sequence[str]:
        """Return what a rank imports after torch so that torch knows the devices."""
        return () if self.package is None else (self.package,)
