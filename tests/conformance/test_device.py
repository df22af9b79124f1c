"""The check of vendors and devices names each fault, and the list it checks is documented."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainmark.conformance.vendor_check import device_faults, vendor_faults
from trainmark.devices.vendors.cpu import Cpu, CpuDevice
from trainmark.protocols import (
    DESCRIBE_KEYS,
    PRECISION_KEYS,
    Device,
    DeviceSample,
    Diagnoses,
    MatmulRate,
    MemoryUse,
    Monitor,
    Refusal,
    Vendor,
    list_members,
)


class GoodVendor(Cpu):
    """A vendor of two devices, which are the CPU."""

    name = "good"
    counts_cores = False

    def count(self):
        return 2

    def product_names(self):
        return ["Good 1", "Good 1"]

    def open(self, local_rank, ranks_here):
        del local_rank, ranks_here
        return GoodDevice(threads=1)


class GoodDevice(CpuDevice):
    name = "good"

    def matmul_rate(self, precision):
        del precision
        return MatmulRate(flops_per_second=1e9, swing=0.0)

    def copy_bytes_per_second(self):
        return 1e9


@pytest.fixture(autouse=True)
def _torch_as_before():
    """Restore the threads and the precision of matmuls, which devices under test set."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


def make_changed_class(base, **members):
    """Return a class derived from ``base`` whose ``members`` replace those of ``base``."""
    return type("Changed", (base,), members)


def raise_no_tool(*_):
    raise OSError("no tool")


class Reading:
    """A monitor that returns its given reading, or raises it."""

    name = "reading"

    def __init__(self, *samples):
        self.samples, self.closed = samples, False

    def read(self):
        # ``samples`` is the given reading, a sample of each device. An exception to raise may be
        # given in their place.
        if isinstance(self.samples[0], Exception):
            raise self.samples[0]
        return self.samples

    def close(self):
        self.closed = True


GOOD_SAMPLE = DeviceSample(index=0)
WRONG_SAMPLE = DeviceSample(index=0, temperature_c=float("nan"))

# Members that replace those of a good vendor, and the beginning of the fault that is found.
FAULTY_VENDORS = [
    ({"count": lambda _: 3}, "count() is 3, but product_names() has 2"),
    ({"count": raise_no_tool}, "count() raised OSError: no tool"),
    ({"count": lambda _: -1}, "count() is -1, not a valid int: it must be at least 0"),
    (
        {"product_names": lambda _: ["Good 1", ""]},
        "product_names() is ['Good 1', ''], not a valid list: 1: it must be text with 1 or more",
    ),
    (
        {"rank_memory": lambda *_: 5},
        "rank_memory(1) is 5, not a valid RankMemory | None: the value must be of type RankMemory",
    ),
    (
        {"refuse": lambda *_: 5},
        "refuse(fp32) is 5, not a valid Refusal | None: the value must be of type Refusal",
    ),
    # A plain tuple has no fields, by whose names callers read it.
    (
        {"unusable": lambda _: ("why", "fix")},
        "unusable() is ('why', 'fix'), not a valid Refusal | None: the value must be of type "
        "Refusal",
    ),
    (
        {"unusable": lambda _: Refusal(why="why", fix=5)},
        "unusable() is Refusal(why='why', fix=5), not a valid Refusal | None: fix: it must be text",
    ),
    (
        {"occupants": lambda *_: [("Good 1", "python", None, True)]},
        "occupants(1) is [('Good 1', 'python', None, True)], not a valid list: 0: the "
        "value must be of type Occupant",
    ),
    (
        {"visible_devices": "GOOD_DEVICES"},
        "visible_devices is 'GOOD_DEVICES', which is not in recorded_variables",
    ),
    ({"monitored": lambda *_: [0]}, "monitored(2) is [0]: neither empty nor one index per device"),
    ({"monitor": raise_no_tool}, "monitor() raised OSError: no tool"),
    ({"monitor": lambda _: 5}, "monitor().read is missing"),
    (
        {"monitor": lambda _: make_changed_class(Reading, close=raise_no_tool)(GOOD_SAMPLE)},
        "monitor().close() raised OSError: no tool",
    ),
    (
        {"monitor": lambda _: make_changed_class(Reading, read=lambda _: 5)(GOOD_SAMPLE)},
        "monitor().read() is 5, not a valid Sequence: it must be of the type Sequence",
    ),
    (
        {"monitor": lambda _: Reading({"index": 0})},
        "{'index': 0} is not a valid DeviceSample: the value must be of type DeviceSample",
    ),
    (
        {"monitor": lambda _: Reading(WRONG_SAMPLE)},
        f"{WRONG_SAMPLE!r} is not a valid DeviceSample: temperature_c: it must be a finite number",
    ),
    (
        {"monitor": lambda _: Reading(DeviceSample(index=0)), "monitored": lambda *_: [0, 1]},
        "monitored(2) is [0, 1], but read() reports the devices [0]",
    ),
]
FAULTY_DEVICES = [
    ({"name": "other"}, "the name of the device differs from that of the vendor"),
    ({"set_precision": lambda *_: {"tf32": True}}, "fp32 leaves TF32 on"),
    ({"describe": lambda _: {"name": object()}}, "describe() is {'name': <object"),
    (
        {
            "memory": lambda _: MemoryUse(
                allocator_peak_bytes=None, used_bytes=None, total_bytes=None, scope="rank"
            )
        },
        "memory() is MemoryUse(",
    ),
    (
        {"matmul_rate": lambda *_: (1e9, 0.0)},
        "matmul_rate(fp32) is (1000000000.0, 0.0), not a valid MatmulRate: the value must be "
        "of type MatmulRate",
    ),
]


@pytest.mark.parametrize(("members", "fault"), FAULTY_VENDORS)
def test_each_fault_of_a_vendor_is_named(members, fault):
    # ``fault``: how the sentence begins that must be among the faults found in such a vendor.
    # ``members`` replace members of a vendor without faults, by name.
    assert vendor_faults(GoodVendor()) == []
    faults = vendor_faults(make_changed_class(GoodVendor, **members)())
    assert any(sentence.startswith(fault) for sentence in faults), faults


def test_failed_count_is_the_only_fault():
    # Nothing is compared with a number of devices that is not known.
    vendor = make_changed_class(GoodVendor, count=raise_no_tool)()
    assert vendor_faults(vendor) == ["count() raised OSError: no tool"]


def test_monitor_whose_reading_fails_is_closed():
    monitor = Reading(OSError("no answer"))

    faults = vendor_faults(make_changed_class(GoodVendor, monitor=lambda _: monitor)())

    assert faults == ["monitor().read() raised OSError: no answer"]
    assert monitor.closed


@pytest.mark.parametrize(("members", "fault"), FAULTY_DEVICES)
def test_each_fault_of_a_device_is_named(members, fault):
    # ``fault``: how the sentence begins that must be among the faults found in such a device.
    # ``members`` replace members of a device without faults, by name.
    device = make_changed_class(GoodDevice, **members)
    vendor = make_changed_class(GoodVendor, open=lambda *_: device(threads=1))()
    faults = device_faults(vendor)
    assert any(sentence.startswith(fault) for sentence in faults), faults


def test_valid_device_has_no_fault():
    assert device_faults(GoodVendor()) == []
    # A device that cannot be opened is a fault; it is opened as local rank 0 of one rank.
    assert device_faults(make_changed_class(GoodVendor, open=raise_no_tool)()) == [
        "open(0, 1) raised OSError: no tool"
    ]


@pytest.mark.parametrize("page", ["adding-a-device.md", "adding-a-device.zh.md"])
def test_every_required_member_and_key_is_documented(page):
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    protocols = (Vendor, Device, Monitor, DeviceSample, Diagnoses)
    # ``protocols`` are what the author of a device implements or returns. All members but one that
    # is optional.
    required = {name for protocol in protocols for name in list_members(protocol)} - {
        "known_fields"
    }
    # Keys of the dictionaries that ``describe`` and ``set_precision`` return.
    required |= {*DESCRIBE_KEYS, *PRECISION_KEYS}
    required |= {protocol.__name__ for protocol in protocols}
    assert [
        name
        for name in sorted(required)
        if f"`{name}" not in text and f"`protocols.{name}" not in text
    ] == []
    assert "trainmark.conformance.vendor_check" in text
