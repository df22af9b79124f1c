"""GLM's loader against the steps it feeds."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness import Bar, choose_size, compute_ratio, conclude, interleave

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.cases.glm_superglue.data.examples import Examples
    from trainmark.cases.glm_superglue.data.passages import Passages

SEQ_LENGTH, VOCAB_SIZE, WIDTH, HEADS = choose_size(512, 64), 30_592, 1024, 16
SAMPLES = choose_size(400, 16)
# About as ReCoRD has them.
CANDIDATES, PASSAGE_TOKENS, NAME_TOKENS = choose_size((10, 300, 3), (4, 16, 3))
MICRO_BATCH = 8
STEP_SEQUENCES = 4
ROUNDS = 5
TIMES_THE_STEP = 5.0


def draw_passages() -> Passages:
    """Return samples of ReCoRD's sizes from drawn tokens, as text is once tokenised."""
    from trainmark.cases.glm_superglue.data.passages import BlockTokens, Passages
    from trainmark.data.splits import Ragged, compute_starts

    rng = np.random.default_rng(1)

    def draw_rows(count: int, tokens: int) -> Ragged:
        lengths = rng.integers(max(1, tokens // 2), tokens * 3 // 2, count)
        values = rng.integers(1_000, 30_000, int(lengths.sum()), dtype=np.int32)
        return Ragged(values, compute_starts(lengths))

    first_name_of_passage = np.arange(SAMPLES + 1) * CANDIDATES
    return Passages(
        texts=draw_rows(SAMPLES, PASSAGE_TOKENS),
        names=draw_rows(SAMPLES * CANDIDATES, NAME_TOKENS),
        query_halves=draw_rows(2 * SAMPLES, 12),
        answers=Ragged(first_name_of_passage[:-1].copy(), np.arange(SAMPLES + 1)),
        first_name_of_passage=first_name_of_passage,
        first_question_of_passage=np.arange(SAMPLES + 1),
        num_entities=np.full(SAMPLES, CANDIDATES),
        lines=np.arange(1, SAMPLES + 1),
        tokens=BlockTokens(first=101, mask=103, end=0, piece_start=30_522, piece_end=30_523),
    )


def make_cloze() -> Examples:
    """Return the drawn passages as training samples."""
    from trainmark.cases.glm_superglue.data.cloze import ClozeExamples, ClozeSamples

    passages = draw_passages()
    return ClozeExamples(
        passages,
        ClozeSamples.draw_for_training(passages, CANDIDATES - 1),
        seq_length=SEQ_LENGTH,
        file=Path("drawn"),
    )


def make_reading(examples: Examples) -> Callable[[], float]:
    """Return a measure of sequences/s of one pass in random order."""
    order = np.random.default_rng(2).permutation(len(examples))

    def measure() -> float:
        start, num_sequences = time.perf_counter(), 0
        for first in range(0, len(order), MICRO_BATCH):
            num_sequences += len(examples.batch(order[first : first + MICRO_BATCH])[0].ids)
        return num_sequences / (time.perf_counter() - start)

    return measure


def make_stepping(examples: Examples) -> Callable[[], float]:
    """Return a measure of sequences/s of training one block of GLM-large, fp32."""
    import torch

    from trainmark.cases.glm_superglue.case import GlmShape
    from trainmark.cases.glm_superglue.model import build_model

    shape = GlmShape(
        num_layers=1,
        hidden_size=WIDTH,
        num_heads=HEADS,
        vocab_size=VOCAB_SIZE,
        max_positions=SEQ_LENGTH,
    )
    model = build_model(shape, dropout=0.1, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    batch = next(examples.batch([0])[0].split_sequences(STEP_SEQUENCES))
    inputs = [
        torch.from_numpy(item)
        for item in (
            batch.ids,
            batch.positions,
            batch.block_positions,
            batch.prefix_lengths,
            batch.target_rows,
            batch.target_ids,
        )
    ]

    def measure() -> float:
        start = time.perf_counter()
        (-model(*inputs).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        return STEP_SEQUENCES / (time.perf_counter() - start)

    return measure


def main() -> bool:
    examples = make_cloze()
    measures = {"load": make_reading(examples), "step": make_stepping(examples)}
    rates = interleave(measures, rounds=ROUNDS)
    times = compute_ratio(rates["load"], rates["step"])
    what = f"{statistics.median(rates['load']):,.0f} sequences/s, over the step's"
    met = times.median >= TIMES_THE_STEP
    bars = [Bar(what, str(times), f"at least {TIMES_THE_STEP:g}", met)]
    details = (
        f"{SAMPLES} samples of {CANDIDATES} candidates and about {PASSAGE_TOKENS} tokens, padded "
        f"to {SEQ_LENGTH}, in batches of {MICRO_BATCH}. The step trains one of GLM-large's 24 "
        f"blocks, fp32, {STEP_SEQUENCES} sequences at a time, at "
        f"{statistics.median(rates['step']):.2f} sequences/s. For comparison: whole GLM-large on "
        "one accelerator of 989 TFLOP/s in bf16 would take 336 sequences/s at an MFU of 35%."
    )
    return conclude("glm_loader", "GLM loader", bars, details)


if __name__ == "__main__":
    sys.exit(not main())
