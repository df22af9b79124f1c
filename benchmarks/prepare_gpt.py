"""``trainmark prepare gpt_megatron`` against ``tokenizers`` encoding the same texts in batches.

Ours is the whole call: hashing, reading, parsing, encoding, writing,
syncing. The library only encodes, on all cores, texts that are in memory already, and its
ids are dropped. The texts are made: pseudo-words by Zipf's law, as no real text is at hand.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness import Bar, choose_size, compute_ratio, conclude, interleave

if TYPE_CHECKING:
    from collections.abc import Iterator

SEED = 1
CORPUS_BYTES, WORDS = choose_size((50_000_000, 60_000), (200_000, 500))
LETTERS = ("bcdfghklmnprstvwz", "aeiou", ("", "", "", *"lmnrst"))
VOCAB_SIZE = 8_000
LEARNT_TEXTS = 4_000  # what the tokenizer is trained on
BATCH_TEXTS = 1_000
ROUNDS = 4
BAR = 0.9


def _draw_words(random: np.random.Generator) -> np.ndarray[Any, Any]:
    def draw_syllable() -> str:
        return "".join(str(random.choice(list(letters))) for letters in LETTERS)

    made = ["".join(draw_syllable() for _ in range(random.integers(1, 5))) for _ in range(WORDS)]
    return np.array(made, dtype=object)


def _iterate_texts() -> Iterator[str]:
    """Yield texts of sentences; lengths of texts are log-normal."""
    random = np.random.default_rng(SEED)
    words = _draw_words(random)
    shares = 1 / np.arange(1, WORDS + 1)
    ends = np.cumsum(shares / shares.sum())
    while True:
        count = int(random.lognormal(5.5, 0.8)) + 5
        drawn = words[np.searchsorted(ends, random.random(count)).clip(0, WORDS - 1)]
        parts = (" ".join(drawn[at : at + 12]).capitalize() for at in range(0, count, 12))
        yield ". ".join(parts) + "."


def make_corpus(file: Path) -> list[str]:
    """Write a corpus of ``CORPUS_BYTES`` and return its texts."""
    texts, size_bytes = [], 0
    with file.open("w", encoding="utf-8") as stream:
        for text in _iterate_texts():
            texts.append(text)
            size_bytes += stream.write(json.dumps({"text": text}) + "\n")
            if size_bytes >= CORPUS_BYTES:
                return texts
    raise AssertionError("texts never end")


def make_tokenizer(folder: Path, texts: list[str]) -> Path:
    """Train a tokenizer on the first texts and write it to ``folder``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<|endoftext|>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    library.train_from_iterator(texts[:LEARNT_TEXTS], trainer)
    folder.mkdir()
    library.save(str(folder / "tokenizer.json"))
    return folder


def run_library(folder: Path, texts: list[str]) -> float:
    """Return the seconds of encoding all texts with all cores."""
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    start = time.perf_counter()
    for first in range(0, len(texts), BATCH_TEXTS):
        library.encode_batch_fast(texts[first : first + BATCH_TEXTS], add_special_tokens=False)
    return time.perf_counter() - start


def run_ours(folder: Path, corpus: Path, data: Path) -> float:
    """Return the seconds of a complete call that starts with an empty folder."""
    from trainmark.cases.gpt_megatron.prepare import prepare

    shutil.rmtree(data, ignore_errors=True)
    start = time.perf_counter()
    prepare(corpus, data, lambda _: None, tokenizer=folder)
    return time.perf_counter() - start


def refuse_other_ids(folder: Path, data: Path, texts: list[str]) -> int:
    """Hold what was written to the library's ids; return the number of tokens."""
    from tokenizers import Tokenizer

    from trainmark.data.indexed import IndexedReader

    reader = IndexedReader.open(data / "corpus_text_document")
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert reader.num_documents == len(texts)
    for number in range(0, len(texts), 50):
        ids = library.encode(texts[number], add_special_tokens=False).ids
        start, end = reader.find_token_starts(range(number, number + 1))
        assert reader.tokens[start:end].tolist() == [*ids, library.token_to_id("<|endoftext|>")]
    return reader.num_tokens


def _measure(folder: Path) -> tuple[list[Bar], str]:
    corpus, data = folder / "corpus.jsonl", folder / "data"
    texts = make_corpus(corpus)
    tokenizer = make_tokenizer(folder / "tokenizer", texts)
    seconds_by_name = interleave(
        {
            "library": partial(run_library, tokenizer, texts),
            "ours": partial(run_ours, tokenizer, corpus, data),
        },
        rounds=ROUNDS,
        warmup=0,
    )
    tokens = refuse_other_ids(tokenizer, data, texts)
    speed = compute_ratio(seconds_by_name["library"], seconds_by_name["ours"])
    label = "`prepare gpt_megatron` / `tokenizers` in batches, speed"
    size_bytes = corpus.stat().st_size
    rates = ", ".join(
        f"{name} {size_bytes / sorted(values)[len(values) // 2] / 1e6:.1f}"
        for name, values in seconds_by_name.items()
    )
    return [Bar(label, str(speed), f"at least {BAR:g}", speed.median >= BAR)], (
        f"{len(texts):,} texts, {size_bytes / 1e6:.0f} MB of JSON lines, {tokens:,} "
        f"tokens with {VOCAB_SIZE:,} ids; {len(os.sched_getaffinity(0))} cores. "
        f"Medians of {ROUNDS} rounds in MB/s: {rates}. "
        "Ours is the whole call with files hashed and synced; the library encodes texts in "
        f"memory, {BATCH_TEXTS:,} a batch, and its ids are dropped. "
        "Every fiftieth document of ours was compared with the library's ids."
    )


def main() -> bool:
    with tempfile.TemporaryDirectory() as name:
        bars, details = _measure(Path(name))
    title = "Tokenising a corpus, the whole call"
    return conclude("prepare_gpt", title, bars, details)


if __name__ == "__main__":
    sys.exit(not main())
