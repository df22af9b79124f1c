"""What vendors have in common whose tool prints the devices in the order of torch's numbers."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

from trainmark.devices import pci, tool, torch_vendor
from trainmark.devices.printed import pci_addresses
from trainmark.devices.torch_vendor import TorchVendor
from trainmark.protocols import MonitorFault, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.protocols import DeviceSample, Monitor

_DRIVER = re.compile(r"Driver(?: Version)?\s*:?\s*v?([0-9][\w.-]*)")


Command = tool.Command


class ToolVendor(TorchVendor):
    """A vendor whose tool tells of all devices; see ``TorchVendor``. Subclasses give the facts.

    A device's number is its place in what the tool prints: tools number cards, chips, or those
    of the machine in a container.

    Args:
        commands: of the tool; a later one is used if the earlier ones' output cannot be read.
        folders: where the vendor installs the tool, if it is not on the PATH.
        pci_classes: of its devices on the PCI bus, as ``pci.CLASSES``.
    """

    commands: tuple[Command, ...]
    folders: tuple[str, ...] = ()
    pci_classes: tuple[str, ...] = pci.CLASSES

    def monitor(self) -> Monitor:
        """Return what runs the tool; see ``Vendor.monitor``."""
        return ToolReader(self._found(), len(self.device_files()))

    def _found(self) -> list[Command]:
        """Return the commands with the path of the tool.

        Raises:
            MonitorFault: it is not installed.
        """
        path = tool.find(self.commands[0].argv[0], self.folders)
        return [Command((path, *argv[1:]), parse) for argv, parse in self.commands]

    @cached_property
    def _printed(self) -> str:
        """What the tool printed when it was first asked; empty if it did not answer."""
        try:
            return tool.run(self._found()[0].argv)
        except MonitorFault:
            return ""

    def unusable(self) -> Refusal | None:
        """Return why no device here can be used, also where the bus has some and no driver has."""
        on_bus = pci.accelerators(self.pci_vendor, root=torch_vendor.ROOT, classes=self.pci_classes)
        if self.here() or not on_bus:
            return super().unusable()
        return Refusal(
            f"{len(on_bus)} {self.name} device(s) on the PCI bus, but no {self.nodes}",
            "load the vendor's driver; a container must be given the device files",
        )

    def driver_version(self) -> str | None:
        """Return the version of the kernel module, or the one that the tool prints."""
        own = super().driver_version()
        if own is not None or not self.here():
            return own
        found = _DRIVER.search(self._printed)
        return found[1] if found else None

    def pci_folders(self) -> list[Path]:
        """Return the folder on the PCI bus of each device, by the address that the tool prints."""
        addresses = pci_addresses(self._printed)
        if len(addresses) != len(self.device_files()):
            return []
        return [torch_vendor.ROOT / "sys/bus/pci/devices" / address for address in addresses]


class ToolReader(tool.ToolMonitor):
    """Reads all devices of the machine; see ``Monitor``.

    Args:
        count: of devices; in a reading of more or fewer nobody knows which device is which.
    """

    def __init__(self, commands: Sequence[Command], count: int) -> None:
        super().__init__(*commands)
        self._count = count

    def read(self) -> list[DeviceSample]:
        """Return the devices; see ``Monitor.read``."""
        samples = super().read()
        if len(samples) != self._count:
            raise MonitorFault(
                "failed", f"{self.name} tells {len(samples)} devices, and {self._count} are here"
            )
        return samples
