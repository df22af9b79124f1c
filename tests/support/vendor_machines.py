"""Machines with other vendors' cards, as files below a folder, and their tools as scripts."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from trainmark.devices import accelerator, torch_vendor

if TYPE_CHECKING:
    from pathlib import Path


def install_tool(folder: Path, name: str, shell: str) -> None:
    """Put a tool into ``folder``, which is on the PATH, that runs a line of shell."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{shell}\n")
    file.chmod(0o755)


def make_print_command(file: Path) -> str:
    """Return a line of shell that prints a file, such as the recorded output of a tool."""
    return f"cat {shlex.quote(str(file))}"


def write_text_file(file: Path, text: str = "") -> Path:
    """Write a file, in a new folder if it has none; return its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def add_kfd_node(
    root: Path, number: int, *, vendor: int, minor: int = 0, bus: int = 0, unique_id: int = 0
) -> None:
    """Add a compute device to KFD's list, AMD's interface of the kernel for computing.

    Args:
        root: of the machine.
        number: of the node in the list.
        vendor: number of the vendor on the PCI bus.
        minor: number of its file in /dev/dri; 0: the node is a processor.
        bus: number of its PCI bus.
        unique_id: number by which the vendor tells cards apart; 0: it has none.
    """
    properties = {
        "cpu_cores_count": 0 if minor else 64,
        "simd_count": 304 if minor else 0,
        "vendor_id": vendor,
        "location_id": bus << 8,  # bus, device and function; the latter are 0
        "domain": 0,
        "drm_render_minor": minor,
        "unique_id": unique_id,
    }
    text = "".join(f"{name} {value}\n" for name, value in properties.items())
    write_text_file(root / f"sys/class/kfd/kfd/topology/nodes/{number}/properties", text)
    write_text_file(root / "dev/kfd")
    if minor:
        write_text_file(root / f"dev/dri/renderD{minor}")


def add_pci_card(
    root: Path,
    address: str,
    *,
    vendor: int,
    kind: str = "0x030000",
    driver: str = "",
    minor: int = 0,
) -> Path:
    """Add a card to the PCI bus and return its folder.

    Args:
        vendor: its number.
        kind: class of the device; the default is a display controller.
        driver: name of the kernel's driver that the card has; empty: none.
        minor: number of its file in /dev/dri; 0: it has none.
    """
    folder = root / "sys/bus/pci/devices" / address
    write_text_file(folder / "vendor", f"0x{vendor:04x}\n")
    write_text_file(folder / "class", f"{kind}\n")
    if driver:
        target = root / "sys/bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(target)
    if minor:
        (folder / f"drm/renderD{minor}").mkdir(parents=True)
        write_text_file(root / f"dev/dri/renderD{minor}")
    return folder


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without cards: ``root``, and ``bin`` as the only folder of vendors' tools."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "bin").mkdir()
    # ``ROOT``: the folder below which files of the machine, such as /dev/dri, are searched.
    monkeypatch.setattr(torch_vendor, "ROOT", root)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    # Variables by which a user hides devices must not change what the tests find.
    for name in (
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "XPU_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
        "ZE_FLAT_DEVICE_HIERARCHY",
    ):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def set_torch_build(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Have the installed torch say that it was built for versions of ``cuda``, ``hip``, ``xpu``."""
    build = accelerator.TorchBuild("2.13.0", cuda=versions.pop("cuda", None), **versions)
    monkeypatch.setattr(torch_vendor, "read_torch_build", lambda: build)
