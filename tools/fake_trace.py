"""Make the trace that the vendor ``fake`` replays: eight devices through a minute of training.

    python tools/fake_trace.py > src/trainmark/devices/vendors/fake_trace.jsonl

Made from formulas, not recorded from a machine; its first line says so. The form is that of
``telemetry.jsonl``.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

DEVICES = 8
SECONDS = 60
TOTAL_BYTES = 64 << 30
THROTTLED, THROTTLED_FROM_S, THROTTLED_TO_S = 5, 20, 32  # a device, and when
_NS = 1_000_000_000


def power_w(device: int, second: float) -> float:
    """Return a device's power: idle, then a load that waves by a few per cent."""
    if second < 3:
        return 90.0 + device
    share = 0.72 if _throttled(device, second) else 1.0
    return 95.0 + share * (560.0 + 4 * device + 15 * math.sin(second / 3 + device))


def _throttled(device: int, second: float) -> bool:
    return device == THROTTLED and THROTTLED_FROM_S <= second < THROTTLED_TO_S


def reading(device: int, second: int, energy_j: float) -> dict[str, Any]:
    """Return one device at one second."""
    works, throttled = second >= 3, _throttled(device, second)
    warm = 1 - math.exp(-max(0, second - 3) / 12)
    return {
        "index": device,
        "temperature_c": round(32 + device / 2 + 34 * warm + (14 if throttled else 0)),
        "power_w": round(power_w(device, second), 1),
        "memory_used_bytes": (41 << 30) + (device << 24) if works else 512 << 20,
        "memory_total_bytes": TOTAL_BYTES,
        "utilization_percent": 97 + (second + device) % 4 if works else 0,
        "clock_mhz": (1_215 if throttled else 1_755) if works else 345,
        "memory_clock_mhz": 2_600,
        "throttle_reasons": ["thermal"] if throttled else [],
        "energy_j": round(energy_j, 1),
    }


def main() -> None:
    """Print the trace."""
    energies = [1e6 * (device + 1) for device in range(DEVICES)]
    lines: list[dict[str, Any]] = [
        {"event": "start", "t_ns": 0, "pid": 1, "interval_s": 1.0,
         "monitor": "formulas, not a recording", "devices": list(range(DEVICES)),
         "host_sources": []}
    ]  # fmt: skip
    for second in range(SECONDS + 1):
        devices = [reading(device, second, energies[device]) for device in range(DEVICES)]
        lines.append(
            {"event": "devices", "t_ns": second * _NS, "took_ns": 2_000_000, "devices": devices}
        )
        for device in range(DEVICES):
            middle_w = power_w(device, second + 0.5)
            energies[device] += middle_w
    lines.append({"event": "end", "t_ns": SECONDS * _NS, "faults": {}})
    for line in lines:
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
