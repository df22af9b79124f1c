"""Kunlunxin's vendor on machines made of files, with a tool that prints what was published."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmark.devices import torch_vendor
from trainmark.devices.vendors.kunlunxin import Kunlunxin
from vendor_machines import machine, pci_card, printing, tool, write

__all__ = ["machine"]

RECORDED = Path(__file__).parent / "recorded"
P800 = RECORDED / "xpu-smi-kunlunxin/5-p800.txt"


@pytest.fixture
def two_p800(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = machine / "root"
    for number in (0, 1):
        write(root / f"dev/xpu{number}")
        pci_card(root, f"0000:0{3 + 2 * number}:00.0", vendor=0x1D22, kind="0x120000", node=number)
    write(root / "dev/xpuctrl")
    write(root / "sys/module/kunlun/version", "5.0.21\n")
    tool(machine / "bin", "xpu-smi", printing(P800))
    monkeypatch.setattr(torch_vendor, "find_spec", lambda name: name)
    return machine


def test_two_cards_are_found_read_and_located(two_p800: Path) -> None:
    vendor = Kunlunxin()
    assert vendor.count() == 2
    assert vendor.product_names() == ["P800 OAM"] * 2
    assert vendor.monitored(2) == [0, 1]
    assert [vendor.numa_node(rank) for rank in range(3)] == [0, 1, None]
    memory = vendor.rank_memory(1)
    assert memory is not None
    assert memory.rank_bytes == (98304 - 90440) << 20
    assert vendor.driver_version() == "5.0.21"


@pytest.mark.parametrize(
    ("variables", "left"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"XPU_VISIBLE_DEVICES": "1"}, [1]),
        ({"XPU_VISIBLE_DEVICES": "1,0", "CUDA_VISIBLE_DEVICES": "0"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, []),
    ],
)
def test_both_variables_hide_devices(
    two_p800: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], left: list[int]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Kunlunxin().visible() == left
    assert Kunlunxin().monitored(2) == left
