"""Read what is sampled of a run's machines, and return readings of host and devices as points.

Events have the time of their machine's monotonic clock; the launch event of each machine has the
time since 1970 too, and what must be added to the monotonic clock to have it is the machine's
shift. Owns the names of the series ``sys/``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.events.schema import (
    LAUNCHER_FILE,
    DevicesEvent,
    EventTail,
    Finished,
    HostEvent,
    Launch,
    name_node_file,
    name_telemetry_file,
)
from trainmark.export.followers.points import CHUNK_BYTES, NewPoints, Point

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.protocols.monitor import DeviceSample

_GIB = 2**30


class MachineReader:
    """Reads what the sampler and the launching process of one machine write.

    The sampler is a process that reads the devices and the host once a second.

    Args:
        node: number of the machine in the job of a cluster's scheduler; None: the machine of the
            launcher.
        prefix: of the names of its series, ``sys/`` or ``sys/node0/``.

    Attributes:
        launch: the event with which it began; None: it was not read yet.
        is_finished: it has reported its end.
        _num_readings: number of points so far, of the host and of the devices.
    """

    def __init__(self, run_dir: Path, node: int | None, prefix: str) -> None:
        # Two processes of the machine write a file of events each: the one that starts its ranks,
        # and the one that samples its devices. `node` is the machine's number; None: the machine of
        # the launcher.
        process_file = LAUNCHER_FILE if node is None else name_node_file(node)
        self._process_events = EventTail(run_dir / process_file, CHUNK_BYTES)
        self._sampler_events = EventTail(run_dir / name_telemetry_file(node), CHUNK_BYTES)
        self._prefix = prefix  # of the names of the machine's series, for example `sys/node0/`
        self._num_readings = {"host": 0, "gpu": 0}  # so far; they number the points of each kind
        self.launch: Launch | None = None  # the event of its launch; None: not read yet
        self.is_finished = False  # whether the process that starts the ranks has reported its end

    @property
    def shift_ns(self) -> int | None:
        """Return what is added to the machine's monotonic clock to have the time since 1970.

        The launch event has both times. None: this event was not read yet.
        """
        return None if self.launch is None else self.launch.unix_ns - self.launch.t_ns

    def read_new(self) -> NewPoints:
        """Read a chunk of each of the two files of the machine, and return the sampler's points.

        One file is of the process that starts the ranks, the other of the sampler, which reads the
        devices and the host. The sampler's file is read only after the launch event. This event has
        the time since 1970, from which the points get theirs.
        """
        events = self._process_events.read_new()
        for event in events:
            if isinstance(event, Launch):
                self.launch = event
            elif isinstance(event, Finished):
                self.is_finished = True
        if self.launch is None:
            return NewPoints([], len(events))  # the number tells whether there may be more to read
        samples = self._sampler_events.read_new()
        points = [
            self._make_reading(sample)
            for sample in samples
            if isinstance(sample, DevicesEvent | HostEvent)
        ]
        return NewPoints(points, len(events) + len(samples))

    def _make_reading(self, event: DevicesEvent | HostEvent) -> Point:
        """Return the point of a reading, at the middle of the time that the reading took.

        Args:
            event: a reading of all devices of the machine, or of the host, at its end.
        """
        shift_ns = self.shift_ns
        assert shift_ns is not None, "samples are read after the launch"
        # The host and the devices are read independently, so each has an axis that numbers its
        # readings. All devices share one axis. With the prefix `sys/`, which names the machine, the
        # axis of the host is `sys/reading`, and that of the devices `sys/gpu/reading`.
        if isinstance(event, HostEvent):
            kind = "host"
            axis = f"{self._prefix}reading"
            values = self._name_host_values(event)
        else:
            kind = "gpu"
            axis = f"{self._prefix}gpu/reading"
            values = {}
            for sample in event.devices:
                values |= self._name_device_values(sample)
        self._num_readings[kind] += 1
        unix_ns = event.t_ns - event.took_ns // 2 + shift_ns
        return Point(axis=axis, number=self._num_readings[kind], unix_ns=unix_ns, values=values)

    def _name_host_values(self, event: HostEvent) -> dict[str, float]:
        """Return the values of a reading of the host by the names of their series.

        The names begin with the prefix of the machine, such as ``sys/``. Values that the host does
        not report are None, and get no series.
        """
        used_bytes = event.memory_used_bytes
        readings = {
            "cpu/utilization_percent": event.utilization_percent,
            "memory/used_gib": None if used_bytes is None else used_bytes / _GIB,
            "power_watts": event.power_w,  # of the whole machine
            "cpu/energy_joules": event.energy_j,
        }
        return {f"{self._prefix}{name}": x for name, x in readings.items() if x is not None}

    def _name_device_values(self, sample: DeviceSample) -> dict[str, float]:
        """Return the values of a reading of a device by the names of their series.

        The names begin with the prefix of the machine, such as ``sys/``. Values that the device
        does not report are None, and get no series.
        """
        used_bytes = sample.memory_used_bytes
        total_bytes = sample.memory_total_bytes
        reasons = sample.throttle_reasons
        readings = {
            "power_watts": sample.power_w,
            "temperature_celsius": sample.temperature_c,
            "utilization_percent": sample.utilization_percent,
            "clock_mhz": sample.clock_mhz,
            "memory_used_gib": None if used_bytes is None else used_bytes / _GIB,
            "memory_total_gib": None if total_bytes is None else total_bytes / _GIB,
            "energy_joules": sample.energy_j,
            # 1 if the device gives any reason for which it is throttled, else 0.
            "throttled": None if reasons is None else float(bool(reasons)),
        }
        device = f"{self._prefix}gpu{sample.index}"
        return {f"{device}/{name}": x for name, x in readings.items() if x is not None}
