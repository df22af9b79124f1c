"""The simulated accelerators: a trace replayed by an injected clock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.devices.vendors.fake import PRODUCT_NAME, Replay
from trainmark.protocols import DeviceSample

if TYPE_CHECKING:
    from fakes import FakeClock

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "src/trainmark/devices/vendors/fake_trace.jsonl"
SECOND_NS = 1_000_000_000


def written(path: Path, *events: dict[str, Any], torn: str = "") -> Path:
    path.write_text("".join(json.dumps(event) + "\n" for event in events) + torn)
    return path


def event(name: str, second: int, **more: Any) -> dict[str, Any]:
    return {"event": name, "t_ns": 5_000 + second * SECOND_NS, **more}


H100 = {"name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-1"}
TRACE = (
    event("start", 0),
    event("devices", 0, devices=[{"index": 2, "power_w": 90.0, **H100}]),
    event("host", 0, cpu_percent=1.0),
    event("devices", 1, devices=[{"index": 2, "power_w": 500.0, "throttle_reasons": ["thermal"]}]),
    event("fault", 2, source="monitor", kind="hung", said="x"),
    event("devices", 4, devices=[{"index": 2, "power_w": 300.0}]),
)


def sample(power_w: float, reasons: tuple[str, ...] | None = None) -> DeviceSample:
    return DeviceSample(index=2, name=PRODUCT_NAME, power_w=power_w, throttle_reasons=reasons)


def test_a_trace_is_replayed_by_the_time_since_its_first_reading(
    tmp_path: Path, clock: FakeClock
) -> None:
    trace = written(tmp_path / "t.jsonl", *TRACE, torn='{"event": "devi')
    monitor = Replay(trace, clock=clock)
    clock.advance(77 * SECOND_NS)  # it begins with the first reading
    assert monitor.read() == [sample(90.0)]
    clock.advance(SECOND_NS - 1)
    assert monitor.read() == [sample(90.0)]
    clock.advance(1)
    assert monitor.read() == [sample(500.0, ("thermal",))]
    clock.advance(3 * SECOND_NS)
    assert monitor.read() == [sample(300.0)]
    clock.advance(1_000 * SECOND_NS)
    assert monitor.read() == [sample(300.0)]


def test_the_shipped_trace_is_what_its_script_makes() -> None:
    script = [sys.executable, str(ROOT / "tools/fake_trace.py")]
    made = subprocess.run(script, capture_output=True, check=True).stdout
    assert made == SHIPPED.read_bytes()
    assert json.loads(made.splitlines()[0])["monitor"] == "formulas, not a recording"
