"""The calls of a torch backend: those of ``torch.accelerator``, or else of its own module.

Backends differ in which of the two work. A backend that is registered from outside torch often has
its own ``mem_get_info``, but not torch's ``DeviceAllocator``, without which the memory calls of
``torch.accelerator`` fail with an internal assertion. So each call is tried once, when the device
is opened. The module torch is an argument, so that planning can import this file without torch.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REQUIREMENTS = (
    "a backend must provide timed events (torch.Event, or Event in its module, with "
    "enable_timing), synchronize, set_device, and either torch's DeviceAllocator or "
    "mem_get_info in its module"
)


class _Call(NamedTuple):
    """A call of a function by its name, which the module may lack.

    Args:
        arguments: by position.
        options: by keyword.
    """

    module: Any
    name: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})

    def __call__(self) -> Any:
        return getattr(self.module, self.name)(*self.arguments, **self.options)


class Backend:
    """The calls that work on one device of a type that torch knows.

    Args:
        torch: the module.
        torch_type: torch's type of device, ``npu`` for example.
        index: of the device, which is selected.
        where: the place that errors name.

    Raises:
        EnvironmentFault: a call that is needed does not work in either form.
    """

    def __init__(self, torch: Any, torch_type: str, index: int, *, where: str) -> None:
        self._torch = torch
        self._type = torch_type
        self._index = index
        self._where = where  # the place that errors name
        shared = torch.accelerator  # the module for all types of device
        device_module = _get_module(torch, torch_type)
        # Each ``_require`` and ``_find_working`` tries the calls and returns the first that works.
        # The one that selects the device need not be kept: trying it has selected the device.
        self._require(
            "select a device",
            _Call(shared, "set_device_index", (index,)),
            _Call(device_module, "set_device", (index,)),
        )
        self._compute()  # raises an error if the device cannot
        self.synchronize = self._require(
            "wait for the device",
            _Call(shared, "synchronize"),
            _Call(device_module, "synchronize"),
        )
        # Trying an event needs ``synchronize``, which is therefore set before.
        self.new_event = self._require(
            "make timed events",
            _Call(torch, "Event", (torch_type,), {"enable_timing": True}),
            _Call(device_module, "Event", options={"enable_timing": True}),
            trial=self._time_nothing,
        )
        self.free_and_total_bytes = self._require(
            "report the device's memory",
            _Call(shared, "get_memory_info", (index,)),
            _Call(device_module, "mem_get_info", (index,)),
        )
        # Not every backend has the next three calls; None: it lacks the call.
        self._reset_peak, _ = _find_working(
            _Call(shared, "reset_peak_memory_stats", (index,)),
            _Call(device_module, "reset_peak_memory_stats", (index,)),
        )
        self._peak, _ = _find_working(
            _Call(shared, "max_memory_allocated", (index,)),
            _Call(device_module, "max_memory_allocated", (index,)),
        )
        self._empty_cache, _ = _find_working(
            _Call(shared, "empty_cache"), _Call(device_module, "empty_cache")
        )

    def _compute(self) -> None:
        """Add two numbers on the device; this fails on a card for which torch has no code."""
        try:
            self._torch.zeros((), device=self._type).add_(1).item()
        except Exception as error:  # backends raise classes of their own
            raise self._make_fault(
                f"the device cannot compute: {_get_first_line(error)}",
                fix="check the driver with the vendor's tool, and the devices with "
                "`trainmark list devices`",
            ) from error

    def _time_nothing(self, new_event: _Call) -> None:
        """Time an empty interval with two events; raise an error if that fails.

        Args:
            new_event: the call to try, which makes an event.
        """
        start, end = new_event(), new_event()
        start.record()
        end.record()
        self.synchronize()
        elapsed_ms = start.elapsed_time(end)
        if elapsed_ms < 0:
            raise ValueError(f"the time between two events is negative: {elapsed_ms} ms")

    def _require(
        self, task: str, *calls: _Call, trial: Callable[[_Call], Any] = _Call.__call__
    ) -> _Call:
        """Return the first of the calls that works.

        Args:
            task: what the call is for, as a verb with its object: ``wait for the device``.
            calls: several forms of the same call.
            trial: tries a call, and raises an error if it does not work; by default it makes the
                call.

        Raises:
            EnvironmentFault: none works.
        """
        working, failures = _find_working(*calls, trial=trial)
        if working is None:
            raise self._make_fault(
                f"no function to {task} is available: {'; '.join(failures)}",
                rule=REQUIREMENTS,
                fix=(
                    "ask the vendor of the backend for the function, or override the missing "
                    "method in the vendor's Device class (docs/adding-a-device.md)"
                ),
            )
        return working

    def _make_fault(self, what: str, *, fix: str, rule: str | None = None) -> EnvironmentFault:
        """Return a fault whose text has torch's version and the device before ``what``.

        Args:
            what: what is wrong, as a clause.
            fix: what the user can do.
            rule: what a backend must provide; None: the fault breaks no stated rule.
        """
        return EnvironmentFault(
            f"torch {self._torch.__version__}, {self._type} device {self._index}: {what}",
            where=self._where,
            rule=rule,
            fix=fix,
        )

    def peak_allocated_bytes(self) -> int | None:
        """Return the most bytes that the allocator held since ``release``.

        None if the backend does not report the peak, or cannot reset it.
        """
        if self._peak is None or self._reset_peak is None:
            return None
        return int(self._peak())

    def release(self) -> None:
        """Give memory back that the allocator holds, and reset its peak, if the backend can."""
        if self._empty_cache is not None:
            self._empty_cache()
        if self._reset_peak is not None:
            self._reset_peak()


def _find_working(
    *calls: _Call, trial: Callable[[_Call], Any] = _Call.__call__
) -> tuple[_Call | None, list[str]]:
    """Return the first of the calls that works, None if none does, and why those before it do not.

    Args:
        trial: tries a call, and raises an error if it does not work; by default it makes the call.
    """
    failures: list[str] = []
    for call in calls:
        try:
            trial(call)
        except Exception as error:  # noqa: BLE001 - backends raise classes of their own
            failures.append(_get_first_line(error))
        else:
            return call, failures
    return None, failures


def _get_module(torch: Any, torch_type: str) -> Any:
    """Return torch's module of a type of device; an object without functions if there is none."""
    try:
        return torch.get_device_module(torch_type)
    except (RuntimeError, AttributeError):
        return object()


def _get_first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return text or type(error).__name__
