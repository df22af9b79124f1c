"""The click-log reader alone, against memory copies of the same bytes and against the step."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness import Bar, choose_size, compute_ratio, conclude, interleave

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.cases.dlrm_criteo.data.layout import FeatureSpec

ROWS, TABLE_ROWS, TABLES = *choose_size((1 << 21, 100_000), (1 << 10, 33_000)), 26
BATCH_SIZE, LARGE_BATCH_SIZE = choose_size((8_192, 65_536), (64, 256))
DIM, BOTTOM, TOP = 128, (512, 256, 128), (1024, 1024, 512, 256, 1)
STEPS = 2  # of one measure of the step
TIMES_THE_STEP = 20.0
ROUNDS = 5


def write(folder: Path) -> FeatureSpec:
    """Write rows for 26 tables of 100,000; a column of each narrower type would be smaller."""
    from trainmark.cases.dlrm_criteo.data.layout import FeatureSpec, write_spec

    rng = np.random.default_rng(1)
    cardinalities = (TABLE_ROWS,) * TABLES
    for split, files in FeatureSpec.create(folder, cardinalities).files.items():
        rows = ROWS if split == "train" else 1
        files.label.parent.mkdir()
        (rng.random(rows) < 0.5).tofile(files.label)
        rng.standard_normal((rows, 13), np.float32).astype(np.float16).tofile(files.numerical)
        for file in files.categories:
            rng.integers(0, TABLE_ROWS, rows, dtype=np.int32).tofile(file)
    return write_spec(folder, cardinalities)


def make_reading(spec: FeatureSpec, batch_size: int, *, shuffled: bool) -> Callable[[], float]:
    """Return a measure of samples/s of one pass, every batch taken and let go."""
    from trainmark.cases.dlrm_criteo.data import SplitReader

    reader = SplitReader(spec, "train")
    count = -(-ROWS // batch_size)
    order = np.random.default_rng(2).permutation(count) if shuffled else None

    def measure() -> float:
        start = time.perf_counter()
        num_samples = sum(
            len(batch.labels) for batch in reader.read_batches(batch_size, order=order)
        )
        elapsed_s = time.perf_counter() - start
        assert num_samples == ROWS
        return num_samples / elapsed_s

    return measure


def make_stepping(spec: FeatureSpec) -> Callable[[], float]:
    """Return a measure of samples/s of the published model's steps in fp32, fed from memory."""
    import torch

    from trainmark.cases.dlrm_criteo.data import SplitReader
    from trainmark.cases.dlrm_criteo.embeddings import FusedTables
    from trainmark.cases.dlrm_criteo.model import build_model

    tables = FusedTables(spec.cardinalities, DIM, seed=1)
    tables.learning_rate, tables.grad_scale = 0.1, 1.0
    model = build_model(13, DIM, TABLES, list(BOTTOM), list(TOP), seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fed = SplitReader(spec, "train").read_batches(BATCH_SIZE)
    batches = [next(fed) for _ in range(STEPS)]

    def measure() -> float:
        start = time.perf_counter()
        for batch in batches:
            embedded = tables(torch.from_numpy(batch.categories))
            logits = model(torch.from_numpy(batch.numerical).float(), embedded)
            labels = torch.from_numpy(batch.labels)
            torch.nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        return STEPS * BATCH_SIZE / (time.perf_counter() - start)

    return measure


def make_copying(total_bytes: int) -> Callable[[], float]:
    """Return a measure of samples/s if reading were one copy from memory to memory."""
    source = np.ones(total_bytes, np.uint8)
    target = np.zeros(total_bytes, np.uint8)

    def measure() -> float:
        start = time.perf_counter()
        target[:] = source
        return ROWS / (time.perf_counter() - start)

    return measure


def main() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        spec = write(Path(folder))
        row_bytes = sum(kind.itemsize for kind in spec.get_row_types("train").values())
        rates_by_name = interleave(
            {
                "in order": make_reading(spec, BATCH_SIZE, shuffled=False),
                "random batches": make_reading(spec, BATCH_SIZE, shuffled=True),
                "large batches": make_reading(spec, LARGE_BATCH_SIZE, shuffled=False),
                "copy": make_copying(ROWS * row_bytes),
                "step": make_stepping(spec),
            },
            rounds=ROUNDS,
        )
    bars, lines = [], []
    for name, size in (
        ("in order", BATCH_SIZE),
        ("random batches", BATCH_SIZE),
        ("large batches", LARGE_BATCH_SIZE),
    ):
        rates = rates_by_name[name]
        median = statistics.median(rates)
        times = compute_ratio(rates, rates_by_name["step"])
        bars.append(
            Bar(
                f"batch {size:,}, {name}: {median:,.0f} samples/s, over the step's",
                f"{times}",
                f"at least {TIMES_THE_STEP:g}",
                times.median >= TIMES_THE_STEP,
            )
        )
        lines.append(
            f"- batch {size:,}, {name}: {median * row_bytes / 1e9:.2f} GB/s of file, "
            f"{compute_ratio(rates_by_name[name], rates_by_name['copy'])} of the copy"
        )
    copy = statistics.median(rates_by_name["copy"]) * row_bytes / 1e9
    details = (
        f"{ROWS:,} rows of {row_bytes} bytes in 28 files that the system keeps in memory; "
        f"categories are 4 bytes wide. A copy of as many bytes from memory to memory runs at "
        f"{copy:.2f} GB/s; steps of batch {BATCH_SIZE:,} over {TABLES} tables of {TABLE_ROWS:,} x "
        f"{DIM}, fp32, consume {statistics.median(rates_by_name['step']):,.0f} samples/s.\n\n"
        + "\n".join(lines)
    )
    return conclude("dlrm_reader", "Click-log reader", bars, details)


if __name__ == "__main__":
    sys.exit(not main())
