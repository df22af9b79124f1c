"""What torch asks of a backend: the calls of ``torch.accelerator``, or those of its own module.

Backends differ in which of both they have: one that is registered from outside torch often has
``mem_get_info`` of its own but not torch's ``DeviceAllocator``, without which the memory calls of
``torch.accelerator`` fail with an internal assertion. So each call is tried once, when the device
is opened. Torch is passed in, so that planning can import this.
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
    """A call of a module by name, which the module may lack."""

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
        index: of the device; it is selected.
        where: of the device, for errors.

    Raises:
        EnvironmentFault: a call that is needed does not work in either form.
    """

    def __init__(self, torch: Any, torch_type: str, index: int, *, where: str) -> None:
        self._torch, self._type, self._index, self._where = torch, torch_type, index, where
        shared, device_module, number = torch.accelerator, _get_module(torch, torch_type), (index,)
        self._require(
            "selects a device",
            _Call(shared, "set_device_index", number),
            _Call(device_module, "set_device", number),
        )
        self._compute()
        self.synchronize = self._require(
            "waits for the device",
            _Call(shared, "synchronize"),
            _Call(device_module, "synchronize"),
        )
        timed = {"enable_timing": True}
        self.new_event = self._require(
            "makes timed events",
            _Call(torch, "Event", (torch_type,), timed),
            _Call(device_module, "Event", (), timed),
            trial=self._time_nothing,
        )
        self.free_and_total_bytes = self._require(
            "tells the device's memory",
            _Call(shared, "get_memory_info", number),
            _Call(device_module, "mem_get_info", number),
        )
        name = "reset_peak_memory_stats"
        self._reset_peak = _find_working(
            _Call(shared, name, number), _Call(device_module, name, number)
        )[0]
        name = "max_memory_allocated"
        self._peak = _find_working(_Call(shared, name, number), _Call(device_module, name, number))[
            0
        ]
        name = "empty_cache"
        self._empty_cache = _find_working(_Call(shared, name), _Call(device_module, name))[0]

    def _compute(self) -> None:
        """Compute something, which fails on a card that torch has no code for."""
        try:
            self._torch.zeros((), device=self._type).add_(1).item()
        except Exception as error:  # backends raise classes of their own
            raise self._fault(
                f"the device does not compute: {_get_first_line(error)}",
                fix="check the driver with the vendor's tool, and the devices with "
                "`trainmark list devices`",
            ) from error

    def _time_nothing(self, new_event: _Call) -> None:
        """Read the time between two events, which every mark needs."""
        start, end = new_event(), new_event()
        start.record()
        end.record()
        self.synchronize()
        elapsed_ms = start.elapsed_time(end)
        if elapsed_ms < 0:
            raise ValueError(f"the time between two events is {elapsed_ms} ms")

    def _require(
        self, task: str, *calls: _Call, trial: Callable[[_Call], Any] = _Call.__call__
    ) -> _Call:
        """Return the first of the calls that works; ``trial`` tries one.

        Raises:
            EnvironmentFault: none works.
        """
        working, failures = _find_working(*calls, trial=trial)
        if working is None:
            raise self._fault(
                f"nothing {task}: {'; '.join(failures)}",
                rule=REQUIREMENTS,
                fix=(
                    "ask the vendor of the backend for the function, or override the missing one "
                    "in the vendor's Device class (docs/adding-a-device.md)"
                ),
            )
        return working

    def _fault(self, what: str, *, fix: str, rule: str | None = None) -> EnvironmentFault:
        return EnvironmentFault(
            f"torch {self._torch.__version__}, {self._type} device {self._index}: {what}",
            where=self._where,
            rule=rule,
            fix=fix,
        )

    def peak_allocated_bytes(self) -> int | None:
        """Return the allocator's peak since ``release``; None: it does not tell both."""
        if self._peak is None or self._reset_peak is None:
            return None
        return int(self._peak())

    def release(self) -> None:
        """Give memory back that the allocator holds, and count its peak from now on."""
        if self._empty_cache is not None:
            self._empty_cache()
        if self._reset_peak is not None:
            self._reset_peak()


def _find_working(
    *calls: _Call, trial: Callable[[_Call], Any] = _Call.__call__
) -> tuple[_Call | None, list[str]]:
    """Return the first of the calls that works, and why those before it do not."""
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
    """Return torch's module of a type of device; an empty one where there is none."""
    try:
        return torch.get_device_module(torch_type)
    except (RuntimeError, AttributeError):
        return object()


def _get_first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return text or type(error).__name__
