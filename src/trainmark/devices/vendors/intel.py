"""Intel GPUs: torch's ``xpu`` drives them; ``xpu-smi`` reads.

Written from the vendor's documentation and published outputs of its tool; never run on a card.
"""

from __future__ import annotations

import csv
import os
import re
from typing import TYPE_CHECKING

from trainmark.devices import tool, torch_vendor
from trainmark.devices.torch_vendor import (
    PCI_COMPUTE,
    TorchVendor,
    list_pci_accelerators,
    select_named,
)
from trainmark.protocols import ContainerNeeds, DeviceSample, MonitorFault
from trainmark.protocols.tested import RECORDED_OUTPUTS

if TYPE_CHECKING:
    from pathlib import Path

_DRIVERS = ("xe", "i915")
# Utilisation, power, clock, temperature and memory used: the numbers of versions 1 and 2,
# https://intel.github.io/xpumanager/2.0/xpu-smi/dump.html, 2026-11-22.
_DUMP = ("dump", "-d", "-1", "--metrics", "0,1,2,3,18")
# Name, UUID, address, memory.
_DISCOVERY = ("discovery", "--dump", "1,2,4,11,16")
_COLUMNS = {
    "utilization": re.compile(r"all gpu engines|gpu utilization|utilization\.gpu"),
    "power": re.compile(r"gpu power|power\.draw"),
    "clock": re.compile(r"gpu frequency|clocks\.current\.graphics"),
    "temperature": re.compile(r"gpu core temperature|temperature\.gpu"),
    "used": re.compile(r"memory used|memory\.used"),
}


def parse_dump(text: str) -> list[DeviceSample]:
    """Return the devices in the CSV of ``xpu-smi dump``; the last row of each.

    Raises:
        MonitorFault: it is another form.
    """
    rows = _read_rows(text)
    names = next((row for row in rows if "DeviceId" in row), [])
    samples = {}
    for row in rows:
        fields = dict(zip(names, row, strict=False))
        index = tool.number(fields.get("DeviceId"), most=1e6)
        if len(row) != len(names) or index is None:
            continue
        cell = {
            what: next(
                (value for name, value in fields.items() if column.search(name.lower())), None
            )
            for what, column in _COLUMNS.items()
        }
        samples[int(index)] = DeviceSample(
            index=int(index),
            temperature_c=tool.temperature_c(cell["temperature"]),
            power_w=tool.watts(cell["power"]),
            memory_used_bytes=tool.size_bytes(cell["used"], unit="m"),
            utilization_percent=tool.percent(cell["utilization"]),
            clock_mhz=tool.megahertz(cell["clock"]),
        )
    return tool.require_devices(text, (samples[index] for index in sorted(samples)))


def parse_discovery(text: str) -> list[DeviceSample]:
    """Return number, name, id and memory of each card in ``xpu-smi discovery --dump``.

    Raises:
        MonitorFault: it is another form.
    """
    return tool.require_devices(
        text,
        [
            DeviceSample(
                index=int(index),
                name=row[1] or None,
                uuid=f"{row[2]} {row[3].lower()}",
                memory_total_bytes=tool.size_bytes(row[4], unit="m"),
            )
            for row in _read_rows(text)
            if len(row) == 5 and (index := tool.number(row[0], most=1e6)) is not None
        ],
    )


def _read_rows(text: str) -> list[list[str]]:
    try:
        table = csv.reader(text.splitlines(), skipinitialspace=True)
        return [[cell.strip() for cell in row] for row in table if row]
    except csv.Error as error:
        raise MonitorFault("unreadable", f"not a CSV: {error}") from None


class Intel(TorchVendor):
    """Planning's view of Intel's GPUs; see ``Vendor``. A device is a tile, as torch counts them."""

    name = "intel"
    tested = RECORDED_OUTPUTS
    torch_type = "xpu"
    collective_backend = "xccl"
    # Of devices with the driver i915; gpu.intel.com/xe of those with xe. Both count cards:
    # https://intel.github.io/intel-device-plugins-for-kubernetes/cmd/gpu_plugin, 2026-11-22.
    kubernetes_resource = "gpu.intel.com/i915"
    visible_devices: str | None = "ZE_AFFINITY_MASK"
    recorded_variables: tuple[str, ...] = (
        "ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY", "ZE_ENABLE_PCI_ID_DEVICE_ORDER",
        "ONEAPI_DEVICE_SELECTOR", "SYCL_PI_LEVEL_ZERO_USE_IMMEDIATE_COMMANDLISTS",
        "UR_L0_USE_IMMEDIATE_COMMANDLISTS", "CCL_*",
    )  # fmt: skip
    nodes = "dev/dri/renderD*"
    # https://www.intel.com/content/www/us/en/docs/oneapi-base-toolkit/get-started-guide-linux/2025-1/
    # using-containers-with-the-command-line.html; the links by PCI address:
    # https://docs.vllm.ai/en/v0.6.6/getting_started/xpu-installation.html, 2026-11-22.
    container_needs = ContainerNeeds(devices=("/dev/dri",), mounts=("/dev/dri/by-path",))
    package = None
    built = "xpu"
    module = None  # xe and i915 are of the kernel, whose version is in every record
    pci_vendor = 0x8086
    pci_classes = PCI_COMPUTE
    # Version 2 calls --number what is -n in version 1.
    commands = tuple(
        tool.Command(("xpu-smi", *_DUMP, n, "1"), parse_dump) for n in ("--number", "-n")
    )
    once = tool.Command(("xpu-smi", *_DISCOVERY), parse_discovery)
    in_tools_order = False

    def cards(self) -> list[Path]:
        """Return the folder on the PCI bus of each card that torch takes, by address.

        Integrated graphics, always on bus 0, are taken where there is no card, and are no device
        to a torch for another vendor's:
        https://github.com/pytorch/pytorch/blob/main/c10/xpu/XPUFunctions.cpp, 2026-11-22.
        """
        cards = [
            folder
            for folder in list_pci_accelerators(self.pci_vendor)
            if (folder / "driver").resolve().name in _DRIVERS and _render(folder) is not None
        ]
        discrete = [folder for folder in cards if folder.name.split(":")[1] != "00"]
        return discrete or (cards if self.drives() else [])

    def pci_folders(self) -> list[Path]:
        """Return the folder of each device on the PCI bus: a card's once for each tile."""
        whole = os.environ.get("ZE_FLAT_DEVICE_HIERARCHY", "").upper() == "COMPOSITE"
        return [
            folder for folder in self.cards() for _ in range(1 if whole else count_tiles(folder))
        ]

    def device_files(self) -> list[Path]:
        """Return the file of each device that a process opens."""
        return [file for folder in self.pci_folders() if (file := _render(folder)) is not None]

    def visible(self) -> list[int]:
        """Return the devices that the environment leaves; ``0.1``, a tile of one, ends the list.

        https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/PROG.html, 2026-11-22
        """
        mask = os.environ.get("ZE_AFFINITY_MASK")
        visible_numbers = select_named(mask or None, len(self.pci_folders()))
        return sorted(visible_numbers)  # a mask chooses, it does not order

    def monitor_index(self, number: int) -> int | None:
        """Return the number of the device's card: the tool tells cards, not tiles."""
        address = self.pci_folders()[number].name
        readings = self._first[0].items()
        return next(
            (index for index, sample in readings if address in (sample.uuid or "").split()), None
        )


def count_tiles(folder: Path) -> int:
    """Return the tiles of a card, which torch takes for devices.

    i915 calls those of a card gt, and gives integrated graphics a second one without compute units.
    """
    num_tiles = len(list(folder.glob("tile[0-9]*")))
    if not num_tiles and folder.name.split(":")[1] != "00":
        num_tiles = len(list(folder.glob("drm/card*/gt/gt[0-9]*")))
    return max(1, num_tiles)


def _render(folder: Path) -> Path | None:
    """Return the file that a process opens to use a card; None in a container without it."""
    for file in sorted(folder.glob("drm/renderD*")):
        node = torch_vendor.ROOT / "dev/dri" / file.name
        if node.exists():
            return node
    return None
