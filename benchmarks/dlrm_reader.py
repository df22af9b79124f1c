"""The click-log reader alone, against memory copies of the same bytes and against the step."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness import Bar, conclude, interleave, ratio

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.cases.dlrm_criteo.layout import FeatureSpec

ROWS, TABLES, TABLE_ROWS = 1 << 21, 26, 100_000
BATCH_SIZE, LARGE_BATCH_SIZE = 8_192, 65_536
STEP_SAMPLES_PER_S = 20_000.0  # upper end of what a step of this size takes on two cores
TIMES_THE_STEP = 20.0
ROUNDS = 9


def write(folder: Path) -> FeatureSpec:
    """Write rows for 26 tables of 100,000; a column of each narrower type would be smaller."""
    from trainmark.cases.dlrm_criteo.layout import FeatureSpec, write_spec

    rng = np.random.default_rng(1)
    cardinalities = (TABLE_ROWS,) * TABLES
    for split, files in FeatureSpec.of(folder, cardinalities).files.items():
        rows = ROWS if split == "train" else 1
        files.label.parent.mkdir()
        (rng.random(rows) < 0.5).tofile(files.label)
        rng.standard_normal((rows, 13), np.float32).astype(np.float16).tofile(files.numerical)
        for file in files.categories:
            rng.integers(0, TABLE_ROWS, rows, dtype=np.int32).tofile(file)
    return write_spec(folder, cardinalities)


def reading(spec: FeatureSpec, batch_size: int, *, shuffled: bool) -> Callable[[], float]:
    """Return a measure of samples/s of one pass, every batch taken and let go."""
    from trainmark.cases.dlrm_criteo.reader import SplitReader

    reader = SplitReader(spec, "train")
    count = -(-ROWS // batch_size)
    order = np.random.default_rng(2).permutation(count) if shuffled else None

    def measure() -> float:
        start = time.perf_counter()
        seen = sum(len(batch.labels) for batch in reader.batches(batch_size, order=order))
        taken = time.perf_counter() - start
        assert seen == ROWS
        return seen / taken

    return measure


def copying(total_bytes: int) -> Callable[[], float]:
    """Return a measure of samples/s if reading were one copy from memory to memory."""
    source = np.ones(total_bytes, np.uint8)
    target = np.zeros(total_bytes, np.uint8)

    def measure() -> float:
        start = time.perf_counter()
        target[:] = source
        return ROWS / (time.perf_counter() - start)

    return measure


def main() -> bool:
    with tempfile.TemporaryDirectory() as place:
        spec = write(Path(place))
        row_bytes = sum(spec.row_bytes("train").values())
        found = interleave(
            {
                "in order": reading(spec, BATCH_SIZE, shuffled=False),
                "random batches": reading(spec, BATCH_SIZE, shuffled=True),
                "large batches": reading(spec, LARGE_BATCH_SIZE, shuffled=False),
                "copy": copying(ROWS * row_bytes),
            },
            rounds=ROUNDS,
        )
    needed = TIMES_THE_STEP * STEP_SAMPLES_PER_S
    bars, lines = [], []
    for name, size in (
        ("in order", BATCH_SIZE), ("random batches", BATCH_SIZE),
        ("large batches", LARGE_BATCH_SIZE),
    ):  # fmt: skip
        rates = sorted(found[name])
        median = statistics.median(rates)
        bars.append(
            Bar(
                f"batch {size:,}, {name}, samples/s",
                f"{median:,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f})",
                f"at least {needed:,.0f}: {TIMES_THE_STEP:g} x a step of "
                f"{STEP_SAMPLES_PER_S:,.0f} samples/s",
                median >= needed,
            )
        )
        lines.append(
            f"- batch {size:,}, {name}: {median * row_bytes / 1e9:.2f} GB/s of file, "
            f"{ratio(found[name], found['copy'])} of the copy"
        )
    copy = statistics.median(found["copy"]) * row_bytes / 1e9
    details = (
        f"{ROWS:,} rows of {row_bytes} bytes in 28 files that the system keeps in memory; "
        f"categories are 4 bytes wide. A copy of as many bytes from memory to memory runs at "
        f"{copy:.2f} GB/s.\n\n" + "\n".join(lines)
    )
    return conclude("dlrm_reader", "Click-log reader", bars, details)


if __name__ == "__main__":
    sys.exit(not main())
