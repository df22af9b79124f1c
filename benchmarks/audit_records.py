"""Audit of many records: read from disk, held against every rule.

The records are those of one launch, with their own step times and identity: 200 steps each, as a
nightly check of a small case leaves them. One of them has an error, which must be found.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.harness import Bar, conclude, sized
from trainmark.record import record

RECORDS, RUNS = sized((10_000, 3), (50, 1))
STEPS, CORES, WRONG = 200, 2, 17
SECONDS = 10.0
MATMUL = sized(2048, 128)
GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "record_toy.json"


def write_records(folder: Path) -> int:
    """Write the records below ``folder``; return their bytes."""
    document: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    steps, counts = document["steps"], document["counts"]
    steps["samples"], steps["loss"] = [64] * STEPS, [0.25] * STEPS
    counts["samples"] = document["ranks"][0]["samples"] = 64 * STEPS
    counts["epochs"] = 4
    document["figures"]["train_time"]["value"] = 64 * STEPS / 204.8
    size = 0
    for number in range(RECORDS):
        random = Random(number)
        document["run_id"] = f"20260102T030405Z-toy-{number:06d}"
        steps["time_ns"] = [125_000_000 + random.randrange(1_000_000) for _ in range(STEPS)]
        document["figures"]["e2e_time"]["value"] = 70.0 + number / 64
        core = document["figures"]["p_train"]["value"] + (-1 if number == WRONG else 1)
        document["figures"]["p_core"]["value"] = core
        run = folder / f"run{number:05d}"
        run.mkdir()
        made = record.Record.model_validate_json(json.dumps(document), strict=True)
        size += (run / record.RECORD_FILE).write_bytes(record.content(made))
    return size


def measured(folder: Path) -> dict[str, float]:
    """Audit as a user does; return seconds, and the rate of a matmul right after it."""
    import numpy as np

    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    words = [sys.executable, "-m", "trainmark", "audit", str(folder), "--json"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    whole_s, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    document = json.loads(done.stdout)
    (found,) = document["findings"]
    assert (done.returncode, document["audited"]) == (1, RECORDS)
    assert (found["rule"], Path(found["file"]).name) == ("ordering", f"run{WRONG:05d}")
    matrix = np.ones((MATMUL, MATMUL), np.float32)
    start = time.perf_counter()
    _ = matrix @ matrix
    return {
        "whole_s": whole_s,
        "processor_s": used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime,
        "peak_mb": used.ru_maxrss / 1024,
        "gflops": 2e-9 * MATMUL**3 / (time.perf_counter() - start),
    }


def main() -> bool:
    runs = []
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:CORES])
    with tempfile.TemporaryDirectory() as place:
        size = write_records(Path(place))
        for _ in range(RUNS):
            runs.append(measured(Path(place)))
            print(f"  {runs[-1]}", file=sys.stderr, flush=True)
    os.sched_setaffinity(0, allowed)
    found = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    times = sorted(run["whole_s"] for run in runs)
    spent = f"{found['whole_s']:.2f} ({times[0]:.2f} to {times[-1]:.2f})"
    bars = [
        Bar(f"`trainmark audit` of {RECORDS:,} records, s", spent, f"under {SECONDS:g}",
            found["whole_s"] < SECONDS),
        Bar("processor time of it, s", f"{found['processor_s']:.2f}", "", None),
        Bar("peak memory, MB", f"{found['peak_mb']:.0f}", "", None),
    ]  # fmt: skip
    work = found["processor_s"] * found["gflops"] / RECORDS * 1e3
    details = (
        f"{size / 1e6:.0f} MB of records with {STEPS} steps each, on {CORES} cores, the start of "
        f"the program included. A matmul in fp32 had {found['gflops']:.0f} GFLOP/s in the same "
        f"run: a record costs the processor as much as {work:.0f} MFLOP. Most of it is reading: "
        "validating a record, and comparing it with what is written of it. One "
        "record has a p_core below its p_train, which is the only finding, or the benchmark fails."
    )
    return conclude("audit_records", "The audit of many records", bars, details)


if __name__ == "__main__":
    sys.exit(not main())
