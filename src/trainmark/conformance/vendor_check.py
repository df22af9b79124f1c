"""Check a vendor and its device: members, types, keys, values.

``protocols.Vendor`` and ``protocols.Device`` define what is required. A package that offers a
vendor calls these checks from its own tests::

    def test_my_vendor():
        assert vendor_faults(Npu()) == []
        assert device_faults(Npu()) == []
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, Union, get_args, get_origin

from annotated_types import Ge, Len
from pydantic import BeforeValidator, ConfigDict, JsonValue, TypeAdapter, ValidationError

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
    list_missing_members,
)
from trainmark.recipe import Precision, Recipe
from trainmark.spec import RankMemory
from trainmark.validation import describe_misfit

if TYPE_CHECKING:
    from collections.abc import Callable


def _require_class(expected_class: type, value: object) -> object:
    """Return ``value`` if it is an object of the class.

    Pydantic accepts a plain tuple for a NamedTuple; but callers read its fields by name.
    """
    if not isinstance(value, expected_class):
        raise ValueError(f"the value must be of type {expected_class.__name__}")
    return value


_Refusal: TypeAlias = Annotated[Refusal, BeforeValidator(partial(_require_class, Refusal))]
_Occupant: TypeAlias = Annotated[Occupant, BeforeValidator(partial(_require_class, Occupant))]
_MatmulRate: TypeAlias = Annotated[MatmulRate, BeforeValidator(partial(_require_class, MatmulRate))]
_Text: TypeAlias = Annotated[str, Len(1)]
_Count: TypeAlias = Annotated[int, Ge(0)]
_Json: TypeAlias = dict[str, JsonValue]
# By name, methods that are called if the object has them: arguments, and the type of the result.
_Calls: TypeAlias = dict[str, tuple[tuple[Any, ...], Any]]
_VENDOR_CALLS: _Calls = {
    "count": ((), _Count),
    "product_names": ((), list[_Text]),
    "driver_version": ((), str | None),
    "rank_memory": ((1,), RankMemory | None),
    "unusable": ((), _Refusal | None),
    "occupants": ((1,), list[_Occupant]),
}
_DEVICE_CALLS: _Calls = {
    "set_precision": (("fp32",), _Json),
    "describe": ((), _Json),
    "memory": ((), MemoryUse),
    "matmul_rate": (("fp32",), _MatmulRate),
    "copy_bytes_per_second": ((), float),
}
_REQUIRED_KEYS = {"set_precision": PRECISION_KEYS, "describe": DESCRIBE_KEYS}


def _explain_misfit(value: Any, expected_type: Any) -> str:
    """Return why ``value`` is not a valid value of a type; empty: it is one.

    If a part of ``value`` is wrong, the text begins with its field, key or position.
    """
    # Strict: values are not converted. By default pydantic does not check the fields of an object
    # that is an instance of the type already, such as a reading; ``always`` makes it do so.
    config = ConfigDict(strict=True, allow_inf_nan=False, revalidate_instances="always")
    # The type is wrapped in a tuple, because pydantic takes no config for a type that has its own,
    # such as a dataclass.
    adapter = TypeAdapter(tuple[expected_type], config=config)
    try:
        adapter.validate_python((value,))
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        misfit = describe_misfit(details)
        rule = misfit.rule
        # ``validation`` describes documents, in which an object of a dataclass is a table of keys.
        if misfit.kind in ("dataclass_type", "dataclass_exact_type"):
            rule = f"the value must be of type {details['ctx']['class_name']}"
        part = misfit.key.removeprefix("0").removeprefix(".")  # 0: the position in the tuple
        return f"{part}: {rule}" if part else rule
    return ""


def _name_type(annotation: Any) -> str:
    """Return a type as a fault shows it: without limits, which the broken rule states.

    Of an optional type that is ``NAME | None``.
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        return _name_type(annotation.__origin__)
    if origin in (Union, UnionType):
        return " | ".join(_name_type(member) for member in get_args(annotation))
    if annotation is type(None):
        return "None"
    return str(getattr(annotation, "__name__", annotation))


class _Faults(list[str]):
    """Faults of a vendor or device, in the order in which they were found."""

    def add_unless(self, is_right: bool, fault: str) -> None:
        """Add a fault if a condition does not hold."""
        if not is_right:
            self.append(fault)

    def call(self, name: str, function: Callable[[], Any], expected_type: Any = Any) -> Any:
        """Call a function; add a fault if it raises or returns another type than it should.

        A ``MonitorFault`` is not a fault: the tool is not installed here, or does not answer now.

        Args:
            name: text of the call, with which a fault begins.
            function: takes no arguments.

        Returns:
            The result; None if there is no result of this type.
        """
        try:
            value = function()
        except MonitorFault:
            return None
        except Exception as error:  # noqa: BLE001 - a foreign vendor may raise anything
            self.append(f"{name} raised {type(error).__name__}: {error}")
            return None
        broken_rule = _explain_misfit(value, expected_type)
        if broken_rule:
            self.append(
                f"{name} is {value!r}, not a valid {_name_type(expected_type)}: {broken_rule}"
            )
            return None
        return value

    def call_all(self, target: object, calls: _Calls) -> dict[str, Any]:
        """Call those methods of ``calls`` that the object ``target`` has.

        Args:
            calls: by the name of a method its arguments and the type of its result; methods that
                the object lacks are left out.

        Returns:
            The results by the name of the method; None: it raised, or returned another type.
        """
        results = {}
        for name, (arguments, expected_type) in calls.items():
            if hasattr(target, name):
                shown_arguments = ", ".join(str(argument) for argument in arguments)
                function = partial(getattr(target, name), *arguments)
                results[name] = self.call(f"{name}({shown_arguments})", function, expected_type)
        return results


def vendor_faults(vendor: Vendor) -> list[str]:
    """Return what is wrong with ``vendor`` as planning uses it; no device is needed."""
    faults = _Faults(f"{name} is missing" for name in list_missing_members(vendor, Vendor))
    if faults:
        return faults
    # The record of a run must show which devices its ranks could see.
    variable = vendor.visible_devices
    is_recorded = variable is None or variable in vendor.recorded_variables
    fault = f"visible_devices is {variable!r}, which is not in recorded_variables"
    faults.add_unless(is_recorded, fault)
    answers = faults.call_all(vendor, _VENDOR_CALLS)
    # It may refuse a precision: only the type of its answer is checked.
    for precision in get_args(Precision):
        refuse = partial(vendor.refuse, Recipe(precision=precision), 1)  # on one rank
        faults.call(f"refuse({precision})", refuse, _Refusal | None)
    num_devices = answers["count"]
    if num_devices is None:  # the call failed; all that follows compares with the number
        return faults
    names = answers["product_names"]
    # If ``count`` counts cores, the processor's name is given once.
    if names is not None and not vendor.counts_cores:
        fault = f"count() is {num_devices}, but product_names() has {len(names)} names"
        faults.add_unless(len(names) == num_devices, fault)
    # A processor is one device of the monitor, however many cores it has.
    _check_monitor(vendor, 1 if vendor.counts_cores else num_devices, faults)
    return faults


def _check_monitor(vendor: Vendor, num_devices: int, faults: _Faults) -> None:
    """Check one reading, and that ``monitored(n)`` names devices that are in it.

    Args:
        num_devices: number of the vendor's devices on this machine.
        faults: the list to which faults are added.
    """
    call = f"monitored({num_devices})"
    # A call that fails returns None, and its fault has then been added.
    indices = faults.call(call, partial(vendor.monitored, num_devices), list[_Count]) or []
    fault = f"{call} is {indices!r}: neither empty nor one index per device"
    faults.add_unless(len(indices) in (0, num_devices), fault)
    monitor: Monitor | None = faults.call("monitor()", vendor.monitor)
    if monitor is None:  # the vendor has none, its tool is missing here, or a fault was added
        return
    missing_members = list_missing_members(monitor, Monitor)
    if missing_members:
        faults += [f"monitor().{name} is missing" for name in missing_members]
        return
    try:
        samples = faults.call("monitor().read()", monitor.read, Sequence[Any])
    finally:
        faults.call("monitor().close()", monitor.close)
    if samples is None:  # the tool does not answer now, or a fault was added
        return
    wrong_samples = [fault for sample in samples for fault in sample_faults(sample)]
    if wrong_samples:
        faults += wrong_samples
        return
    read_indices = [sample.index for sample in samples]
    fault = f"{call} is {indices}, but read() reports the devices {read_indices}"
    faults.add_unless(set(indices) <= set(read_indices), fault)


def sample_faults(sample: DeviceSample) -> list[str]:
    """Return what is wrong with a reading of one device: values of another type or impossible."""
    broken_rule = _explain_misfit(sample, DeviceSample)
    return [f"{sample!r} is not a valid DeviceSample: {broken_rule}"] if broken_rule else []


def device_faults(vendor: Vendor) -> list[str]:
    """Return what is wrong with the first device of ``vendor``, which must be on this machine.

    Members, types and keys are checked here; ``trainmark check toy`` checks that the device
    computes, copies and measures times correctly.
    """
    faults = _Faults()
    # Local rank 0 of one rank on this machine.
    device: Device = faults.call("open(0, 1)", lambda: vendor.open(0, 1))
    if faults:
        return faults
    faults += [f"{name} is missing" for name in list_missing_members(device, Device)]
    if faults:
        return faults
    for name in ("name", "torch_type"):
        is_same = getattr(device, name) == getattr(vendor, name)
        faults.add_unless(is_same, f"the {name} of the device differs from that of the vendor")
    answers = faults.call_all(device, _DEVICE_CALLS)
    for name, keys in _REQUIRED_KEYS.items():
        answer = answers[name] or {}  # None: the call failed
        faults += [f"{name} lacks the key {key}" for key in keys if key not in answer]
    fp32_settings = answers["set_precision"] or {}  # ``_DEVICE_CALLS`` asks for fp32
    faults.add_unless(not fp32_settings.get("tf32"), "fp32 leaves TF32 on")
    return faults
