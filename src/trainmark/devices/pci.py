"""Accelerators on the PCI bus, from the kernel's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# Base classes of https://pci-ids.ucw.cz/read/PD, 2026-11-22: display controllers (03), processing
# accelerators (12), and co-processors (0b).
CLASSES = ("0x03", "0x12", "0x0b")
COMPUTE = ("0x0302", "0x12", "0x0b")  # without the display controllers that are there to draw


def accelerators(vendor: int, *, root: Path, classes: tuple[str, ...] = CLASSES) -> list[Path]:
    """Return the folders of a vendor's accelerators, in the order of their addresses."""
    found = []
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        try:
            of_vendor = int((folder / "vendor").read_text(), 16) == vendor
            kind = (folder / "class").read_text().strip()
        except (OSError, ValueError):
            continue  # removed meanwhile, or not a device that tells what it is
        if of_vendor and kind.startswith(classes):
            found.append(folder)
    return found


def numa_node(folder: Path) -> int | None:
    """Return the NUMA node of a device; None where the machine does not tell."""
    try:
        node = int((folder / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1: the firmware does not tell
