"""The time of a comparison: 10,000 draws over ten launches a side and blocks of their steps.

The whole command, reading the records included, and the comparison alone in this process.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.harness import Bar, conclude, sized

LAUNCHES, SECONDS = sized(10, 5), 2.0
STEPS, RUNS = sized((1_000, 100_000), (100, 200)), sized(7, 1)
RECORD = Path(__file__).parents[1] / "tests" / "golden" / "record_distilbert.json"
SIZE = sized(2048, 64)


def write_side(folder: Path, name: str, steps: int, seed: int) -> None:
    """Write launches with autocorrelated step times, 5% around 100 ms."""
    rng = np.random.default_rng(seed)
    document = json.loads(RECORD.read_text(encoding="utf-8"))
    for number in range(1, LAUNCHES + 1):
        waves = np.convolve(rng.standard_normal(steps + 9), np.ones(10) / 10**0.5, "valid")
        times = np.round(1e8 * np.exp(0.01 * rng.standard_normal()) * (1 + 0.05 * waves))
        rate = 96e9 * steps / times.sum()
        entry = {"value": rate, "unit": "samples/s", "reason": None, "note": None}
        document["run_id"] = document["plan"]["run_id"] = f"{name}{number}"
        document["plan"] |= {"repeat_index": number, "repeat_count": LAUNCHES}
        document["figures"] |= dict.fromkeys(("p_core", "p_train", "p_whole"), entry)
        document["steps"] |= {
            "warmup": 0, "time_ns": times.astype(int).tolist(),
            "loss": [0.5] * steps, "samples": [96] * steps,
        }  # fmt: skip
        (folder / name / f"r{number}").mkdir(parents=True)
        (folder / name / f"r{number}" / "record.json").write_text(json.dumps(document))


def command(folder: Path) -> tuple[float, float]:
    """Return the wall and the processor seconds of ``trainmark compare``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    words = [sys.executable, "-m", "trainmark", "compare", "a", "b", "--json"]
    done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    seconds = time.perf_counter() - start
    found = json.loads(done.stdout)
    assert (found["draws"], found["figures"][0]["launches"]) == (10_000, [LAUNCHES] * 2)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime


def function(folder: Path) -> float:
    """Return the seconds of the comparison of records that were read."""
    from trainmark.judge.comparison import compare
    from trainmark.library.selection.words import select

    a, b = (select([str(folder / name)]).records for name in "ab")
    start = time.perf_counter()
    assert len(compare(a, b).figures) == 3
    return time.perf_counter() - start


def matmul_gflops() -> float:
    """Return the rate of a matrix product by the same numpy, in GFLOP/s."""
    one = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        one @ one
        times.append(time.perf_counter() - start)
    return 2e-9 * SIZE**3 / min(times)


def main() -> bool:
    """Measure both sizes; the bar is on the whole command with 1,000 steps."""
    bars, details = [], []
    for steps in STEPS:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            for seed, name in enumerate("ab"):
                write_side(folder, name, steps, seed)
            runs = [(*command(folder), function(folder), matmul_gflops()) for _ in range(RUNS)]
        whole, processor, alone, rates = (sorted(values) for values in zip(*runs, strict=True))
        judged = steps == STEPS[0]
        what = f"2 x {LAUNCHES} launches, {steps:,} steps, 10,000 draws"
        for kind, found in (("whole command", whole), ("comparison alone", alone)):
            spent = f"{median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"
            bars.append(
                Bar(f"{what}: {kind}, s", spent, f"under {SECONDS:g}" if judged else "",
                    median(found) < SECONDS if judged else None)
            )  # fmt: skip
        details.append(
            f"{steps:,} steps: the comparison alone takes as long as "
            f"{median(alone) * median(rates) / 1e3:.3f} TFLOP of matrix products in numpy at "
            f"{median(rates):.0f} GFLOP/s, measured in the same run. The whole command uses "
            f"{median(processor):.2f} s of processor time."
        )
    load = os.getloadavg()[1]
    details.append(f"Load average of the machine over five minutes: {load:.1f}.")
    return conclude("compare_draws", "A comparison with 10,000 draws", bars, "\n\n".join(details))


if __name__ == "__main__":
    sys.exit(not main())
