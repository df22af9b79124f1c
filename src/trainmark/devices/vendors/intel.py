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
    select_visible,
)
from trainmark.protocols import ContainerNeeds, DeviceSample, MonitorFault
from trainmark.protocols.tested import RECORDED_OUTPUTS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DRIVERS = ("xe", "i915")
# Utilisation, power, clock, temperature and memory used: the numbers of versions 1 and 2,
# https://intel.github.io/xpumanager/2.0/xpu-smi/dump.html, 2026-11-22.
_DUMP = ("dump", "-d", "-1", "--metrics", "0,1,2,3,18")
# Name, UUID, address, memory.
_DISCOVERY = ("discovery", "--dump", "1,2,4,11,16")
# Patterns of the columns' headings in the output of `dump`, which versions of the tool word
# differently.
_COLUMNS = {
    "utilization": re.compile(r"all gpu engines|gpu utilization|utilization\.gpu"),
    "power": re.compile(r"gpu power|power\.draw"),
    "clock": re.compile(r"gpu frequency|clocks\.current\.graphics"),
    "temperature": re.compile(r"gpu core temperature|temperature\.gpu"),
    "used": re.compile(r"memory used|memory\.used"),
}


def parse_dump(text: str) -> list[DeviceSample]:
    """Return the devices in the CSV of ``xpu-smi dump``.

    If a device has several rows, its last row counts.

    Raises:
        MonitorFault: the text has another form.
    """
    rows = _read_rows(text)
    # The first row that has this heading; the tool may print other lines before it.
    headings = next((row for row in rows if "DeviceId" in row), [])
    samples = {}
    for row in rows:
        if len(row) != len(headings):
            continue
        fields = dict(zip(headings, row, strict=True))
        index = tool.parse_device_number(fields.get("DeviceId"))
        if index is None:  # the headings themselves, for example
            continue
        samples[index] = DeviceSample(
            index=index,
            temperature_c=tool.temperature_c(_find_cell(fields, "temperature")),
            power_w=tool.watts(_find_cell(fields, "power")),
            memory_used_bytes=tool.size_bytes(_find_cell(fields, "used"), unit="m"),
            utilization_percent=tool.percent(_find_cell(fields, "utilization")),
            clock_mhz=tool.megahertz(_find_cell(fields, "clock")),
        )
    return tool.require_devices(text, (samples[index] for index in sorted(samples)))


def _find_cell(fields: Mapping[str, str], quantity: str) -> str | None:
    """Return the cell of a row of ``dump`` that has a quantity; None: the row does not have it.

    Args:
        fields: the row's cells by their headings.
        quantity: a key of ``_COLUMNS``, which has a pattern of the quantity's headings, because
            versions of the tool word them differently.
    """
    for heading, cell in fields.items():
        if _COLUMNS[quantity].search(heading.lower()):
            return cell
    return None


def parse_discovery(text: str) -> list[DeviceSample]:
    """Return number, name, identifiers and memory of each card in ``xpu-smi discovery --dump``.

    Raises:
        MonitorFault: the text has another form.
    """
    samples = []
    for row in _read_rows(text):
        if len(row) != 5:  # not a line with the five fields that the command asks for
            continue
        number, name, uuid, address, memory = row
        index = tool.parse_device_number(number)
        if index is None:  # the headings
            continue
        samples.append(
            DeviceSample(
                index=index,
                name=name or None,
                uuid=f"{uuid} {address.lower()}",  # all identifiers, as the kernel writes them
                memory_total_bytes=tool.size_bytes(memory, unit="m"),
            )
        )
    return tool.require_devices(text, samples)


def _read_rows(text: str) -> list[list[str]]:
    """Return the cells of each line of a CSV, without the empty lines.

    Raises:
        MonitorFault: the text is not a CSV.
    """
    try:
        table = csv.reader(text.splitlines(), skipinitialspace=True)
        return [[cell.strip() for cell in row] for row in table if row]
    except csv.Error as error:
        raise MonitorFault("unreadable", f"not a CSV: {error}") from None


class Intel(TorchVendor):
    """Find, examine and open Intel's GPUs; see ``protocols.Vendor``.

    A device is a tile, a part of a card, as torch counts them.
    """

    name = "intel"
    tested = RECORDED_OUTPUTS
    torch_type = "xpu"
    collective_backend = "xccl"
    # Of devices with the driver i915; gpu.intel.com/xe of those with xe. Both count cards:
    # https://intel.github.io/intel-device-plugins-for-kubernetes/cmd/gpu_plugin, 2026-11-22.
    kubernetes_resource = "gpu.intel.com/i915"
    visible_devices: str | None = "ZE_AFFINITY_MASK"
    recorded_variables: tuple[str, ...] = (
        "ZE_AFFINITY_MASK",
        "ZE_FLAT_DEVICE_HIERARCHY",
        "ZE_ENABLE_PCI_ID_DEVICE_ORDER",
        "ONEAPI_DEVICE_SELECTOR",
        "SYCL_PI_LEVEL_ZERO_USE_IMMEDIATE_COMMANDLISTS",
        "UR_L0_USE_IMMEDIATE_COMMANDLISTS",
        "CCL_*",
    )
    nodes = "dev/dri/renderD*"
    # https://www.intel.com/content/www/us/en/docs/oneapi-base-toolkit/get-started-guide-linux/2025-1/
    # using-containers-with-the-command-line.html; the links by PCI address:
    # https://docs.vllm.ai/en/v0.6.6/getting_started/xpu-installation.html, 2026-11-22.
    container_needs = ContainerNeeds(devices=("/dev/dri",), mounts=("/dev/dri/by-path",))
    package = None
    build_field = "xpu"
    module = None  # xe and i915 are of the kernel, whose version is in every record
    pci_vendor = 0x8086
    pci_classes = PCI_COMPUTE
    # Version 2 calls --number what is -n in version 1.
    commands = tuple(
        tool.Command(("xpu-smi", *_DUMP, n, "1"), parse_dump) for n in ("--number", "-n")
    )
    constants_command = tool.Command(("xpu-smi", *_DISCOVERY), parse_discovery)
    numbers_follow_tool = False

    def list_cards(self) -> list[Path]:
        """Return the folder on the PCI bus of each discrete card, in the order of addresses.

        If there is none, return that of integrated graphics, which are always on bus 0: torch uses
        them only without a discrete card. A torch that was built for another vendor's devices uses
        neither. Discrete cards are returned even then, so that the user is told why they cannot be
        used; graphics that many processors have are not worth that message.
        https://github.com/pytorch/pytorch/blob/main/c10/xpu/XPUFunctions.cpp, 2026-11-22.
        """
        cards = [
            folder
            for folder in list_pci_accelerators(self.pci_vendor)
            if (folder / "driver").resolve().name in _DRIVERS
            and find_render_node(folder) is not None
        ]
        discrete_cards = [folder for folder in cards if not _is_integrated(folder)]
        if discrete_cards or not self.is_driven_by_torch():
            return discrete_cards
        return cards

    def list_pci_folders(self) -> list[Path]:
        """Return the folder on the PCI bus of each device: a card's folder once for each tile."""
        hierarchy = os.environ.get("ZE_FLAT_DEVICE_HIERARCHY", "").upper()
        if hierarchy == "COMPOSITE":  # a card with all its tiles is then one device
            return self.list_cards()
        folders = []
        for folder in self.list_cards():
            folders += [folder] * count_tiles(folder)
        return folders

    def list_device_files(self) -> list[Path]:
        """Return the file that a process opens for each device.

        Each tile of a card is a device, so the card's file is listed once for each tile. The files
        are found by the cards, not by their names alone: graphics of other vendors and of
        processors have files of the same names.
        """
        files = [find_render_node(folder) for folder in self.list_pci_folders()]
        return [file for file in files if file is not None]

    def list_visible(self) -> list[int]:
        """Return the numbers of the devices that ``ZE_AFFINITY_MASK`` allows, in rising order.

        The list ends before an entry such as ``0.1``, a part of device 0: this program does not
        support such entries.

        https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/PROG.html, 2026-11-22
        """
        mask = os.environ.get("ZE_AFFINITY_MASK", "")
        # The folder of a card is listed once for each device in it.
        num_devices = len(self.list_pci_folders())
        if not mask:
            return list(range(num_devices))
        return sorted(select_visible(mask, num_devices))  # a mask chooses, it does not order

    def find_monitor_index(self, number: int) -> int | None:
        """Return the monitor's number of a device's card: the tool lists cards, not tiles.

        Args:
            number: the device's place among all devices of the machine, from 0.
        """
        # A card's folder is listed once for each tile, so that each device has one.
        address = self.list_pci_folders()[number].name
        # `uuid` has all identifiers of a card, separated by spaces; one is its PCI address.
        for index, sample in self._first_reading.samples.items():
            if address in (sample.uuid or "").split():
                return index
        return None


def _is_integrated(folder: Path) -> bool:
    """Tell whether a card is the graphics of a processor: only these are on PCI bus 0.

    Args:
        folder: of the card, named by its address, ``0000:41:00.0``.
    """
    bus = folder.name.split(":")[1]
    return bus == "00"


def count_tiles(folder: Path) -> int:
    """Return the number of tiles of a card, each of which torch counts as a device.

    The driver xe has a folder ``tile0`` and so on for each tile. The driver i915 calls tiles of a
    card gt. It gives integrated graphics a second gt without compute units, so the gt of integrated
    graphics are not counted.
    """
    num_tiles = len(list(folder.glob("tile[0-9]*")))
    if num_tiles == 0 and not _is_integrated(folder):
        num_tiles = len(list(folder.glob("drm/card*/gt/gt[0-9]*")))
    return max(1, num_tiles)


def find_render_node(folder: Path) -> Path | None:
    """Return the device file that a process opens to use a card; None in a container without it."""
    for file in sorted(folder.glob("drm/renderD*")):
        node = torch_vendor.ROOT / "dev/dri" / file.name
        if node.exists():
            return node
    return None
