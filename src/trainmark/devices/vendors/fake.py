"""Simulated accelerators: ranks compute on the processor, the monitor replays a trace.

Taken only where named, so that the way from a monitor to a page can be tried on any machine, with
as many devices as the trace has. A trace has the form of ``telemetry.jsonl``; the one here was made
by ``tools/fake_trace.py``, and the telemetry of any run can take its place. A record of these
devices is labelled and not to be quoted; no peak is published for them.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from functools import cache
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from trainmark.devices.vendors.cpu import Cpu, CpuDevice, threads_of_rank
from trainmark.protocols import DeviceSample, MonitorFault, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.protocols import Occupant

PRODUCT_NAME = "Simulated accelerator"
TRACE_VARIABLE = "TRAINMARK_FAKE_TRACE"
_TRACE = Path(__file__).with_name("fake_trace.jsonl")


def _trace_file() -> Path:
    return Path(os.environ.get(TRACE_VARIABLE) or _TRACE)


@cache
def _readings(path: Path) -> list[tuple[int, list[DeviceSample]]]:
    """Return time (ns) and devices of each reading of a trace, without an incomplete last line.

    A trace is read once in a process.

    Raises:
        MonitorFault: it cannot be read, or is no trace.
    """
    found = []
    try:
        with path.open("rb") as file:
            for line in file:
                event: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {"event": ""}
                if event["event"] == "devices":
                    found.append((int(event["t_ns"]), [_sample(one) for one in event["devices"]]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f"{path.name}: {type(error).__name__}: {error}"
        raise MonitorFault("unreadable", reason) from error
    if not found:
        raise MonitorFault("unreadable", f"{path.name}: no reading of a device")
    return found


def _sample(fields: dict[str, Any]) -> DeviceSample:
    """Return a device of the trace under our own name: its real one has peaks and an owner."""
    reasons = fields.get("throttle_reasons")
    reasons = None if reasons is None else tuple(reasons)
    return DeviceSample(
        **(fields | {"name": PRODUCT_NAME, "uuid": None, "throttle_reasons": reasons})
    )


class Replay:
    """Return the readings of a trace as long after its first one; see ``Monitor``.

    The last reading stays after the end of the trace.

    Raises:
        MonitorFault: the file is no trace.
    """

    name = "replay"

    def __init__(self, path: Path, *, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._clock = clock
        self._readings = _readings(path)
        self._behind_ns: int | None = None  # the trace's clock behind this one

    def read(self) -> list[DeviceSample]:
        """Return the devices at this time of the trace; see ``Monitor.read``."""
        now_ns = self._clock()
        if self._behind_ns is None:
            self._behind_ns = now_ns - self._readings[0][0]
        place = bisect_right(self._readings, now_ns - self._behind_ns, key=lambda one: one[0])
        return self._readings[place - 1][1]

    def close(self) -> None:
        """Do nothing: the trace was read as a whole."""


class Fake(Cpu):
    """As many devices as the trace has; see ``Vendor``."""

    name = "fake"
    named_only = True
    recorded_variables: tuple[str, ...] = (TRACE_VARIABLE,)
    counts_cores = False

    def _numbers(self) -> list[int]:
        """Return the numbers of the devices of the trace's first reading.

        Raises:
            MonitorFault: the file is no trace.
        """
        return [sample.index for sample in _readings(_trace_file())[0][1]]

    def count(self) -> int:
        """Return the devices of the trace; 0 if it cannot be read."""
        return 0 if self.unusable() else len(self._numbers())

    def product_names(self) -> list[str]:
        """Return our own name for each device, whatever the trace calls it."""
        return [PRODUCT_NAME] * self.count()

    def unusable(self) -> Refusal | None:
        """Return why the trace has no devices; see ``protocols.Diagnoses``."""
        try:
            self._numbers()
        except MonitorFault as fault:
            return Refusal(fault.said, f"let {TRACE_VARIABLE} name a run's telemetry.jsonl")
        return None

    def occupants(self, nproc: int) -> list[Occupant]:
        """Return nothing: nobody else uses what is not there."""
        del nproc
        return []

    def monitor(self) -> Replay:
        """Return what replays the trace from its first reading on; see ``Vendor.monitor``."""
        return Replay(_trace_file())

    def monitored(self, nproc: int) -> list[int]:
        """Return the trace's first devices; see ``Vendor.monitored``."""
        return self._numbers()[:nproc]

    def open(self, local_rank: int, ranks_here: int) -> FakeDevice:
        """Return a rank's share of the processor."""
        del local_rank
        return FakeDevice(threads=threads_of_rank(ranks_here))


class FakeDevice(CpuDevice):
    """The processor under another name; see ``Device``."""

    name = "fake"

    def describe(self) -> dict[str, Any]:
        """Return what the processor tells, under our own name."""
        return super().describe() | {"name": PRODUCT_NAME}
