"""One epoch's document, sample and shuffle indices of a large corpus, built cold."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness import Bar, choose_size, conclude

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOKENS, DOCUMENTS = choose_size((100_000_000, 1_000_000), (2_000_000, 200_000))
SEQ_LENGTH = 1024
SECONDS, MEGABYTES = 10.0, 2000.0
RUNS = choose_size(3, 1)


def draw_document_sizes() -> NDArray[np.int64]:
    """Return log-normal sizes that add up to ``TOKENS``: most short, a few very long."""
    raw = np.random.default_rng(1).lognormal(sigma=1.5, size=DOCUMENTS)
    ends = np.rint(np.cumsum(raw) * (TOKENS / raw.sum())).astype(np.int64)
    return np.diff(ends, prepend=0)


def _write(prefix: Path, sizes: NDArray[np.int64]) -> None:
    from trainmark.data.indexed import write_pair

    write_pair(prefix, np.zeros(TOKENS, np.uint16), sizes.astype(np.int32), np.dtype(np.uint16))


def measure_build(prefix: Path) -> None:
    """Build one epoch as a rank does; print seconds and peak megabytes as JSON."""
    from trainmark.data.indexed import IndexedReader
    from trainmark.data.sampling import Samples

    start = time.perf_counter()
    reader = IndexedReader.open(prefix)
    opened = time.perf_counter()
    index = Samples(reader, range(reader.num_documents), SEQ_LENGTH, 1).build_epoch(0)
    built = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert len(index) == (TOKENS - 1) // SEQ_LENGTH
    spans = {"open_s": opened - start, "build_s": built - opened}
    print(json.dumps({**spans, "peak_mb": peak}))


def time_plain_loop_s(sizes: NDArray[np.int64]) -> float:
    """Return seconds that plain loops take for the three indices, one entry after another."""
    plain = sizes.tolist()
    start = time.perf_counter()
    order = list(range(len(plain)))
    random.Random(1).shuffle(order)
    cuts, passed, due = [], 0, 0
    for position, document in enumerate(order):
        while due < passed + plain[document]:
            cuts.append((position, due - passed))
            due += SEQ_LENGTH
        passed += plain[document]
    shuffle = list(range(len(cuts) - 1))
    random.Random(2).shuffle(shuffle)
    elapsed_s = time.perf_counter() - start
    assert len(shuffle) == (passed - 1) // SEQ_LENGTH
    return elapsed_s


def main() -> bool:
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "corpus_text_document"
        sizes = draw_document_sizes()
        _write(prefix, sizes)
        for _ in range(RUNS):
            arguments = [sys.executable, "-m", "benchmarks.index_building", str(prefix)]
            process = subprocess.run(arguments, capture_output=True, text=True, check=True)
            runs.append(json.loads(process.stdout))
            print(f"  {runs[-1]}", file=sys.stderr)
    total = sorted(run["open_s"] + run["build_s"] for run in runs)
    peak = max(run["peak_mb"] for run in runs)
    opened = sorted(run["open_s"] for run in runs)[RUNS // 2]
    what = f"{TOKENS:,} tokens in {DOCUMENTS:,} documents: one epoch's indices, cold, s"
    bars = [
        Bar(
            what,
            f"{total[RUNS // 2]:.2f} ({total[0]:.2f} to {total[-1]:.2f})",
            f"under {SECONDS:g}",
            total[RUNS // 2] < SECONDS,
        ),
        Bar("the same, peak memory, MB", f"{peak:.0f}", f"under {MEGABYTES:g}", peak < MEGABYTES),
    ]
    tenth = time_plain_loop_s(sizes[: DOCUMENTS // 10])
    details = (
        f"Opening and checking the pair included ({opened:.3f} s). "
        f"Document sizes are log-normal, "
        f"{sizes.min()} to {sizes.max():,} tokens, median {np.median(sizes):.0f}; samples of "
        f"{SEQ_LENGTH}. Plain Python loops over a tenth of the documents take {tenth:.3f} s for "
        "the same three indices."
    )
    return conclude("index_building", "Indices of a large corpus", bars, details)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure_build(Path(sys.argv[1]))
    else:
        sys.exit(not main())
