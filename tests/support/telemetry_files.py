"""Small ``telemetry.jsonl`` files written by hand for the run of ``fakes.rank_events``.

That run is, in seconds: launched 0, windows 6-7, 7-8 and, measured, 8-9.625; the evaluation that
reaches the target 10-11; end 12. It trains 1024 samples a rank.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from support.fakes import GOLDEN, S, launch_event, make_event, rank_events, write_events, write_run
from trainmark.events.schema import TELEMETRY_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

GIB = 2**30
MONITOR = "nvml 13.580"
# Readings at every edge of the run's intervals, and between them.
TIMES_S = (0.0, 2.0, 4.0, 6.0, 7.0, 8.0, 9.0, 9.625, 10.0, 11.0, 12.0)


def make_start_line(*devices: int, monitor: str | None = MONITOR, **fields: Any) -> dict[str, Any]:
    """Return the first line of a telemetry file.

    Args:
        devices: indexes of the devices that are read.
        monitor: the name of the vendor's monitor; None: the vendor has none.
        fields: replace or add fields of the event.
    """
    plain = {
        "pid": 7,
        "interval_s": 1.0,
        "monitor": monitor,
        "devices": list(devices),
        "host_sources": ["psutil"],
    }
    return make_event("sampling", 0, **plain | fields)


def make_devices_line(t_s: float, *samples: dict[str, Any], took_ns: int = 0) -> dict[str, Any]:
    """Return a reading of devices, ``samples`` of ``make_busy_device``, that took this long."""
    return make_event("devices", round(t_s * S), took_ns=took_ns, devices=list(samples))


def make_host_line(t_s: float, **facts: Any) -> dict[str, Any]:
    """Return a reading of the host."""
    return make_event("host", round(t_s * S), took_ns=0, **facts)


def make_end_line(t_s: float = 12.0) -> dict[str, Any]:
    """Return the last line."""
    return make_event("end", round(t_s * S))


def make_busy_device(t_s: float, index: int, **facts: Any) -> dict[str, Any]:
    """Return the reading of a device that draws 100 W until training begins at 6 s, then 400 W.

    Args:
        facts: replace fields; None: the field is not reported.
    """
    trains = t_s >= 6.0
    plain = {
        "index": index,
        "name": "Fake Accelerator 1",
        "memory_used_bytes": (10 + index % 6 if trains else 1) * GIB,  # at most 15 of 16
        "memory_total_bytes": 16 * GIB,
        "utilization_percent": 90.0 if trains else 0.0,
        "power_w": 400.0 if trains else 100.0,
        "temperature_c": 50.0 + t_s,
        "clock_mhz": 1500.0 if t_s < 9 else 1200.0,
        "throttle_reasons": ["power_cap"] if t_s == 9.0 else [],
        # The counter began at 5000 J; the power above, multiplied by the time at it.
        "energy_j": 5000.0 + 100.0 * min(t_s, 6.0) + 400.0 * max(0.0, t_s - 6.0),
    }
    return {name: value for name, value in (plain | facts).items() if value is not None}


def make_device_lines(*indices: int, times_s: Iterable[float] = TIMES_S, **facts: Any) -> list[Any]:
    """Return a line for each of ``times_s``, with a reading of each device of ``indices``.

    The default, ``TIMES_S``, has 11 times from 0 to 12 s, the length of the run: each at which an
    interval of the run begins or ends, and some between them.

    Args:
        facts: replace what ``make_busy_device`` returns; None: the fact is not reported.
    """
    return [
        make_devices_line(t_s, *(make_busy_device(t_s, index, **facts) for index in indices))
        for t_s in times_s
    ]


def make_ranks_with_devices(world: int = 2) -> list[list[dict[str, Any]]]:
    """Return the events of ranks that each have a device.

    ``rank_events`` has those of a rank on a CPU, whose facts are replaced here.
    """
    device = {"name": "Fake Accelerator 1", "memory_total_bytes": 16 * GIB}
    # By the name of an event, the fields that are replaced.
    changed = {"facts": {"memory_scope": "device", "device": device}}
    ranks = [
        [item | changed.get(item["event"], {}) for item in rank_events()] for _ in range(world)
    ]
    # Each step has the samples of all ranks.
    for item in (item for events in ranks for item in events if item["event"] == "window"):
        item["step_samples"] = [world * samples for samples in item["samples"]]
    return ranks


def write_sampled_run(
    folder: Path,
    telemetry: Sequence[dict[str, Any]] | bytes | None,
    *,
    ranks: Sequence[Sequence[dict[str, Any]]] | None = None,
) -> Path:
    """Write a run, with telemetry if it has any, and return its folder.

    Args:
        telemetry: events of its file, or the bytes of the file; None: a run without telemetry.
        ranks: events of each rank; None: two ranks with a device each.
    """
    # The run of ``rank_events`` ends 12 s after its launch; ``S`` is a second in nanoseconds.
    ranks_ended = make_event("ranks_ended", 12 * S, failures=[])
    ranks = make_ranks_with_devices() if ranks is None else ranks
    write_run(folder, [launch_event(), ranks_ended], *ranks)
    # The stored plan of the toy case, which is of one rank on a CPU, is changed to fit the run. Its
    # label of generated data is left out: it forbids quoting a record, whatever the telemetry says.
    plan = json.loads((GOLDEN / "plan_toy.json").read_text(encoding="utf-8"))
    device = plan["device"] | {"vendor": "fake", "torch_type": "cuda"}
    plan |= {
        "device": device,
        "nproc": len(ranks),
        "labels": ["self-reported"],
        "sample_every_s": 0.0 if telemetry is None else 1.0,
    }
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    if isinstance(telemetry, bytes):
        (folder / TELEMETRY_FILE).write_bytes(telemetry)
    elif telemetry is not None:
        write_events(folder / TELEMETRY_FILE, telemetry)
    return folder
