"""Intel's vendor on machines made of files, with a tool that prints what was published."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from support.vendor_machines import add_pci_card, install_tool, machine, set_torch_build
from trainmark.devices.vendors.intel import Intel

__all__ = ["machine"]

RECORDED = Path(__file__).parent / "recorded/xpu-smi-intel"
DUMP = shlex.quote(str(RECORDED / "1.2.39-dump-max1550.csv"))
DUMP_2 = shlex.quote(str(RECORDED / "2.0-dump.documentation.csv"))
DISCOVERY = shlex.quote(str(RECORDED / "1.3-discovery.documentation.csv"))
# Version 1 of the tool knows -n and not --number, version 2 the other way round.
VERSION_1 = (
    f'case "$*" in discovery*) cat {DISCOVERY};; *--number*) exit 109;; dump*) cat {DUMP};; esac'
)
VERSION_2 = (
    f'case "$*" in discovery*) cat {DISCOVERY};; *--number*) cat {DUMP_2};; *) exit 109;; esac'
)


@pytest.fixture
def two_max(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a simulated machine with two cards of two tiles each, and graphics in the processor.

    The folder ``root`` of the machine has the files of its kernel, ``bin`` its programs. 0x8086 is
    the number of Intel on the PCI bus. ``VERSION_1`` is a script that answers as xpu-smi 1 did, by
    recorded outputs. The co-processor and the processor's graphics are no devices to count;
    "20250302" is the version of the torch for Intel.
    """
    root = machine / "root"
    add_pci_card(root, "0000:00:02.0", vendor=0x8086, driver="i915", minor=130)
    for index, address in enumerate(("0000:18:00.0", "0000:3a:00.0")):
        card = add_pci_card(
            root,
            address,
            vendor=0x8086,
            kind="0x038000",  # a display controller that drives no screen
            driver="xe",
            minor=128 + index,
        )
        for tile in (0, 1):
            (card / f"tile{tile}").mkdir()
    # A co-processor of Intel that compresses data.
    add_pci_card(root, "0000:6a:00.0", vendor=0x8086, kind="0x0b4000", driver="4xxx")
    install_tool(machine / "bin", "xpu-smi", VERSION_1)
    set_torch_build(monkeypatch, xpu="20250302")
    return machine


def test_tiles_are_devices_and_their_cards_are_read(two_max: Path) -> None:
    # ``two_max`` is a machine of two cards with two tiles each. Its monitoring tool, xpu-smi, is a
    # script that prints recorded answers; that to ``discovery`` has the name of the cards.
    vendor = Intel()
    assert vendor.count() == 4  # a device for each tile
    assert vendor.product_names() == ["Intel(R) Data Center GPU Max 1550"] * 4
    # Of four ranks, one on each tile, the number of the tile's card: xpu-smi counts cards.
    assert vendor.monitored(4) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    # ``mask`` is the value of Intel's variable that hides devices, ``visible_devices`` the numbers
    # of those that are left. Without a mask all four are; "3,0" names two, but not their order.
    # "0.1" is the form for tiles of cards, which this program does not read; there is no device 4.
    ("mask", "visible_devices"),
    [("", [0, 1, 2, 3]), ("2", [2]), ("3,0", [0, 3]), ("0.1", []), ("4", [])],
)
def test_device_mask_selects_but_does_not_reorder(
    two_max: Path, monkeypatch: pytest.MonkeyPatch, mask: str, visible_devices: list[int]
) -> None:
    # ``two_max`` is a machine of two cards with two tiles each: four devices, numbered 0 to 3.
    monkeypatch.setenv("ZE_AFFINITY_MASK", mask)
    assert Intel().list_visible() == visible_devices
    # Of (up to) four ranks, the number of the card that each one's device is on, as the tool for
    # monitoring, xpu-smi, counts: it lists cards, of two tiles each.
    assert Intel().monitored(4) == [number // 2 for number in visible_devices]
    # ``unusable`` says why no device can be used; None: some can.
    assert (Intel().unusable() is None) is bool(visible_devices)


def test_integrated_graphics_are_used_without_a_discrete_card(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``machine`` has no cards. This one is at the address of a processor's graphics, 00:02.0, with
    # their driver i915; its two "gt" are no tiles, so that it is one device. 0x8086 is the number
    # of Intel on the PCI bus, "20250302" a version of the torch for Intel.
    set_torch_build(monkeypatch, xpu="20250302")
    card = add_pci_card(machine / "root", "0000:00:02.0", vendor=0x8086, driver="i915", minor=128)
    for gt in ("gt0", "gt1"):  # the second one decodes videos
        (card / f"drm/card0/gt/{gt}").mkdir(parents=True)
    assert Intel().count() == 1
    assert Intel().product_names() == ["unknown"]  # no tool is here that would name it


@pytest.mark.parametrize(
    # Utilization (%), power (W), clock (MHz), used memory (bytes) and temperature (C) of each card,
    # as in the recorded output of each version of the tool; None: it lacks the value.
    ("shell", "readings"),
    [
        (VERSION_1, [(None, 281.13, 1600.0, None, 35.5), (None, 286.48, 1600.0, None, 38.5)]),
        (
            VERSION_2,
            [(97.5, 118.25, 2400.0, 10240 << 20, 61.0), (0.0, 18.5, 300.0, 24 << 20, 38.0)],
        ),
    ],
)
def test_readings_of_each_card_are_joined_with_its_memory(
    two_max: Path, shell: str, readings: list[tuple[float | None, ...]]
) -> None:
    """The monitoring tool, xpu-smi, reports readings and, by ``discovery``, the cards' memory.

    ``two_max`` is a machine with two cards. The tool there is a script with the text ``shell``,
    which prints recorded outputs of version 1 or 2.
    """
    install_tool(two_max / "bin", "xpu-smi", shell)
    monitor = Intel().monitor()
    assert monitor.name == "xpu-smi"
    for _ in range(2):  # the second time the version of the tool is known
        samples = monitor.read()[:2]  # a recorded output may have more cards than the machine
        assert [
            (
                sample.utilization_percent,
                sample.power_w,
                sample.clock_mhz,
                sample.memory_used_bytes,
                sample.temperature_c,
            )
            for sample in samples
        ] == readings
        # 128 GiB of each card, as the recorded answer to ``discovery`` has it.
        assert [sample.memory_total_bytes for sample in samples] == [128 << 30] * 2
