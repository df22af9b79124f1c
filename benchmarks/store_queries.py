"""The index of many records: time to build it, to list and filter, to notice a new record.

Records are those of a real run's shape with their own names, times, devices, figures and labels.
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
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness import Bar, choose_size, conclude

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDS = choose_size(100_000, 300)
REBUILD_S, QUERY_S, ROUNDS = 60.0, 0.2, choose_size(9, 1)
MODEL = Path(__file__).parents[1] / "tests" / "golden" / "record_distilbert.json"
DEVICES = (
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H200",
    "AMD Instinct MI300X",
    "Intel(R) Xeon(R) Processor",
    "Ascend 910B",
)
FIRST = datetime(2025, 11, 22, tzinfo=timezone.utc)
QUERIES: dict[str, dict[str, object]] = {
    "the newest 50": {},
    "case, device and precision": {
        "words": ["case=distilbert_sst2", "device~H100", "precision=bf16"],
    },
    "since a date, figure above": {"words": ["started_utc>=2026-06-01", "p_core>450"]},
    "the fastest 50 of all": {"sort": "-p_core"},
    "label, environment, not passed": {
        "words": ["labels~nightly", "torch~2.13", "status!=passed"],
    },
}
COLUMNS = ["path", "device", "world", "precision", "status", "trust", "p_core"]


def write_records(folder: Path, count: int) -> int:
    """Write ``count`` run directories with a record each; return their bytes."""
    made, random, total = json.loads(MODEL.read_text(encoding="utf-8")), Random(1), 0
    plan, environment, figures = made["plan"], made["environment"], made["figures"]
    step_ns = made["steps"]["time_ns"]
    values = {name: x["value"] for name, x in figures.items() if x["value"] is not None}
    for number in range(count):
        started = FIRST + timedelta(seconds=300 * number)
        device, torch = random.choice(DEVICES), f"2.{random.randrange(11, 14)}.0+cu130"
        run_id = f"{started:%Y%m%dT%H%M%SZ}-distilbert_sst2-{number:06x}"
        made["run_id"] = plan["run_id"] = run_id
        made["started"] = started.isoformat(timespec="seconds")
        plan["case"] = random.choice(("distilbert_sst2", "gpt_megatron", "glm_superglue"))
        plan["recipe"]["precision"] = random.choice(("fp32", "tf32", "bf16", "fp16"))
        plan["recipe"]["seed"] = number
        environment["devices"] = [dict(environment["devices"][0], name=device)] * 2
        environment["packages"]["torch"] = torch
        environment["driver"] = f"580.65.{random.randrange(30):02d}"
        environment["others_cpu_share"] = random.random() / 20
        passed = random.random() > 0.05
        made["status"] = "passed" if passed else "failed"
        made["cause"] = None if passed else {"kind": "error", "message": {"code": "x", "args": {}}}
        made["labels"] = ["self-reported", *(["nightly"] if number % 3 == 0 else [])]
        times = (round(x * random.uniform(0.99, 1.01)) for x in step_ns)
        made["steps"]["time_ns"] = [*times]  # launches are no copies of each other
        for name, value in values.items():
            figures[name]["value"] = value * random.uniform(0.9, 1.1)
        run_dir = folder / run_id
        run_dir.mkdir()
        content = json.dumps(made, separators=(",", ":")).encode()
        (run_dir / "record.json").write_bytes(content)
        total += len(content)
    return total


def time_matmul_s() -> float:
    """Return the time of a matmul, which tells how fast and how busy the machine is."""
    square = np.ones((1024, 1024), np.float32)
    times = []
    for _ in range(9):
        start = time.perf_counter()
        square @ square
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _read_processor_s() -> float:
    """Return the processor time of this process and of children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure_median_s(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> bool:
    from trainmark.results.store.index import INDEX_FILE, Index
    from trainmark.results.store.query import list_runs

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "runs"
        folder.mkdir()
        size = write_records(folder, RECORDS)
        square_s = time_matmul_s()
        index = Index(str(folder))
        start, before_s = time.perf_counter(), _read_processor_s()
        index.refresh()
        built_s, spent_s = time.perf_counter() - start, _read_processor_s() - before_s
        print(f"  built in {built_s:.1f} s", file=sys.stderr, flush=True)
        runs = list_runs(index, columns=COLUMNS, limit=50)
        assert (runs.total, len(runs.rows)) == (RECORDS, min(50, RECORDS))
        query_s = {
            name: measure_median_s(
                lambda arguments=arguments: list_runs(index, columns=COLUMNS, limit=50, **arguments)
            )
            for name, arguments in QUERIES.items()
        }
        index.refresh()
        check_s = measure_median_s(index.refresh)
        write_records(folder / _plan(folder), 1)
        start = time.perf_counter()
        index.refresh()
        new_s = time.perf_counter() - start
        assert list_runs(index, columns=COLUMNS, limit=1).total == RECORDS + 1
        command_s = measure_median_s(
            lambda: subprocess.run(
                [sys.executable, "-m", "trainmark", "results", "--store", str(folder), "--json"],
                stdout=subprocess.DEVNULL,
                check=True,
            )
        )
        index_bytes = (folder / INDEX_FILE).stat().st_size
    what = f"of {RECORDS:,} records"
    bars = [
        Bar(
            f"index {what} from the files, s",
            f"{built_s:.1f}",
            f"under {REBUILD_S:g}",
            built_s < REBUILD_S,
        ),
        *(
            Bar(f"{name}, ms", f"{1e3 * spent:.0f}", f"under {1e3 * QUERY_S:g}", spent < QUERY_S)
            for name, spent in query_s.items()
        ),
        Bar("look for new records, nothing new, ms", f"{1e3 * check_s:.1f}", "", None),
        Bar("take in one new record, ms", f"{1e3 * new_s:.0f}", "", None),
        Bar("the whole command `trainmark results --json`, ms", f"{1e3 * command_s:.0f}", "", None),
    ]
    details = (
        f"{size / 1e9:.2f} GB of records, an index of {index_bytes / 1e6:.0f} MB, on "
        f"{len(os.sched_getaffinity(0))} cores with a load of {os.getloadavg()[0]:.1f}; a matmul "
        f"of 1024 x 1024 in fp32 took {1e3 * square_s:.1f} ms, the build {built_s / square_s:,.0f} "
        f"and the slowest query {max(query_s.values()) / square_s:.1f} times as long. "
        f"The build took {spent_s:.0f} s of processor time."
    )
    return conclude("store_queries", "The index of many records", bars, details)


def _plan(folder: Path) -> str:
    (folder / "plan").mkdir()
    return "plan"


if __name__ == "__main__":
    sys.exit(not main())
