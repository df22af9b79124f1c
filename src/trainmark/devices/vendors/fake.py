"""Simulated accelerators: ranks compute on the processor, the monitor replays a trace.

Taken only where named, so that the way from a monitor to a page can be tried on any machine, with
as many devices as the trace has. It has the form of ``telemetry.jsonl`` and was made by
``tools/fake_trace.py``. A record of these devices is labelled and not to be quoted; no peak is
published for them.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from trainmark.devices.vendors.cpu import Cpu, CpuDevice, threads_of_rank
from trainmark.protocols import DeviceSample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PRODUCT_NAME = "Simulated accelerator"
TRACE = Path(__file__).with_name("fake_trace.jsonl")


def _readings(path: Path) -> Iterator[tuple[int, list[DeviceSample]]]:
    """Yield time (ns) and devices of each reading of a trace, without an incomplete last line."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n") and (event := json.loads(line))["event"] == "devices":
                yield int(event["t_ns"]), [_sample(one) for one in event["devices"]]


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
    """

    name = "replay"

    def __init__(self, path: Path, *, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._clock = clock
        self._readings = list(_readings(path))
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
    counts_cores = False

    def count(self) -> int:
        """Return the devices of the trace."""
        return len(next(_readings(TRACE))[1])

    def product_names(self) -> list[str]:
        """Return our own name for each device."""
        return [PRODUCT_NAME] * self.count()

    def monitor(self) -> Replay:
        """Return what replays the trace from its first reading on; see ``Vendor.monitor``."""
        return Replay(TRACE)

    def monitored(self, nproc: int) -> list[int]:
        """Return the trace's first devices; see ``Vendor.monitored``."""
        return [sample.index for sample in next(_readings(TRACE))[1]][:nproc]

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
