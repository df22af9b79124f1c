"""Faults of devices, by a vendor whose answers a test chooses."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fake_nvml import FakeCard, put_cards
from machines import Card, Reader, machine, only
from trainmark import devices as registry
from trainmark.check.doctor import devices
from trainmark.check.doctor.examination import examine
from trainmark.devices.torch_build import TorchBuild
from trainmark.devices.vendors import nvidia
from trainmark.devices.vendors.nvidia import Nvidia
from trainmark.errors import EnvironmentFault
from trainmark.protocols import Condition, DeviceSample, MonitorFault, Occupant, Refusal

BUS = "sys/bus/pci/devices/0000:01:00.0"


@pytest.fixture
def vendors(monkeypatch):
    """Let the registry have these vendors and faults."""

    def have(*known, faults=()):
        named = {vendor.name: vendor for vendor in known}
        monkeypatch.setattr(registry, "load_all", lambda: (named, list(faults)))

    return have


def test_too_few_devices_stop_a_run(tmp_path):
    found = only(devices.device(machine(tmp_path, nproc=3)))
    assert (found.severity, found.what) == ("stops", "3 fake devices needed, 2 here")
    assert "--nproc 2" in found.remedy
    cores = machine(tmp_path, vendor=Card(name="cpu"), nproc=3)
    assert only(devices.device(cores)).severity == "fine"  # `cores` says that they compete


def test_cards_that_torch_cannot_drive_are_named(tmp_path, vendors):
    vendors(Card(refusal=Refusal("torch has no code for it", "another torch")))
    found = only(devices.driver(machine(tmp_path)))
    assert (found.severity, found.remedy) == ("spoils", "another torch")
    assert "torch has no code for it" in found.what


def test_a_broken_package_of_a_vendor_is_named(tmp_path, vendors):
    fault = EnvironmentFault("skipped: no count", where="device npu of pack (pack:Npu)")
    vendors(Card(), faults=[fault])
    found = only(devices.driver(machine(tmp_path)))
    assert (found.severity, "skipped: no count" in found.what) == ("spoils", True)
    assert found.remedy


def test_refused_precisions_are_told_with_their_reason(tmp_path):
    subject = machine(tmp_path, vendor=Card(refused=("tf32", "fp16")))
    found = only(devices.precisions(subject))
    assert found.severity == "fine"
    assert found.what == "fp32, bf16; not tf32: no units for tf32; not fp16: no units for fp16"


def test_torch_is_opened_in_a_process_of_its_own(tmp_path):
    started = []

    def tool(argv, *, timeout_s):
        started.append((argv[-2:], timeout_s))
        return 'a warning\n["torch 2.13 opened two", "", {}]\n'

    found = only(devices.torch(machine(tmp_path, tool=tool)))
    assert (found.severity, found.what) == ("fine", "torch 2.13 opened two")
    assert started == [(["fake", "2"], devices.OPENING_S)]


@pytest.mark.parametrize(
    "said",
    ["python: exit code -11: no message", "python: no answer in 40 s"],
)
def test_a_torch_that_crashes_or_hangs_stops_a_run(tmp_path, said):
    def tool(*_, **__):
        raise MonitorFault("failed", said)

    found = only(devices.torch(machine(tmp_path, tool=tool)))
    assert (found.severity, said in found.what) == ("stops", True)


@pytest.mark.parametrize(("precision", "severity"), [("bf16", "stops"), ("fp32", "fine")])
def test_a_precision_that_only_the_open_device_refuses_is_told(tmp_path, precision, severity):
    answer = json.dumps(["opened", "", {"bf16": "emulated"}])
    request = SimpleNamespace(recipe=SimpleNamespace(precision=precision))
    subject = machine(tmp_path, choice=request, tool=lambda *_, **__: answer)
    found = only(devices.torch(subject))
    assert (found.severity, found.what) == (severity, "opened; not bf16: emulated")


def test_processes_on_the_devices_are_named(tmp_path, vendors):
    users = (Occupant("card 0", "python (process 7)", 2 << 30, True),
             Occupant("card 0", "Xorg (process 8)", 1 << 20, False))  # fmt: skip
    card = Card(users=users)
    vendors(card)
    found = list(devices.occupants(machine(tmp_path, vendor=card)))
    assert [one.severity for one in found] == ["spoils", "fine"]
    assert "python (process 7), 2.0 GiB" in found[0].what
    vendors(Card())
    assert only(devices.occupants(machine(tmp_path))).severity == "fine"


def test_the_vendor_s_own_conditions_keep_their_codes(tmp_path):
    states = (
        Condition("ecc", "fine", "on"),
        Condition("power_limit", "spoils", "300 of 700 W", "raise it"),
    )
    subject = machine(tmp_path, vendor=Card(states=states))
    found = examine(subject, [devices.device_state]).checks
    assert found == [replace(one, group="devices") for one in states]


@pytest.mark.parametrize(
    ("reads", "severity", "said"),
    [
        (2, "fine", "card-smi 1.0 reads 2 device(s)"),
        (None, "unknown", "no power"),
        ("hung", "unknown", "hung: no answer"),
        ("absent", "unknown", "absent: no answer"),
    ],
)
def test_the_monitor_is_tried_once(tmp_path, monkeypatch, reads, severity, said):
    closed = []
    monkeypatch.setattr(Reader, "close", lambda self: closed.append(self.name))
    found = only(devices.monitor(machine(tmp_path, vendor=Card(reads=reads))))
    assert (found.severity, said in found.what) == (severity, True)
    assert len(closed) == (reads is not None)


@pytest.mark.parametrize(("busy", "found"), [(None, 1), (10.0, 1), (11.0, 2)])
def test_a_device_that_computes_before_the_run_is_found(tmp_path, monkeypatch, busy, found):
    samples = [DeviceSample(index=i, utilization_percent=busy) for i in (3, 4)]
    monkeypatch.setattr(Reader, "read", lambda _: samples)
    monkeypatch.setattr(Card, "monitored", lambda *_: [4])
    conditions = list(devices.monitor(machine(tmp_path)))
    assert len(conditions) == found
    assert [one.severity for one in conditions[1:]] == ["spoils"] * (found - 1)
    assert all("device 4 is busy 11%" in one.what for one in conditions[1:])


@pytest.fixture
def cuda(monkeypatch):
    """Let torch be built for CUDA, and NVIDIA's library tell these cards."""

    def have(*cards, **more):
        build = TorchBuild("2.13.0+cu130", cuda="13.0")
        monkeypatch.setattr(nvidia, "torch_build", lambda: build)
        put_cards(monkeypatch, *cards, **more)

    return have


def test_faults_of_nvidia_s_cards_come_through(tmp_path, cuda):
    checks = [devices.device, devices.driver, devices.occupants, devices.device_state]
    cuda(FakeCard(), FakeCard(uuid="GPU-2"))
    sound = examine(machine(tmp_path, vendor=Nvidia()), checks)
    assert sound.exit_code == 0
    capped = FakeCard(uuid="GPU-2", limit_mw=300_000, ecc=False, computing={4242: 1 << 30})
    cuda(FakeCard(), capped, names={4242: "/usr/bin/python3"})
    faulty = examine(machine(tmp_path, vendor=Nvidia()), checks).checks
    found = {one.code: one for one in faulty if one.severity != "fine"}
    assert {code: one.severity for code, one in found.items()} == {
        "occupants": "spoils", "power_limit": "spoils", "ecc": "spoils",
    }  # fmt: skip
    assert "python3 (process 4242)" in found["occupants"].what
    assert "card 1" in found["power_limit"].what
