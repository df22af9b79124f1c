"""AMD's and Hygon's vendors on machines made of files, with tools that print what was published."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.vendor_machines import (
    add_kfd_node,
    add_pci_card,
    install_tool,
    machine,
    make_print_command,
    set_torch_build,
    write_text_file,
)
from trainmark.devices.vendors.amd import Amd
from trainmark.devices.vendors.hygon import Hygon

if TYPE_CHECKING:
    from trainmark.devices.rocm import RocmVendor

__all__ = ["machine"]

RECORDED = Path(__file__).parent / "recorded"
AMD, HYGON = 0x1002, 0x1D94
BOTH = pytest.mark.parametrize(("vendor", "pci_vendor"), [(Amd(), AMD), (Hygon(), HYGON)])


@pytest.fixture
def two_mi100(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two cards whose order differs between KFD, the kernel's list, and the tool; a processor.

    Ranks have the devices in KFD's order: device 0 has the bus a3, device 1 the bus 83. The tool,
    amd-smi, is a script that lists the bus 83 first. ``AMD`` is the vendor's number on the PCI bus;
    a minor number is that of a device's file in /dev/dri. The folder ``root`` of the machine has
    the files of its kernel, ``bin`` its programs.
    """
    root = machine / "root"
    add_kfd_node(root, 0, vendor=0)  # the processor
    add_kfd_node(root, 1, vendor=AMD, minor=128, bus=0xA3, unique_id=0x92A3B4C5D6E7F801)
    add_kfd_node(root, 2, vendor=AMD, minor=129, bus=0x83, unique_id=0x1A2B3C4D5E6F7081)
    # On the PCI bus both are processing accelerators (class 0x1200).
    add_pci_card(root, "0000:83:00.0", vendor=AMD, kind="0x120000")
    add_pci_card(root, "0000:a3:00.0", vendor=AMD, kind="0x120000")
    write_text_file(root / "sys/module/amdgpu/version", "6.10.5\n")
    memory = {"total_vram": {"value": 32752, "unit": "MB"}, "used_vram": {"value": 6, "unit": "MB"}}
    metric = [{"gpu": gpu, "mem_usage": memory} for gpu in (0, 1)]
    asic = {"market_name": "Arcturus GL-XL [Instinct MI100]"}
    static = [
        {"gpu": gpu, "asic": asic, "bus": {"bdf": f"0000:{bus}:00.0"}}
        for gpu, bus in enumerate(("83", "a3"))
    ]
    printed = {"metric": metric, "static": static}  # by the word after ``amd-smi``
    shell = " ".join(f"{verb}) echo {shlex.quote(json.dumps(x))};;" for verb, x in printed.items())
    install_tool(machine / "bin", "amd-smi", f"case $1 in {shell} esac")
    set_torch_build(monkeypatch, hip="6.0.32830")
    return machine


@BOTH
def test_vendors_are_distinguished_by_their_pci_id(
    vendor: RocmVendor, pci_vendor: int, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel lists devices of AMD and of Hygon in the same place, KFD.

    ``BOTH`` runs the test with the vendor of AMD and with that of Hygon, each with its PCI id.
    ``machine`` has no devices; ``add_kfd_node`` adds one to the kernel's list, by its number there,
    with the file of this minor number in /dev/dri.
    """
    set_torch_build(monkeypatch, hip="6.0")
    other = HYGON if pci_vendor == AMD else AMD
    add_kfd_node(machine / "root", 1, vendor=other, minor=128)
    assert vendor.count() == 0
    add_kfd_node(machine / "root", 2, vendor=pci_vendor, minor=129)
    assert vendor.count() == 1
    assert vendor.product_names() == ["unknown"]  # no tool is here that would name it


def test_devices_are_mapped_to_tool_numbers_by_their_ids(two_mi100: Path) -> None:
    # ``two_mi100`` has two cards of 32752 MB, of which 6 are used; their order for ranks is that of
    # the kernel.
    vendor = Amd()
    assert vendor.count() == 2
    assert vendor.product_names() == ["Arcturus GL-XL [Instinct MI100]"] * 2
    # Of two ranks, the number of each one's device as the tool, amd-smi, counts devices. It lists
    # the two cards of ``two_mi100`` in the other order than the kernel.
    assert vendor.monitored(2) == [1, 0]
    memory = vendor.rank_memory(2)
    assert memory is not None
    assert memory.rank_bytes == (32752 - 6) << 20  # MiB of the card, less those in use
    assert vendor.driver_version() == "6.10.5"  # as the kernel module of the machine states it


@pytest.mark.parametrize(
    # Device 1 has the id 1a2b3c4d5e6f7081.
    ("variables", "visible_devices"),
    [
        ({}, [0, 1]),
        ({"HIP_VISIBLE_DEVICES": "1,0"}, [1, 0]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
        ({"HIP_VISIBLE_DEVICES": "0,7,1"}, [0]),  # the list ends where no device has the number
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, [0]),  # the former counts
        # HIP counts the devices that ROCR leaves.
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-1a2b3c4d5e6f7081"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-1A2B3C4D5E6F7081"}, [1]),  # ROCR ignores upper case,
        ({"HIP_VISIBLE_DEVICES": "GPU-1A2B3C4D5E6F7081"}, []),  # HIP does not
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "GPU-1a2b3c4d5e6f7081"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "GPU-1a2b3c4d5e6f7081"}, []),
        ({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}, []),
    ],
)
def test_both_runtimes_hide_devices(
    two_mi100: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    visible_devices: list[int],
) -> None:
    """The runtimes are HIP and, below it, ROCR. HIP reads CUDA_VISIBLE_DEVICES as a second name."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    vendor = Amd()
    assert vendor.list_visible() == visible_devices
    assert vendor.count() == len(visible_devices)
    # Of (up to) two ranks, the number of each one's device as the tool, amd-smi, counts devices.
    # It lists the two cards in the other order.
    assert vendor.monitored(2) == [1 - number for number in visible_devices]
    refusal = vendor.unusable()
    if visible_devices:
        assert refusal is None
    else:
        assert refusal is not None
        assert all(f"{name}={value!r}" in refusal.why for name, value in variables.items())


@pytest.mark.parametrize("vendor", [Amd(), Hygon()])
def test_unique_id_in_variables_has_16_digits(
    vendor: RocmVendor, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime writes an id with its leading zeros, here one: GPU-0a2b3c4d5e6f7081.

    BuildDeviceUuidList of src/core/runtime/amd_filter_device.cpp in
    https://github.com/ROCm/ROCR-Runtime, 2026-11-29.
    """
    # Device 0 has an id of 16 digits, device 1 the one that begins with a zero. ``node`` is what
    # the kernel knows of a device: the number of its file in /dev/dri and of its bus, and the id.
    set_torch_build(monkeypatch, hip="6.3")
    for number, unique_id in ((1, 0x92A3B4C5D6E7F801), (2, 0x0A2B3C4D5E6F7081)):
        node = {"minor": 127 + number, "bus": number, "unique_id": unique_id}
        add_kfd_node(machine / "root", number, vendor=vendor.pci_vendor, **node)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "GPU-0a2b3c4d5e6f7081")
    assert vendor.list_visible() == [1]


@pytest.mark.parametrize(
    # The beginning of the file: its size in two bytes, then the version of its form.
    ("metrics", "is_reported"),
    [
        (b"\x80\0\x02\x04", False),  # 2.4
        (b"\x08\1\x03\0", False),  # 3.0
        (b"\x78\0\x01\x06", True),  # 1.6
        (b"", True),
        (None, True),  # no such file, as with an older kernel
    ],
)
def test_integrated_graphics_beside_another_torch_are_not_reported_as_unused(
    two_mi100: Path, monkeypatch: pytest.MonkeyPatch, metrics: bytes | None, is_reported: bool
) -> None:
    """The version in ``gpu_metrics`` tells graphics in a processor from devices to train on.

    In the kernel's header of this file, graphics in a processor have the versions 2.x and 3.x. All
    other devices have 1.x, also the MI300A, which shares its package with a processor. A device
    whose version is unknown counts as one to train on.
    """
    bus = two_mi100 / "root/sys/bus/pci/devices"
    for address in ("0000:83:00.0", "0000:a3:00.0"):
        if metrics is not None:
            (bus / address / "gpu_metrics").write_bytes(metrics)
    assert (Amd().count(), Amd().unusable()) == (2, None)  # with a torch for AMD's devices
    set_torch_build(monkeypatch, cuda="13.0")
    assert Amd().count() == 0
    assert (Amd().unusable() is not None) is is_reported
    (bus / "0000:83:00.0/gpu_metrics").write_bytes(b"\x78\0\x01\x06")  # now a discrete card
    assert Amd().unusable() is not None


@pytest.mark.parametrize(
    "cards",
    [
        # As hy-smi reports BW cards: the id is a serial number unknown to the kernel.
        [
            {"Unique ID": "TCA24620040801", "PCI Bus": "0000:36:00.0 --> SN: 1 --> OAM ID: 2"},
            {"Unique ID": "TAP34123070901", "PCI Bus": "0000:09:00.0 --> SN: 1 --> OAM ID: 1"},
        ],
        [{"Unique ID": "0x36"}, {"Unique ID": "0x9"}],
        [{"Unique ID": "0x0000000000000036"}, {"Unique ID": "0x0000000000000009"}],
        [{"PCI Bus": "0000:36:00.0"}, {"PCI Bus": "0000:09:00.0"}],
    ],
)
def test_address_or_id_identifies_a_device(
    machine: Path, monkeypatch: pytest.MonkeyPatch, cards: list[dict[str, str]]
) -> None:
    """Ranks have the devices in the order of the kernel, 09 and 36; the tool lists 36 first.

    ``add_kfd_node`` adds a device to the kernel's list, with the number of its bus (0x09 or 0x36),
    the same number as its id, and a file in /dev/dri. ``monitored(2)`` has, for each of two ranks,
    the number that the tool gives the rank's device: 09 is its card 1.
    """
    set_torch_build(monkeypatch, hip="6.3")
    for number, bus in ((1, 0x09), (2, 0x36)):
        node = {"minor": 127 + number, "bus": bus, "unique_id": bus}
        add_kfd_node(machine / "root", number, vendor=HYGON, **node)
    output = json.dumps({f"card{number}": card for number, card in enumerate(cards)})
    install_tool(machine / "bin", "hy-smi", f"echo {shlex.quote(output)}")
    assert Hygon().monitored(2) == [1, 0]


def test_tool_is_asked_for_names_once(machine: Path) -> None:
    """Each reading asks the tool for values anew, but only the first one for names.

    The tool is a script that prints two of the outputs in the folder ``RECORDED``: "metric" has the
    values, "static" the names of cards. It writes its arguments to the file ``calls``.
    """
    folder = RECORDED / "amd-smi"
    calls = machine / "calls"
    metric = shlex.quote(str(folder / "6.3-metric-mi300x.documentation.json"))
    static = shlex.quote(str(folder / "7-static-mi300x.json"))
    install_tool(
        machine / "bin",
        "amd-smi",
        f'echo "$*" >> {calls}; case $1 in metric) cat {metric};; static) cat {static};; esac',
    )
    monitor = Amd().monitor()
    assert monitor.name == "amd-smi"
    # The values are those of the two recorded outputs.
    first, second = monitor.read()
    assert (first.name, first.uuid) == ("AMD Instinct MI300X", "4d5e6f708192a3b4 0000:83:00.0")
    assert (first.energy_j, first.throttle_reasons) == (12345678.901, ())
    # The recording of ``static`` has one card, that of ``metric`` two.
    assert (second.name, second.uuid, second.power_w) == (None, None, 742.0)
    monitor.read()
    monitor.close()
    subcommands = [line.split()[0] for line in calls.read_text().splitlines()]
    assert subcommands == ["metric", "static", "metric"]


def test_hygon_reads_json_and_the_newer_modules_version(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tool, hy-smi, prints an output of ``RECORDED``, in which the card's name is "DCU xxxx".
    # The id there is that of the card that is added to KFD, the kernel's list of devices.
    root = machine / "root"
    set_torch_build(monkeypatch, hip="6.3")
    add_kfd_node(root, 1, vendor=HYGON, minor=128, bus=0x09, unique_id=0x5E6F708192A3B4C5)
    write_text_file(root / "sys/module/hydcu/version", "6.3.31\n")
    install_tool(
        machine / "bin", "hy-smi", make_print_command(RECORDED / "hy-smi/24.04.3-k100ai.json")
    )
    vendor = Hygon()
    assert vendor.product_names() == ["DCU xxxx"]
    assert vendor.monitored(1) == [0]  # the tool's number of the device of the only rank
    assert vendor.driver_version() == "6.3.31"
    # "hydcu" and "hycu" are the older and the newer name of the kernel module.
    # With the newer kernel module beside it, its version counts.
    write_text_file(root / "sys/module/hycu/version", "6.3.40\n")
    assert vendor.driver_version() == "6.3.40"
