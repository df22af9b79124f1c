"""The GPT case from the command line: text to tokens to a run over two ranks."""

from __future__ import annotations

import json

import numpy as np
import pytest

from support.gpt_tokenizers import write_two_files
from trainmark.data.indexed import IndexedReader
from trainmark.record.record import read_record

pytestmark = pytest.mark.nightly

SMALL = ("num_layers=1", "hidden_size=16", "num_heads=2", "seq_length=16", "bs=4", "target=none")


def test_text_is_tokenized_and_trained(trainmark, tmp_path):
    """Text is prepared with a tokenizer, ``bpe``, and trained by two ranks that share the model.

    ``write_two_files`` writes the tokenizer's files. ``SMALL`` has a tiny model, samples of 16
    tokens (``seq_length``), a micro-batch of 4 samples (``bs``), and no target. ``vocab_size`` is
    the number of tokens in these files.
    """
    # 400 documents of 30 words each.
    words = np.random.default_rng(3).choice(["hello", "world", "'s", "well", "who"], (400, 30))
    texts = [" ".join(row) for row in words]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "corpus.jsonl").write_text(lines)
    write_two_files(tmp_path / "bpe")
    process = trainmark(
        "prepare", "gpt_megatron", "tokenizer=bpe", "--from", "corpus.jsonl", "--data", "data"
    )
    assert process.returncode == 0, process.stderr
    reader = IndexedReader.open(tmp_path / "data" / "corpus_text_document")
    assert reader.num_documents == 400
    spread = ("--recipe", "tiny", "--nproc", "2", "tensor_parallel=2", "vocab_size=264")
    args = ("run", "gpt_megatron", "--data", "data", "--out", "run", *spread)
    process = trainmark(*args, "epochs=2", *SMALL)
    assert process.returncode == 0, process.stdout + process.stderr
    record = read_record(tmp_path / "run")
    # The training has 949 of 1000 documents, as Megatron splits; ``sizes``: tokens of each
    # document.
    # All documents of the split joined, cut every 16 tokens (``SMALL``); each sample once an epoch.
    tokens = int(reader.sizes[:380].sum())  # 0.949 x 400, rounded
    samples = (tokens - 1) // 16  # each also needs the token after it, as a target
    assert record.plan.data.train_samples == samples
    assert record.counts.samples == 2 * samples
    assert record.counts.tokens == 2 * samples * 16
    # Steps of 4 samples (``SMALL``), not 8: two tensor ranks are one replica.
    assert record.counts.steps == 2 * -(-samples // 4)
    # The samples of a replica count on its first rank.
    assert [rank.counts.samples for rank in record.ranks] == [2 * samples, 0]
    assert record.environment["job"]["parallel"] == {"data": 1, "tensor": 2, "fsdp": False}
    # The folder ``index`` has the results in the form of public collections. "open": changed beyond
    # the closed rules; "mp": several processes; "2": two ranks; "speed": what the result is.
    assert (tmp_path / "run/index/nlp_gpt-tiny-open_mp_bs4_fp32_2_speed").is_file()
