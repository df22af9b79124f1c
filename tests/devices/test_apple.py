"""The Apple vendor on a simulated Mac, with recorded outputs and a fake torch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmark.conformance.vendor_check import vendor_faults
from trainmark.devices import torch_vendor
from trainmark.devices.vendors import apple
from trainmark.devices.vendors.apple import Apple
from trainmark.protocols import MonitorFault
from trainmark.recipe import Recipe

RECORDED = Path(__file__).parent / "recorded" / "powermetrics"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Simulate a Mac with an M3 Max and a user who is not root; return the folder of its tools."""
    mac = SimpleNamespace(machine=lambda: "arm64", mac_ver=lambda: ("15.5", ("", "", ""), "arm64"))
    monkeypatch.setattr(apple, "platform", mac)
    monkeypatch.setattr(apple, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(apple.os, "geteuid", lambda: 501)  # the first user of a Mac; 0 is root
    put_tool(tmp_path, "sysctl", "echo Apple M3 Max")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def put_tool(folder: Path, name: str, script: str) -> None:
    """Write a program ``name`` that runs these commands of the shell."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_no_device_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apple, "sys", SimpleNamespace(platform="linux"))
    # ``unusable`` would say why devices of the machine cannot be used: there are none.
    # ``monitored`` would have a monitor's number for each rank.
    vendor = Apple()
    assert (vendor.count(), vendor.product_names(), vendor.monitor()) == (0, [], None)
    assert (vendor.unusable(), vendor.driver_version(), vendor.monitored(1)) == (None, None, [])


@pytest.mark.usefixtures("machine")
def test_a_mac_has_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    # ``machine`` simulates a Mac with an M3 Max and macOS 15.5, whose user is not root. ``refuse``
    # returns why a recipe cannot run, None if it can. ``vendor_faults`` lists broken rules of the
    # protocol ``Vendor``. ``rank_memory`` is the memory that a rank can use, None if it is not
    # known before the device is opened.
    vendor = Apple()
    assert (vendor.count(), vendor.product_names()) == (1, ["Apple M3 Max"])
    assert (vendor.driver_version(), vendor.rank_memory(1)) == ("macOS 15.5", None)
    assert vendor.monitor() is None  # powermetrics is for root only
    assert vendor.refuse(Recipe(precision="bf16"), nproc=1) is None
    assert vendor.refuse(Recipe(precision="tf32"), nproc=1) is not None
    assert vendor_faults(vendor) == []
    monkeypatch.setattr(torch_vendor, "find_spec", lambda name: None)  # torch is not installed
    assert vendor.count() == 0
    assert vendor.unusable() is not None


def test_root_reads_device_telemetry(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # ``RECORDED`` is a folder with two outputs of powermetrics; the script in ``machine``, a
    # folder on the path, prints one. The user 0 is root, who may call it.
    put_tool(machine, "powermetrics", f"cat {RECORDED}/24F74.txt")
    monkeypatch.setattr(apple.os, "geteuid", lambda: 0)
    monitor = Apple().monitor()
    assert monitor is not None
    assert monitor.name == "powermetrics"
    # The readings of the recorded output.
    assert [sample.known_fields() for sample in monitor.read()] == [
        {"index": 0, "power_w": 0.006, "utilization_percent": 1.14, "clock_mhz": 338.0}
    ]
    # A message instead of readings.
    put_tool(machine, "powermetrics", "echo 'powermetrics must be invoked as the superuser'")
    with pytest.raises(MonitorFault) as caught:
        monitor.read()
    assert caught.value.kind == "unreadable"
