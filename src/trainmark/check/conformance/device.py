"""Check a vendor and its device: members, types, keys, and no import of torch while planning.

``protocols.Vendor`` and ``protocols.Device`` define what is required. A package that offers a
vendor calls these checks from its own tests::

    def test_my_vendor():
        assert vendor_faults(Npu()) == []
        assert device_faults(Npu()) == []
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainmark.check.conformance.monitor import reading_faults
from trainmark.protocols import (
    DESCRIBE_KEYS,
    PRECISION_KEYS,
    Condition,
    Device,
    Diagnoses,
    Examined,
    Located,
    MatmulRate,
    MemoryUse,
    Monitor,
    MonitorFault,
    Occupant,
    Refusal,
    Vendor,
    missing_members,
)
from trainmark.spec import RankMemory, Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SIZE = 64  # of the timed matmuls: large enough to be measurable on any device
_WITHOUT_TORCH = """
import importlib, json, sys
from trainmark.protocols import MonitorFault
from trainmark.spec import Recipe
module, name = sys.argv[1:]
vendor = getattr(importlib.import_module(module), name)()
vendor.count(), vendor.product_names(), vendor.rank_memory(1), vendor.refuse(Recipe(), 1)
vendor.driver_version(), vendor.monitored(1)
for name, given in (("unusable", []), ("occupants", [1]), ("conditions", [1]), ("numa_node", [0])):
    if hasattr(vendor, name):
        getattr(vendor, name)(*given)
try:
    monitor = vendor.monitor()
    if monitor is not None:
        monitor.read(), monitor.close()
except MonitorFault:
    pass
print(json.dumps("torch" in sys.modules))
"""


@dataclass(slots=True)
class _Faults:
    found: list[str] = field(default_factory=list)

    def unless(self, right: bool, fault: str) -> None:
        if not right:
            self.found.append(fault)

    def answer(self, name: str, ask: Callable[[], Any]) -> Any:
        """Return the result of ``ask``; add a fault and return None if it raises."""
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - a foreign vendor may raise anything
            self.found.append(f"{name} raised {type(error).__name__}: {error}")
            return None


def vendor_faults(vendor: Vendor) -> list[str]:
    """Return what is wrong with ``vendor`` as planning uses it; no device is needed."""
    faults = _Faults([f"{name} is missing" for name in missing_members(vendor, Vendor)])
    if faults.found:
        return faults.found
    for name in ("name", "torch_type", "collective_backend"):
        value = getattr(vendor, name)
        faults.unless(isinstance(value, str) and value != "", f"{name} is {value!r}, not a word")
    names = vendor.recorded_variables
    words = isinstance(names, tuple) and all(isinstance(name, str) for name in names)
    faults.unless(words, f"recorded_variables is {names!r}, not a tuple of names")
    hides = vendor.visible_devices
    fault = f"visible_devices is {hides!r}, not one of recorded_variables"
    faults.unless(hides is None or (words and hides in names), fault)
    faults.unless(isinstance(vendor.counts_cores, bool), "counts_cores is neither True nor False")
    _check_devices(vendor, faults)
    driver = faults.answer("driver_version()", vendor.driver_version)
    faults.unless(driver is None or isinstance(driver, str), f"driver_version() is {driver!r}")
    memory = faults.answer("rank_memory(1)", lambda: vendor.rank_memory(1))
    faults.unless(isinstance(memory, RankMemory | None), "rank_memory(1) is no RankMemory")
    for precision in ("fp32", "tf32", "fp16", "bf16"):
        recipe = Recipe(precision=precision)
        refusal = faults.answer(f"refuse({precision})", lambda r=recipe: vendor.refuse(r, 1))  # type: ignore[misc]
        is_one = isinstance(refusal, Refusal) and all(refusal)
        faults.unless(refusal is None or is_one, f"refuse({precision}) is no Refusal with words")
    _check_monitor(vendor, faults)
    if isinstance(vendor, Diagnoses):
        _check_diagnoses(vendor, faults)
    if isinstance(vendor, Located):
        node = faults.answer("numa_node(0)", lambda: vendor.numa_node(0))
        faults.unless(_is_whole(node) or node is None, f"numa_node(0) is {node!r}, not a node")
    if isinstance(vendor, Examined):
        found = faults.answer("conditions(1)", lambda: vendor.conditions(1))
        listed = isinstance(found, list | tuple) and all(isinstance(x, Condition) for x in found)
        faults.unless(listed, f"conditions(1) is {found!r}, not a list of Condition")
    _check_without_torch(vendor, faults)
    return faults.found


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_monitor(vendor: Vendor, faults: _Faults) -> None:
    hides, recorded = vendor.visible_devices, vendor.recorded_variables
    right = hides is None or (isinstance(recorded, tuple) and hides in recorded)
    faults.unless(right, f"visible_devices is {hides!r}, which is none of recorded_variables")
    count = 1 if vendor.counts_cores else faults.answer("count()", vendor.count) or 0
    found = faults.answer(f"monitored({count})", lambda: vendor.monitored(count))
    listed = isinstance(found, list) and all(_is_whole(index) for index in found)
    faults.unless(listed, f"monitored({count}) is {found!r}, not a list of numbers")
    if listed:
        fault = f"monitored({count}) is {found!r}, not a number for each device or nothing"
        faults.unless(len(found) in (0, count), fault)
    monitor = faults.answer("monitor()", lambda: _monitor(vendor))
    missing = [] if monitor is None else missing_members(monitor, Monitor)
    faults.found += [f"monitor() lacks {name}" for name in missing]
    if monitor is not None and not missing:
        told = faults.answer("monitor().read()", lambda: reading_faults(monitor, found))
        faults.found += told or ()
        faults.answer("monitor().close()", monitor.close)


def _monitor(vendor: Vendor) -> Monitor | None:
    """Return the vendor's monitor; None also if it is not installed here, which is no fault."""
    with suppress(MonitorFault):
        return vendor.monitor()
    return None


def _check_diagnoses(vendor: Diagnoses, faults: _Faults) -> None:
    why = faults.answer("unusable()", vendor.unusable)
    is_one = isinstance(why, Refusal) and all(why)
    faults.unless(why is None or is_one, "unusable() is no Refusal with words")
    found = faults.answer("occupants(1)", lambda: vendor.occupants(1))
    listed = isinstance(found, list) and all(isinstance(one, Occupant) for one in found)
    faults.unless(listed, f"occupants(1) is {found!r}, not a list of Occupant")


def _check_devices(vendor: Vendor, faults: _Faults) -> None:
    count = faults.answer("count()", vendor.count)
    names = faults.answer("product_names()", vendor.product_names)
    if count is None or names is None:
        return
    whole = _is_whole(count)
    faults.unless(whole, f"count() is {count!r}, not a whole number of devices")
    listed = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
    faults.unless(listed, f"product_names() is {names!r}, not a list of names")
    if whole and listed and not vendor.counts_cores:
        fault = f"count() is {count}, but product_names() has {len(names)}"
        faults.unless(len(names) == count, fault)


def _check_without_torch(vendor: Vendor, faults: _Faults) -> None:
    """Plan in a separate process and check that torch was not imported there."""
    kind = type(vendor)
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TORCH, kind.__module__, kind.__qualname__],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        name = f"{kind.__module__}:{kind.__qualname__}"
        faults.found.append(f"{name} cannot be used for planning in a separate process: {last[0]}")
    else:
        faults.unless(not json.loads(done.stdout), "planning imports torch")


def device_faults(vendor: Vendor) -> list[str]:
    """Return what is wrong with the first device of ``vendor``, which must be present.

    Runs work on it: small matmuls, a measured rate, a copy.
    """
    import torch

    faults = _Faults()
    device: Device | None = faults.answer("open(0, 1)", lambda: vendor.open(0, 1))
    if device is None:
        return faults.found
    faults.found += [f"{name} is missing" for name in missing_members(device, Device)]
    if faults.found:
        return faults.found
    for name in ("name", "torch_type"):
        same = getattr(device, name) == getattr(vendor, name)
        faults.unless(same, f"the device's {name} is not the vendor's")
    flags = faults.answer("set_precision(fp32)", lambda: device.set_precision("fp32"))
    _check_keys("set_precision(fp32)", flags, PRECISION_KEYS, faults)
    if isinstance(flags, dict):
        faults.unless(not flags.get("tf32"), "set_precision(fp32) leaves TF32 on")
    told = faults.answer("describe()", device.describe)
    _check_keys("describe()", told, DESCRIBE_KEYS, faults)
    if isinstance(told, dict) and "vendor" in told:
        fault = f"describe() has the vendor {told['vendor']!r}, not {vendor.name!r}"
        faults.unless(told["vendor"] == vendor.name, fault)
    faults.answer("timing", lambda: _check_time(device, faults))
    losses = [device.place(torch.tensor(value)) for value in (1.5, -2.0)]
    read = faults.answer("read(losses)", lambda: device.read(losses))
    faults.unless(read == [1.5, -2.0], f"read(losses) is {read!r} of [1.5, -2.0]")
    faults.answer("pin(tensor) in a thread", lambda: _check_pinned_copy(device, faults))
    memory = faults.answer("memory()", device.memory)
    scoped = isinstance(memory, MemoryUse) and memory.scope in ("device", "process")
    faults.unless(scoped, f"memory() is {memory!r}")
    matmul = faults.answer("matmul_rate(fp32)", lambda: device.matmul_rate("fp32"))
    timed = isinstance(matmul, MatmulRate) and matmul.flops_per_second > 0
    faults.unless(timed, f"matmul_rate(fp32) is {matmul!r}, not a rate")
    rate = faults.answer("copy_bytes_per_second()", device.copy_bytes_per_second)
    right = isinstance(rate, float) and rate > 0
    faults.unless(right, f"copy_bytes_per_second() is {rate!r}, not a rate")
    return faults.found


def _check_pinned_copy(device: Device, faults: _Faults) -> None:
    """Pin in another thread, as reading ahead does, and copy from there."""
    import torch

    host = torch.arange(6.0).reshape(2, 3)
    with ThreadPoolExecutor(1) as thread:
        pinned = thread.submit(device.pin, host).result()
    faults.unless(pinned.device.type == "cpu", f"pin(tensor) is on {pinned.device}, not the host")
    moved = device.place(pinned)
    fault = f"place(pin(tensor)) is on {moved.device}, not on {device.torch_type}"
    faults.unless(moved.device.type == device.torch_type, fault)
    del pinned  # its memory may be used again only after the copy
    read = device.read(list(moved.flatten()))
    faults.unless(read == host.flatten().tolist(), "place(pin(tensor)) has other values")


def _check_keys(name: str, value: Any, keys: Iterable[str], faults: _Faults) -> None:
    if not isinstance(value, dict):
        faults.found.append(f"{name} is {value!r}, not a dict")
        return
    faults.found += [f"{name} lacks the key {key}" for key in keys if key not in value]
    faults.answer(f"{name} as JSON", lambda: json.dumps(value, allow_nan=False))


def _check_time(device: Device, faults: _Faults) -> None:
    """Time two pieces of work by marks: more work takes longer, and time is whole nanoseconds."""
    import torch

    square = device.place(torch.rand(_SIZE, _SIZE))

    def timed(products: int) -> int:
        nonlocal square
        device.synchronize()
        start = device.mark()
        for _ in range(products):
            square = square @ square / _SIZE
        end = device.mark()
        device.synchronize()
        return device.elapsed_ns(start, end)

    # The shortest of several: another process may have had the core meanwhile.
    elapsed = [min(timed(products) for _ in range(5)) for products in (0, 500)]
    faults.unless(all(isinstance(ns, int) and ns >= 0 for ns in elapsed), f"elapsed_ns {elapsed}")
    faults.unless(elapsed[0] < elapsed[1], "elapsed_ns does not grow with the work between marks")
