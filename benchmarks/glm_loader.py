"""GLM's loaders against the steps they feed, and the opening of a large sparse file."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.glm_sparse import write_split
from benchmarks.harness import Bar, conclude, interleave, ratio

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.cases.glm_superglue.examples import Examples

SEQ_LENGTH, VOCAB_SIZE, WIDTH, HEADS = 512, 30_592, 1024, 16
SAMPLES, CANDIDATES, PASSAGE_TOKENS, NAME_TOKENS = 400, 10, 300, 3  # about as ReCoRD has them
MICRO_BATCH = 8
STEP_SEQUENCES = 4
ROUNDS = 5
TIMES_THE_STEP = 5.0
LARGE_BYTES, OPEN_S, OPEN_BYTES = 10 * 10**9, 5.0, 10**9
OPENINGS = 5


def cloze() -> Examples:
    """Return samples of ReCoRD's sizes from drawn tokens, held as text is once tokenised."""
    from trainmark.cases.glm_superglue.cloze import ClozeExamples, Drawn
    from trainmark.cases.glm_superglue.passages import Passages
    from trainmark.cases.glm_superglue.ragged import Ragged, starts_of
    from trainmark.cases.glm_superglue.tokens import BlockTokens

    rng = np.random.default_rng(1)

    def rows(count: int, tokens: int) -> Ragged:
        lengths = rng.integers(max(1, tokens // 2), tokens * 3 // 2, count)
        values = rng.integers(1_000, 30_000, int(lengths.sum()), dtype=np.int32)
        return Ragged(values, starts_of(lengths))

    names_of = np.arange(SAMPLES + 1) * CANDIDATES
    passages = Passages(
        texts=rows(SAMPLES, PASSAGE_TOKENS),
        names=rows(SAMPLES * CANDIDATES, NAME_TOKENS),
        queries=rows(2 * SAMPLES, 12),
        answers=Ragged(names_of[:-1].copy(), np.arange(SAMPLES + 1)),
        names_of=names_of,
        questions_of=np.arange(SAMPLES + 1),
        num_entities=np.full(SAMPLES, CANDIDATES),
        lines=np.arange(1, SAMPLES + 1),
    )
    tokens = BlockTokens(first=101, mask=103, end=0, piece_start=30_522, piece_end=30_523)
    return ClozeExamples(
        passages, Drawn.for_training(passages, CANDIDATES - 1), tokens=tokens,
        seq_length=SEQ_LENGTH, file=Path("drawn"),
    )  # fmt: skip


def sparse(file: Path, examples: Examples, **storage: Any) -> Examples:
    """Return the same samples out of a sparse HDF5 file."""
    from trainmark.cases.glm_superglue.hdf5 import SparseExamples

    samples = [examples.sequences(row) for row in range(len(examples))]
    write_split(file, samples, columns=SEQ_LENGTH, evaluation=False, **storage)
    return SparseExamples(
        file, evaluation=False, seq_length=SEQ_LENGTH, max_wrong_choices=CANDIDATES - 1
    )


def reading(examples: Examples) -> Callable[[], float]:
    """Return a measure of sequences/s of one pass in random order."""
    order = np.random.default_rng(2).permutation(len(examples))

    def measure() -> float:
        start, seen = time.perf_counter(), 0
        for first in range(0, len(order), MICRO_BATCH):
            seen += len(examples.batch(order[first : first + MICRO_BATCH]).ids)
        return seen / (time.perf_counter() - start)

    return measure


def stepping(examples: Examples) -> Callable[[], float]:
    """Return a measure of sequences/s of training one block of GLM-large, fp32."""
    import torch

    from trainmark.cases.glm_superglue.model import GlmShape, build_model

    shape = GlmShape(
        num_layers=1, hidden_size=WIDTH, num_heads=HEADS, vocab_size=VOCAB_SIZE,
        max_positions=SEQ_LENGTH,
    )  # fmt: skip
    model = build_model(shape, dropout=0.1, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    batch = next(examples.batch([0]).parts(STEP_SEQUENCES))
    inputs = [
        torch.from_numpy(item)
        for item in (
            batch.ids, batch.positions, batch.block_positions, batch.separators,
            batch.target_rows, batch.target_ids,
        )
    ]  # fmt: skip

    def measure() -> float:
        start = time.perf_counter()
        (-model(*inputs).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        return STEP_SEQUENCES / (time.perf_counter() - start)

    return measure


def write_large(file: Path) -> int:
    """Write a file of ``LARGE_BYTES`` with ReCoRD's rows; return its sequences.

    Where rows begin, separators and samples are real; tokens are holes in the file, which
    take no room on the disk and are not to be read by opening it.
    """
    import h5py

    row = {"text": 320, "position": 320, "target": 4, "logit_mask": 4}  # numbers stored
    each = {"position": 2}
    sequences = LARGE_BYTES // (
        sum(12 * n * each.get(name, 1) for name, n in row.items()) // CANDIDATES * CANDIDATES
    )
    sequences -= sequences % CANDIDATES
    with h5py.File(file, "w") as out:
        for name, stored in row.items():
            rows = sequences * each.get(name, 1)
            group = out.create_group(name)
            group.attrs["h5sparse_format"] = "csr"
            group.attrs["h5sparse_shape"] = (rows, SEQ_LENGTH)
            for part, dtype in (("data", "i8"), ("indices", "i4")):
                vector = group.create_dataset(part, (rows * stored,), dtype, fillvalue=None)
                vector[-1] = 1  # the file is as long as what it describes
            group["indptr"] = np.arange(rows + 1) * stored
        out["mask"] = np.full(sequences, 300)
        starts = np.arange(0, sequences, CANDIDATES)
        out["choice_start_end"] = np.stack([starts, starts + CANDIDATES], 1)
    return sequences


def open_once(file: Path) -> None:
    """Open the large file and print seconds and peak bytes of this process."""
    from trainmark.cases.glm_superglue.hdf5 import SparseExamples

    start = time.perf_counter()
    examples = SparseExamples(
        file, evaluation=False, seq_length=SEQ_LENGTH, max_wrong_choices=CANDIDATES - 1
    )
    taken = time.perf_counter() - start
    # Not ru_maxrss: it holds what the parent had in memory when this process was made.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak_kib = int(status.partition("VmHWM:")[2].split()[0])
    print(taken, peak_kib * 1024, int(examples.num_choices.sum()))


def opening(file: Path, sequences: int) -> tuple[list[float], list[float]]:
    """Return seconds and peak bytes of opening the file, each in a process of its own."""
    seconds, peaks = [], []
    for _ in range(OPENINGS):
        found = subprocess.run(
            [sys.executable, "-m", "benchmarks.glm_loader", str(file)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        taken, peak, held = found.stdout.split()
        assert int(held) == sequences
        seconds.append(float(taken))
        peaks.append(float(peak))
    return seconds, peaks


def main() -> bool:
    bars = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        text = cloze()
        variants = {
            "text": text,
            "HDF5 in one piece": sparse(folder / "plain.hdf5", text),
            "HDF5 in compressed chunks": sparse(
                folder / "chunked.hdf5", text, chunks=True, compression="gzip"
            ),
        }
        measures = {name: reading(examples) for name, examples in variants.items()}
        found = interleave({**measures, "step": stepping(text)}, rounds=ROUNDS)
        for name in variants:
            times = ratio(found[name], found["step"])
            what = f"{name}: {statistics.median(found[name]):,.0f} sequences/s, over the step's"
            met = times.median >= TIMES_THE_STEP
            bars.append(Bar(what, str(times), f"at least {TIMES_THE_STEP:g}", met))
        free = shutil.disk_usage(folder).free
        if free < 1.2 * LARGE_BYTES:
            raise SystemExit(f"{free / 1e9:.1f} GB free in {folder}: too few for the large file")
        large = folder / "large.hdf5"
        sequences = write_large(large)
        size = large.stat().st_size
        assert size >= LARGE_BYTES
        seconds, peaks = opening(large, sequences)
    what = f"opening {size / 1e9:.1f} GB of HDF5 with {sequences:,} sequences"
    bars.append(Bar(what, f"{max(seconds):.2f} s", f"under {OPEN_S:g} s", max(seconds) < OPEN_S))
    bars.append(
        Bar("its memory, the whole process", f"{max(peaks) / 1e6:.0f} MB", "under 1 GB",
            max(peaks) < OPEN_BYTES)
    )  # fmt: skip
    details = (
        f"{SAMPLES} samples of {CANDIDATES} candidates and about {PASSAGE_TOKENS} tokens, padded "
        f"to {SEQ_LENGTH}, in batches of {MICRO_BATCH}. The step trains one of GLM-large's 24 "
        f"blocks, fp32, {STEP_SEQUENCES} sequences at a time, at "
        f"{statistics.median(found['step']):.2f} sequences/s. For comparison: whole GLM-large on "
        "one accelerator of 989 TFLOP/s in bf16 would take 336 sequences/s at an MFU of 35%. "
        f"The large file is opened {OPENINGS} times, the worst is given; its tokens are holes."
    )
    return conclude("glm_loader", "GLM loaders", bars, details)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        open_once(Path(sys.argv[1]))
    else:
        sys.exit(not main())
