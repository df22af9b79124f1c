"""C4's shards into both pairs; which documents are read; what of a data folder is refused."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from support import tiny_gpt_oss, tiny_llama31
from support.gpt_tokenizers import encode_by_hand, write_one_file
from trainmark.cases.llama31_8b import prepare
from trainmark.data import c4_pairs as data
from trainmark.data.indexed import IndexedReader
from trainmark.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


def write_shard(folder: Path, name: str, texts: list[str]) -> None:
    lines = "".join(json.dumps({"text": text, "url": "x"}) + "\n" for text in texts)
    (folder / name).write_bytes(gzip.compress(lines.encode()))


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Return a download of C4: three training shards of 40 documents, two of validation of 30."""
    folder = tmp_path / "c4"
    folder.mkdir()
    for number in (767, 768, 1023):  # the published training reads those from 768 on
        name = f"c4-train.{number:05}-of-01024.json.gz"
        write_shard(folder, name, [f"hello {number} {line}" for line in range(40)])
    for number in range(2):
        name = f"c4-validation.{number:05}-of-00008.json.gz"
        write_shard(folder, name, [f"wo {number} {line}" for line in range(30)])
    return folder


def read_texts(reader: IndexedReader) -> list[list[int]]:
    starts = reader.find_token_starts(range(reader.num_documents))
    return [reader.tokens[start:end].tolist() for start, end in pairwise(starts)]


@pytest.fixture
def prepared_folder(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepare ``raw`` with the first 45 of its validation documents."""
    tokenizer = write_one_file(tmp_path / "tokenizer")
    with monkeypatch.context() as patched:
        patched.setattr(data, "VALIDATION_DOCUMENTS", 45)
        prepare.prepare(raw, tmp_path / "data", lambda _: None, tokenizer=tokenizer)
    return tmp_path / "data"


def test_published_documents_become_two_splits_without_end_tokens(prepared_folder: Path) -> None:
    train, validation = (
        read_texts(IndexedReader.open(prepared_folder / name))
        for name in (data.TRAIN_PREFIX, data.VALIDATION_PREFIX)
    )
    # Of the three training shards of ``raw``, the published training reads those from 768 on.
    lines = [f"hello {number} {line}" for number in (768, 1023) for line in range(40)]
    assert train == [encode_by_hand(line) for line in lines]
    # Validation is cut at 45 documents.
    lines = [f"wo {number} {line}" for number in range(2) for line in range(30)]
    assert validation == [encode_by_hand(line) for line in lines[:45]]


def test_data_that_is_part_of_the_published_data_changes_the_rules(prepared_folder: Path) -> None:
    recipe = tiny_llama31.make_recipe(
        data="c4", vocab_size=264, eval_samples=8, shuffled_together=900
    )
    facts = data.check(prepared_folder, recipe)
    # The training shards and validation documents that were prepared, fewer than the published.
    assert facts.changed_rules == {"train_shards": 2, "validation_documents": 45}
    assert facts.eval_samples == 8
    data.load(prepared_folder, recipe).train.build_epoch(0)
    # The order of samples is four arrays, written so that the other ranks can map them. Their
    # folder names 12 tokens a sample and 900 samples shuffled together.
    order_files = list((prepared_folder / data.CACHE_FOLDER).glob("*-12-900/*/*.npy"))
    assert len(order_files) == 4


def test_number_of_validation_tokens_is_compared_with_the_published_one(
    prepared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the 45 documents and this tokenizer were the published ones.
    monkeypatch.setattr(data, "VALIDATION_DOCUMENTS", 45)
    monkeypatch.setattr(data, "PUBLISHED_VOCABULARY_SIZE", 264)
    recipe = tiny_llama31.make_recipe(data="c4", vocab_size=264)
    # With all documents and the published vocabulary, the number of tokens must be the published
    # one, 47,186,855 (``VALIDATION_TOKENS``); the 45 documents have far fewer. Another number means
    # another tokenizer or other documents.
    with pytest.raises(DataError, match="47,186,855 tokens"):
        data.check(prepared_folder, recipe)
    tokens = IndexedReader.open(prepared_folder / data.VALIDATION_PREFIX).num_tokens
    monkeypatch.setattr(data, "VALIDATION_TOKENS", tokens)
    # Training still differs: two shards were prepared, fewer than the published.
    assert data.check(prepared_folder, recipe).changed_rules == {"train_shards": 2}


@pytest.mark.parametrize("case", [tiny_llama31, tiny_gpt_oss])
def test_invalid_data_is_refused_with_a_fix(prepared_folder: Path, case: Any) -> None:
    # Both cases train on the same prepared data, with the functions of ``data``.
    recipe = case.make_recipe(data="c4", vocab_size=264)
    # A recipe with a larger vocabulary than the tokenizer's, then one with a smaller vocabulary
    # than the data use.
    with pytest.raises(DataError, match="set vocab_size") as larger:
        data.check(prepared_folder, replace(recipe, vocab_size=1000))
    assert "264" in str(larger.value)  # the size of the tokenizer
    with pytest.raises(DataError, match="token id"):
        data.check(prepared_folder, replace(recipe, vocab_size=200))
    tokens = prepared_folder / f"{data.TRAIN_PREFIX}.bin"
    tokens.write_bytes(tokens.read_bytes()[:-4])  # cut; the index is as before
    with pytest.raises(DataError, match="belong together") as cut:
        data.check(prepared_folder, recipe)
    assert "prepare the data again" in str(cut.value)


def test_download_without_validation_shards_is_refused_with_its_source(raw: Path) -> None:
    # ``raw`` is a download of the data set C4, whose files are called shards. The error must name
    # the place where the missing ones can be downloaded: allenai/c4.
    for shard in raw.glob("*validation*"):
        shard.unlink()
    with pytest.raises(DataError, match="allenai/c4"):
        prepare.prepare(raw, raw.parent / "other", lambda _: None)
