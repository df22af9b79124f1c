"""The GPT case's data folder: the pair, its content, and everything that is refused."""

import json
import os
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmark.cases.gpt_megatron import data
from trainmark.cases.gpt_megatron.case import CASE
from trainmark.cases.gpt_megatron.data.indexed import IndexedReader, write_pair
from trainmark.cases.gpt_megatron.data.language import entropy_rate
from trainmark.cases.gpt_megatron.recipe import GptRecipe
from trainmark.errors import DataError, UsageError

NAME = "corpus_text_document"
RECIPE = GptRecipe(seq_length=4, vocab_size=100, split="8,1,1", seed=3)


def write(folder, tokens, sizes, *, dtype=np.uint16, name=NAME):
    tokens = np.array(tokens, np.int64)
    write_pair(folder / name, tokens, np.array(sizes, np.int32), np.dtype(dtype))


@pytest.fixture
def folder(tmp_path):
    """Ten documents of ten tokens with the ids 0 to 99."""
    write(tmp_path, np.arange(100), [10] * 10)
    return tmp_path


def fault(folder, recipe=RECIPE):
    with pytest.raises(DataError) as caught:
        data.check(folder, recipe)
    error = caught.value
    assert error.where, error.what
    assert error.rule, error.what
    assert error.remedy, error.what
    with pytest.raises(DataError) as again:
        data.load(folder, recipe)
    assert str(again.value) == str(error)
    return str(error)


def test_a_sound_pair_passes_and_loads(folder):
    facts = data.check(folder, RECIPE)
    assert (facts.train_samples, facts.eval_samples, facts.layout) == (19, 2, "megatron-indexed")
    assert facts.best_quality is None
    assert facts.quality_comparable
    both = b"".join((folder / f"{NAME}.{ending}").read_bytes() for ending in ("idx", "bin"))
    assert facts.content_id == sha256(both).hexdigest()[:16]
    loaded = data.load(folder, RECIPE)
    assert loaded.validation.in_order().tokens([1]).tolist() == [[84, 85, 86, 87, 88]]
    rows = loaded.train.epoch(0).tokens(range(19))
    assert len(np.unique(rows[:, 1:])) == 76
    assert rows.max() < 80
    assert loaded.train.cache_dir == folder / "indices"


def test_a_validation_split_is_needed_only_where_something_is_evaluated(tmp_path):
    recipe = CASE.recipes["tiny"]
    data.generate(tmp_path, recipe)
    with pytest.raises(DataError, match="validation split has 0 documents") as caught:
        data.check(tmp_path, replace(recipe, split="1"))
    assert "split=949,50,1" in caught.value.remedy
    speed_only = replace(recipe, split="1", eval_every_epochs=None)
    facts = data.check(tmp_path, speed_only)
    assert (facts.train_samples, facts.eval_samples) == ((1024 * 1024 - 1) // 64, 0)


def test_the_way_out_of_a_split_is_never_the_split_in_force(tmp_path):
    recipe = replace(CASE.recipes["tiny"], split="949,50,1", seq_length=2_000_000)
    data.generate(tmp_path, recipe)
    with pytest.raises(DataError, match="train split") as caught:
        data.check(tmp_path, recipe)
    assert "949,50,1" not in caught.value.remedy
    with pytest.raises(DataError, match="train split") as caught:
        data.check(tmp_path, replace(recipe, split="1", eval_every_epochs=None))
    assert "has all documents already" in caught.value.remedy


def test_generated_data_passes_with_the_best_loss_it_allows(tmp_path):
    recipe = CASE.recipes["tiny"]
    data.generate(tmp_path, recipe)
    facts = data.check(tmp_path, recipe)
    assert facts.best_quality == entropy_rate()
    assert facts.train_samples == (972 * 1024 - 1) // recipe.seq_length
    assert facts.eval_samples == (51 * 1024 - 1) // recipe.seq_length


def test_epochs_worth_keeping_are_kept_beside_the_data(folder, monkeypatch):
    monkeypatch.setattr("trainmark.cases.gpt_megatron.data.sampling.WORTH_KEEPING", 0)
    first = data.load(folder, RECIPE).train.epoch(2)
    again = data.load(folder, RECIPE).train.epoch(2)
    assert isinstance(again.shuffle, np.memmap)
    assert (first.shuffle == again.shuffle).all()
    assert len(list((folder / "indices").glob("epoch-*.int64"))) == 1


def test_the_content_is_read_once_until_a_file_changes(folder, monkeypatch):
    scans, extremes = [], data.extremes
    monkeypatch.setattr(data, "extremes", lambda *a, **k: scans.append(1) or extremes(*a, **k))
    first = data.check(folder, RECIPE)
    assert data.check(folder, RECIPE) == first
    assert len(scans) == 1
    file = folder / f"{NAME}.bin"
    stamp = file.stat().st_mtime_ns
    content = bytearray(file.read_bytes())
    content[0] = 99
    file.write_bytes(content)
    os.utime(file, ns=(stamp + 1, stamp + 1))
    second = data.check(folder, RECIPE)
    assert len(scans) == 2
    assert second.content_id != first.content_id


def changed(kept, **changes):
    """Return the findings with other values for the pair's tokens."""
    found = {data.CONTENT: kept["found"][data.CONTENT] | changes}
    return json.dumps(kept | {"found": found}).encode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: b"",
        lambda kept: b"[]",
        lambda kept: b"\xff\xfe{",
        lambda kept: json.dumps(kept)[:-5].encode(),
        lambda kept: json.dumps(kept | {"format": 0}).encode(),
        lambda kept: changed(kept, largest="99"),
        lambda kept: changed(kept, largest=True),
        lambda kept: changed(kept, digest=7),
        lambda kept: changed(kept, other=7),
        lambda kept: json.dumps({k: v for k, v in kept.items() if k != "found"}).encode(),
    ],
)
def test_a_damaged_record_of_the_content_is_made_again(folder, damage):
    facts = data.check(folder, RECIPE)
    file = folder / "indices" / "content.json"
    good = file.read_bytes()
    file.write_bytes(damage(json.loads(good)))
    assert data.check(folder, RECIPE) == facts
    assert file.read_bytes() == good


def test_a_folder_that_cannot_be_written_is_read_all_the_same(folder):
    facts = data.check(folder, RECIPE)
    for file in (folder / "indices").iterdir():
        file.unlink()
    (folder / "indices").rmdir()
    (folder / "indices").write_bytes(b"in the way")
    assert data.check(folder, RECIPE) == facts
    assert (folder / "indices").read_bytes() == b"in the way"


def test_ids_past_the_vocabulary_are_refused_with_their_place(folder):
    said = fault(folder, replace(RECIPE, vocab_size=95))
    assert f"{NAME}.bin, document 9, token 9 (both counted from 0): token id 99" in said
    assert "[0, 95)" in said
    assert "[0, 98)" in fault(folder, replace(RECIPE, vocab_size=98))  # from the kept content
    assert data.check(folder, replace(RECIPE, vocab_size=100)).train_samples == 19


def test_negative_ids_are_refused_with_their_place(tmp_path):
    tokens = np.arange(100)
    tokens[[37, 55]] = -1
    write(tmp_path, tokens, [10, 0, 0] + [10] * 9, dtype=np.int32)
    assert "document 5, token 7 (both counted from 0): token id -1" in fault(tmp_path)


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40),
    block_bytes=st.integers(4, 60),
)
def test_the_scan_finds_the_extremes_in_any_block(tmp_path_factory, tokens, block_bytes):
    place = tmp_path_factory.mktemp("scan")
    write(place, tokens, [len(tokens)], dtype=np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "BLOCK_BYTES", block_bytes)
        content = data.scan(IndexedReader.open(place / NAME), place)
    assert (content.smallest, content.largest) == (min(tokens), max(tokens))
    assert content.smallest_at == tokens.index(min(tokens))
    assert content.largest_at == tokens.index(max(tokens))
    both = b"".join((place / f"{NAME}.{ending}").read_bytes() for ending in ("idx", "bin"))
    assert content.digest == sha256(both).hexdigest()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"split": "1"}, "the validation split has 0 documents with 0 tokens"),
        (
            {"split": "949,50,1", "seq_length": 10},
            "the validation split has 1 documents with 10 tokens",
        ),
        ({"split": "0,1"}, "the train split has 0 documents with 0 tokens"),
        ({"seq_length": 10}, "the validation split has 1 documents with 10 tokens"),
        ({"seq_length": 10**12}, "the train split has 8 documents with 80 tokens"),
    ],
)
def test_a_split_without_a_whole_sample_is_refused(folder, changes, said):
    recipe = replace(RECIPE, **changes)
    error = fault(folder, recipe)
    assert f"{said}: not one whole sample" in error
    assert f"seq_length + 1 = {recipe.seq_length + 1} tokens" in error
    assert not (folder / "indices").exists()  # refused before the scan


def test_a_bad_split_is_a_fault_of_the_recipe(folder):
    with pytest.raises(UsageError, match="no split: 'x'"):
        data.check(folder, replace(RECIPE, split="x"))


def test_an_empty_pair_is_refused(tmp_path):
    write(tmp_path, [], [])
    assert "the train split has 0 documents with 0 tokens" in fault(tmp_path)


def test_folders_without_one_pair_are_refused(tmp_path, folder):
    none = tmp_path / "none"
    assert f"{none}: cannot be read: No such file" in fault(none)
    assert "cannot be read: Not a directory" in fault(folder / f"{NAME}.idx")
    none.mkdir()
    (none / "corpus.jsonl").write_text("{}")
    (none / ".x.idx.part").write_text("")
    (none / ".hidden.idx").write_text("")
    assert f"{none}: no .idx and .bin" in fault(none)
    write(folder, np.arange(100), [100], name="other")
    assert f"2 .idx files: {NAME}, other" in fault(folder)
    for file in folder.glob("*.idx"):
        file.unlink()
    assert f"2 .bin files: {NAME}, other" in fault(folder)


@pytest.mark.parametrize(("kept", "missing"), [("idx", "bin"), ("bin", "idx")])
def test_half_a_pair_is_refused(folder, kept, missing):
    (folder / f"{NAME}.{missing}").unlink()
    assert f"{NAME}.{missing}: cannot be read: No such file" in fault(folder)


def test_a_stray_bin_beside_the_pair_is_left_alone(folder):
    (folder / "pytorch_model.bin").write_bytes(b"weights")
    assert data.check(folder, RECIPE).train_samples == 19


def test_a_folder_in_place_of_a_file_is_refused(folder):
    (folder / f"{NAME}.bin").unlink()
    (folder / f"{NAME}.bin").mkdir()
    assert "not a regular file" in fault(folder)


def test_damage_in_the_pair_is_refused(folder):
    idx, file = folder / f"{NAME}.idx", folder / f"{NAME}.bin"
    good = idx.read_bytes(), file.read_bytes()
    file.write_bytes(good[1][:-2])
    assert "198 bytes, cut short" in fault(folder)
    file.write_bytes(b"")
    assert "0 bytes, cut short" in fault(folder)
    idx.write_bytes(good[1])
    file.write_bytes(good[0])
    assert "the two files are swapped" in fault(folder)
    idx.write_bytes(b"")
    assert "the two files are swapped" in fault(folder)
    file.write_bytes(good[1])
    assert "begins with nothing" in fault(folder)
    assert not (folder / "indices").exists()
