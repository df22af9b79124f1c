"""Check a vendor and its device: members, types, keys, values.

``protocols.Vendor`` and ``protocols.Device`` define what is required. A package that offers a
vendor calls these checks from its own tests::

    def test_my_vendor():
        assert vendor_faults(Npu()) == []
        assert device_faults(Npu()) == []
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args

from annotated_types import Ge, Len
from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError

from trainmark.protocols import (
    DESCRIBE_KEYS,
    PRECISION_KEYS,
    Device,
    DeviceSample,
    MatmulRate,
    MemoryUse,
    Monitor,
    MonitorFault,
    Occupant,
    Refusal,
    Vendor,
    missing_members,
)
from trainmark.recipe import Precision, Recipe
from trainmark.spec import RankMemory
from trainmark.validation import find_first_misfit

if TYPE_CHECKING:
    from collections.abc import Callable

_Text: TypeAlias = Annotated[str, Len(1)]
_Count: TypeAlias = Annotated[int, Ge(0)]
_Json: TypeAlias = dict[str, JsonValue]
# Methods that are called if the object has them: their arguments, and the type of the result.
_Calls: TypeAlias = dict[str, tuple[tuple[Any, ...], Any]]
_VENDOR_CALLS: _Calls = {
    "count": ((), _Count),
    "product_names": ((), list[_Text]),
    "driver_version": ((), str | None),
    "rank_memory": ((1,), RankMemory | None),
    "unusable": ((), Refusal | None),
    "occupants": ((1,), list[Occupant]),
}
_DEVICE_CALLS: _Calls = {
    "set_precision": (("fp32",), _Json),
    "describe": ((), _Json),
    "memory": ((), MemoryUse),
    "matmul_rate": (("fp32",), MatmulRate),
    "copy_bytes_per_second": ((), float),
}
_REQUIRED_KEYS = {"set_precision": PRECISION_KEYS, "describe": DESCRIBE_KEYS}


def _explain_misfit(value: Any, kind: Any) -> str:
    """Return the rule that ``value`` breaks as a value of a type; empty: it fits."""
    config = ConfigDict(strict=True, allow_inf_nan=False, revalidate_instances="always")
    try:
        TypeAdapter(tuple[kind], config=config).validate_python((value,))
    except ValidationError as error:
        return find_first_misfit(error).rule
    return ""


class _Faults(list[str]):
    """Faults of a vendor or device, in the order in which they were found."""

    def add_unless(self, is_right: bool, fault: str) -> None:
        if not is_right:
            self.append(fault)

    def call(self, name: str, ask: Callable[[], Any], kind: Any = Any) -> Any:
        """Return the result of ``ask``; if it raises or has another type, add a fault.

        A ``MonitorFault`` is not a fault: the tool is not installed here, or does not answer now.

        Args:
            name: of what is called, for the fault.
            kind: type of the result.

        Returns:
            None if there is no result of this type.
        """
        try:
            value = ask()
        except MonitorFault:
            return None
        except Exception as error:  # noqa: BLE001 - a foreign vendor may raise anything
            self.append(f"{name} raised {type(error).__name__}: {error}")
            return None
        if _explain_misfit(value, kind):
            self.append(f"{name} is {value!r}, not {getattr(kind, '__name__', kind)}")
            return None
        return value

    def call_all(self, asked: object, questions: _Calls) -> dict[str, Any]:
        """Return the results of methods by their names; None: it has another type."""
        return {
            name: self.call(
                f"{name}({', '.join(map(str, given))})",
                partial(getattr(asked, name), *given),
                kind,
            )
            for name, (given, kind) in questions.items()
            if hasattr(asked, name)
        }


def vendor_faults(vendor: Vendor) -> list[str]:
    """Return what is wrong with ``vendor`` as planning uses it; no device is needed."""
    faults = _Faults(f"{name} is missing" for name in missing_members(vendor, Vendor))
    if faults:
        return faults
    hides = vendor.visible_devices
    fault = f"visible_devices is {hides!r}, which is none of recorded_variables"
    faults.add_unless(hides is None or hides in vendor.recorded_variables, fault)
    answers = faults.call_all(vendor, _VENDOR_CALLS)
    for precision in get_args(Precision):
        ask = partial(vendor.refuse, Recipe(precision=precision), 1)
        faults.call(f"refuse({precision})", ask, Refusal | None)
    count, names = answers["count"] or 0, answers["product_names"]
    if names is not None and not vendor.counts_cores:
        fault = f"count() is {count}, but product_names() has {len(names)}"
        faults.add_unless(len(names) == count, fault)
    _check_monitor(vendor, 1 if vendor.counts_cores else count, faults)
    return faults


def _check_monitor(vendor: Vendor, count: int, faults: _Faults) -> None:
    """Check one reading, and the numbers that the devices have in it."""
    asked = f"monitored({count})"
    numbers = faults.call(asked, partial(vendor.monitored, count), list[_Count]) or []
    fault = f"{asked} is {numbers!r}, not a number for each device or nothing"
    faults.add_unless(len(numbers) in (0, count), fault)
    monitor: Monitor | None = faults.call("monitor()", vendor.monitor)
    samples = None if monitor is None else faults.call("monitor().read()", monitor.read)
    if monitor is None or samples is None:
        return
    monitor.close()
    faults += [fault for sample in samples for fault in sample_faults(sample)]
    indices = [sample.index for sample in samples]
    sentence = f"{asked} is {numbers}, and read() tells {indices}"
    faults.add_unless(set(numbers) <= set(indices), sentence)


def sample_faults(sample: DeviceSample) -> list[str]:
    """Return what is wrong with a reading of one device: values of another type or impossible."""
    misfits = _explain_misfit(sample, DeviceSample)
    return [f"{sample!r} is no DeviceSample: {misfits}"] if misfits else []


def device_faults(vendor: Vendor) -> list[str]:
    """Return what is wrong with the answers of the first device of ``vendor``, which must be there.

    Whether it computes, copies and tells the time as it should, ``trainmark check toy`` finds.
    """
    faults = _Faults()
    device: Device = faults.call("open(0, 1)", lambda: vendor.open(0, 1))
    faults += [] if faults else [f"{name} is missing" for name in missing_members(device, Device)]
    if faults:
        return faults
    for name in ("name", "torch_type"):
        same = getattr(device, name) == getattr(vendor, name)
        faults.add_unless(same, f"the device's {name} is not the vendor's")
    answers = faults.call_all(device, _DEVICE_CALLS)
    for name, keys in _REQUIRED_KEYS.items():
        answer = answers[name] or {}
        faults += [f"{name} lacks the key {key}" for key in keys if key not in answer]
    faults.add_unless(not (answers["set_precision"] or {}).get("tf32"), "fp32 leaves TF32 on")
    return faults
