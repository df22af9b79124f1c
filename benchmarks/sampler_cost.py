"""What sampling costs a run: the sampler's own processor time, and the training beside it.

The first is the limit of the second: training cannot lose more than the sampler takes, unless it
disturbs. It is exact, because the system counts it. The second is p_core of the same training
with and without a sampler beside it, in turns, on all cores of this machine. A vendor's own tool or
library takes what it takes besides.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Bar, choose_size, conclude, interleave
from benchmarks.jobs import build
from benchmarks.loop_overhead import Endless, time_loop
from trainmark.events.schema import TELEMETRY_FILE, EventFile
from trainmark.plan.plan import PLAN_FILE
from trainmark.record.stats import summarize_launches

if TYPE_CHECKING:
    from collections.abc import Iterator

BAR = 0.005
FEW, MANY = choose_size((20, 320), (3, 10))  # readings
FAST_S = 0.1  # more readings in less time; a reading costs the same
STEPS, ROUNDS = choose_size(1_000, 4), 9  # 1,000 steps take about 5 s, and hold 5 readings


@contextmanager
def run_sampler(interval_s: float) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a sampler that has begun, as the launcher starts it; close its input at the end."""
    with tempfile.TemporaryDirectory() as folder:
        plan = {"device": {"vendor": "cpu"}, "nproc": 1, "sample_every_s": interval_s}
        (Path(folder) / PLAN_FILE).write_text(json.dumps(plan))
        file = Path(folder) / TELEMETRY_FILE
        process = subprocess.Popen(
            [sys.executable, "-m", "trainmark.telemetry.sampler", folder, TELEMETRY_FILE],
            stdin=subprocess.PIPE,
        )
        while not (
            file.exists() and any(event["event"] == "sampling" for event in EventFile(file))
        ):
            assert process.poll() is None, "the sampler ended"
            time.sleep(0.05)
        try:
            yield process, file
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def _count_readings(file: Path) -> int:
    return sum(event["event"] == "host" for event in EventFile(file))


def own_cost() -> tuple[float, float]:
    """Return processor seconds and bytes of one reading of the host.

    Start and end are subtracted: few and many readings have them alike.
    """
    costs = []
    for wanted in (FEW, MANY):
        with run_sampler(FAST_S) as (process, file):
            while _count_readings(file) < wanted:
                time.sleep(FAST_S)
            assert process.stdin is not None
            process.stdin.close()
            _, _, usage = os.wait4(process.pid, 0)
            costs.append(
                (usage.ru_utime + usage.ru_stime, file.stat().st_size, _count_readings(file))
            )
    (short_s, short_bytes, few), (long_s, long_bytes, many) = costs
    return (long_s - short_s) / (many - few), (long_bytes - short_bytes) / (many - few)


def main() -> bool:
    cost_s, size = own_cost()
    measured = f"{cost_s * 1e3:.2f} ms: {100 * cost_s:.3f}% of a core at 1 Hz, {size:.0f} bytes"
    what = "processor time of a reading of the host"
    bars = [Bar(what, measured, f"at most {BAR:.1%} of a core", cost_s <= BAR)]
    job, device = build("distilbert_sst2", device_name="cpu", max_epochs=1000)
    endless = Endless(job)

    def time_with_sampler() -> float:
        with run_sampler(1.0):
            return time_loop(endless, device, STEPS)

    times = interleave(
        {"sampled": time_with_sampler, "alone": lambda: time_loop(endless, device, STEPS)},
        rounds=ROUNDS,
    )
    pairs = [
        alone / sampled for alone, sampled in zip(times["alone"], times["sampled"], strict=True)
    ]
    rate = summarize_launches(pairs)
    interval = f"95% interval {rate.low:.4f} to {rate.high:.4f}, {len(pairs)} pairs"
    bars.append(
        Bar(
            "p_core with samples / without, interleaved",
            f"{rate.mean:.4f} ({interval})",
            f"at least {1 - BAR:g}",
            rate.mean >= 1 - BAR,
        )
    )
    load = "{:.1f}, {:.1f} and {:.1f}".format(*os.getloadavg())
    details = (
        f"DistilBERT at its tiny size on the processor, {STEPS:,} steps a run, a sample a second "
        f"of the host. Load of the machine at the end, over 1, 5 and "
        f"15 minutes: {load}; more than its cores means that something else ran."
    )
    return conclude("sampler_cost", "What sampling costs", bars, details)


if __name__ == "__main__":
    sys.exit(not main())
