"""The published sparse HDF5 as tokens, and what is refused in it; no torch."""

import sys
from dataclasses import replace

import h5py
import numpy as np
import pytest

from glm_sparse import write_matrix, write_split
from trainmark.cases.glm_superglue import data
from trainmark.cases.glm_superglue.case import CASE
from trainmark.cases.glm_superglue.data import generated
from trainmark.cases.glm_superglue.data.examples import ChoiceBatch
from trainmark.cases.glm_superglue.prepare import hdf5, prepare
from trainmark.errors import DataError, EnvironmentFault

TINY = replace(CASE.recipes["tiny"], seq_length=64, vocab_size=128)
RECIPE = replace(TINY, data="real")
PUBLISHED = "ReCoRD/glm_train_eval_hdf5_sparse"
FILES = {"train": "train_hdf5/train_sparse.hdf5", "validation": "eval_hdf5/eval_sparse.hdf5"}
STORAGE = [{}, {"chunks": (16,), "compression": "gzip"}, {"form": "csc"}]


def read_text(folder, least, most, seq_length=64):
    """Return a few generated samples with so many candidates each, read from text."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generated, "PASSAGES", {"train": 12, "val": 8})
        patch.setattr(generated, "LEAST_PEOPLE", least)
        patch.setattr(generated, "MOST_PEOPLE", most)
        generated.generate(folder, TINY)
    return data.load(folder, replace(TINY, seq_length=seq_length))


@pytest.fixture(scope="module")
def text_splits(tmp_path_factory):
    """Samples with four candidates each."""
    return read_text(tmp_path_factory.mktemp("text") / "four", 4, 4)


def write(raw, splits, columns=64, **storage):
    """Write a download of HDF5 files; return its folder."""
    for split, name in FILES.items():
        file = raw / PUBLISHED / name
        file.parent.mkdir(parents=True)
        examples = getattr(splits, split)
        samples = [examples.sequences(row) for row in range(len(examples))]
        evaluation = split == "validation"
        write_split(file, samples, columns=columns, evaluation=evaluation, **storage)
    return raw


@pytest.fixture
def raw(tmp_path, text_splits):
    return write(tmp_path / "raw", text_splits)


def prepared(raw):
    """Return the data folder that is made of a download."""
    prepare(raw, raw.parent / "data", lambda _: None)
    return raw.parent / "data"


def fault(raw, recipe=RECIPE):
    with pytest.raises(DataError) as caught:
        data.check(prepared(raw), recipe)
    return str(caught.value).replace(f"{raw}/{PUBLISHED}/", "")


def change(raw, split="train"):
    return h5py.File(raw / PUBLISHED / FILES[split], "r+")


@pytest.mark.parametrize("block", [4, 7, 2_048])
@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("columns", [64, 38])  # 38 cut passages, by what each name needs
def test_text_and_sparse_file_give_equal_batches(tmp_path, monkeypatch, storage, block, columns):
    monkeypatch.setattr(hdf5, "BLOCK", max(block, 5))
    text = read_text(tmp_path / "text", 2, 5, columns)
    assert bool(text.train.shortened) == (columns == 38)
    folder = prepared(write(tmp_path / "raw", text, columns, **storage))
    loaded = data.load(folder, replace(RECIPE, seq_length=columns))
    longer = data.load(folder, replace(RECIPE, seq_length=80))
    for split in FILES:
        ours, theirs = getattr(text, split), getattr(loaded, split)
        ids = [held.ids.tolist() for held in getattr(longer, split).sequences(2)]
        assert ids == [held.ids.tolist() for held in ours.sequences(2)]  # what was cut stays so
        assert ours.num_choices.tolist() == theirs.num_choices.tolist()
        assert len(set(ours.num_choices.tolist())) > 1
        assert theirs.shortened is None
        rows = np.random.default_rng(1).permutation(len(ours))
        left, right = (examples.batch(rows, trim=True) for examples in (ours, theirs))
        assert left.samples == right.samples
        for name in ChoiceBatch.__slots__[1:]:
            found, expected = getattr(right, name), getattr(left, name)
            assert found.dtype == expected.dtype, name
            assert found.tolist() == expected.tolist(), name


def test_the_tokens_are_the_content_and_the_folder_is_whole(raw):
    folder = prepared(raw)
    facts = data.check(folder, RECIPE)
    assert (facts.train_samples, facts.eval_samples, facts.layout) == (12, 8, "tokens")
    assert {file.name for file in folder.iterdir()} == {"manifest.json", "tokens"}
    other = raw.rename(raw.with_name("other"))
    with change(other) as file:
        file["text/data"][0] += 1  # the first token of the first sequence, so of all
        starts = file["text/indptr"][()]
        file["text/data"][:] = [
            file["text/data"][0] if at in starts else value
            for at, value in enumerate(file["text/data"][()])
        ]
    prepare(other, raw.parent / "more", lambda _: None)
    assert data.check(raw.parent / "more", RECIPE).content_id != facts.content_id


def test_a_run_on_the_files_themselves_names_the_way_out(raw):
    for read in (data.check, data.load):
        with pytest.raises(DataError, match="not trained on as they are") as caught:
            read(raw, RECIPE)
        assert caught.value.remedy == (
            f"run `trainmark prepare glm_superglue --from {raw} --data DIR`"
        )


def test_without_the_library_the_way_out_is_named(raw, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(EnvironmentFault, match="h5py is not installed") as caught:
        prepared(raw)
    assert "trainmark[prepare]" in str(caught.value.remedy)
    assert [item.name for item in raw.parent.iterdir()] == ["raw"]


@pytest.mark.parametrize("content", [b"no", b"PK" * 60])
def test_damaged_tokens_are_refused(raw, content):
    folder = prepared(raw)
    (folder / "tokens" / "train.npz").write_bytes(content)
    with pytest.raises(DataError, match="damaged, or not written by prepare") as caught:
        data.check(folder, RECIPE)
    assert caught.value.where == str(folder / "tokens" / "train.npz")
    with (folder / "tokens" / "train.npz").open("wb") as stream:
        np.savez(stream, lines=np.zeros(3))
    with pytest.raises(DataError, match="damaged, or not written by prepare"):
        data.check(folder, RECIPE)


def test_fewer_wrong_choices_than_the_file_has_leave_the_last_out(raw, text_splits):
    loaded = data.load(prepared(raw), replace(RECIPE, max_wrong_choices=1))
    assert loaded.train.num_choices.tolist() == [2] * 12
    assert loaded.validation.num_choices.tolist() == [4] * 8
    assert loaded.train.batch([1]).correct.tolist() == [True, False]
    for kept, whole in zip(loaded.train.sequences(3), text_splits.train.sequences(3), strict=False):
        assert kept.ids.tolist() == whole.ids.tolist()


def test_plain_data_sets_and_rows_stand_for_small_matrices(raw):
    facts = data.check(prepared(raw), RECIPE)
    with change(raw) as file:
        bounds = np.arange(0, 48, 4)[:, None] + [0, 4]
        separators = file["mask/data"][()]
        del file["choice_start_end"], file["mask"]
        file["choice_start_end"] = bounds
        write_matrix(file, "mask", [separators], 48)
    prepare(raw, raw.parent / "again", lambda _: None)
    assert data.check(raw.parent / "again", RECIPE) == facts


def numbers_of(sequence, name, file):
    """Return where the stored numbers of a sequence's last row lie."""
    row = 2 * sequence + 1 if name == "position" else sequence
    return file[f"{name}/indptr"][row]


# What makes sequence 5, of sample 1, the second of the sample, bad.
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("target", -1, "target, sample 1, sequence 5 (counted from 0): -1 at position"),
        ("target", 77, "target, sample 1, sequence 5 (counted from 0): 77 at position"),
        ("text", -1, "text, sample 1, sequence 5 (counted from 0): -1 at position 0; a token id"),
        ("text", 2**31, "text, sample 1, sequence 5 (counted from 0): 2147483648 at position 0"),
        ("text", 9, "text, sample 1, sequence 5 (counted from 0): 9 at position 0; "
         "as a cloze sequence it has 2 there"),
        ("position", 65, "position, sample 1, sequence 5 (counted from 0): 65 at position"),
        ("logit_mask", 2, "logit_mask, sample 1, sequence 5 (counted from 0): 2 at position"),
    ],
)  # fmt: skip
def test_a_number_that_is_no_cloze_sequences_is_named(raw, name, value, message):
    with change(raw) as file:
        file[f"{name}/data"][numbers_of(5, name, file)] = value
    assert fault(raw).startswith(f"{FILES['train']}, {message}")


def test_one_context_that_is_another_is_named(raw):
    with change(raw) as file:
        at = file["text/indptr"][5] + 3
        file["text/data"][at] = file["text/data"][at] + 1
    assert f"{FILES['train']}, text, sample 1, sequence 5 (counted from 0)" in fault(raw)


def test_a_token_past_the_vocabulary_is_named_by_a_run(raw):
    folder = prepared(raw)
    with pytest.raises(DataError, match=r"token id \d+") as caught:
        data.check(folder, replace(RECIPE, vocab_size=20))
    assert "the recipe's vocab_size" in str(caught.value)
    assert str(caught.value.where).startswith(f"{folder}/tokens/train.npz, ")


@pytest.mark.parametrize("column", [64, -1])
def test_a_column_past_the_sequence_is_refused(raw, column):
    with change(raw) as file:
        file["target/indices"][file["target/indptr"][6] - 1] = column
    said = fault(raw)
    assert f"{FILES['train']}, target: damaged from row 0 on: " in said
    assert str(column) in said


@pytest.mark.parametrize("row", [48, -1, 0])
def test_row_numbers_of_a_column_that_do_not_rise_are_refused(tmp_path, text_splits, row):
    raw = write(tmp_path / "raw", text_splits, form="csc")
    with change(raw) as file:
        file["text/indices"][file["text/indptr"][2] - 1] = row
    assert f"{FILES['train']}, text: damaged from row 0 on: row numbers of column 1" in fault(raw)


@pytest.mark.parametrize("start", [-1, -(2**63), 2**63 - 1, 10**6])
@pytest.mark.parametrize("form", ["csr", "csc"])
def test_starts_outside_the_stored_numbers_are_refused(tmp_path, text_splits, form, start):
    raw = write(tmp_path / "raw", text_splits, form=form)
    with change(raw) as file:
        file["text/indptr"][3] = start
    assert f"{FILES['train']}, text: damaged from row 0 on: " in fault(raw)


@pytest.mark.parametrize("separator", [64, -3, 1, 0])
def test_a_separator_past_the_sequence_is_named(raw, separator):
    with change(raw) as file:
        file["mask/data"][5] = separator
    said = fault(raw)
    assert ", sample 1, sequence 5 (counted from 0)" in said


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("storage", STORAGE)
def test_a_separator_beside_the_answer_is_named(tmp_path, text_splits, storage, by):
    raw = write(tmp_path / "raw", text_splits, **storage)
    with change(raw) as file:
        file["mask/data"][5] += by
    assert ", sample 1, sequence 5 (counted from 0)" in fault(raw)


@pytest.mark.parametrize("name", ["text", "position", "target", "logit_mask", "mask"])
def test_a_missing_group_is_named(raw, name):
    with change(raw) as file:
        del file[name]
        there = ", ".join(sorted(file))
    assert f"{FILES['train']}, {name}: no such group; there are: {there}" in fault(raw)


@pytest.mark.parametrize("name", ["answer_idx", "answer_start_end"])
def test_evaluation_needs_its_answers(raw, name):
    with change(raw, "validation") as file:
        del file[name]
    assert f"{FILES['validation']}, {name}: no such group" in fault(raw)


@pytest.mark.parametrize(
    ("first", "last"), [(4, 4), (8, 4), (4, 49), (-1, 4), (3, 8), (5, 8), (4, 8 + 2_048)]
)
def test_samples_that_do_not_follow_one_another_are_named(raw, first, last):
    with change(raw) as file:
        bounds = np.arange(0, 48, 4)[:, None] + [0, 4]
        bounds[1] = first, last
        del file["choice_start_end"]
        write_matrix(file, "choice_start_end", bounds, 2)
    said = fault(raw)
    assert f"choice_start_end, sample 1 (counted from 0): from {first} to {last}; a" in said
    assert "begins where the one before ends, here at 4; there are 48" in said


def test_sequences_of_no_sample_are_named(raw):
    with change(raw) as file:
        bounds = np.arange(0, 44, 4)[:, None] + [0, 4]
        del file["choice_start_end"]
        write_matrix(file, "choice_start_end", bounds, 2)
    assert "choice_start_end, sample 10 (counted from 0): from 40 to 44" in fault(raw)


@pytest.mark.parametrize("answer", [4, -1])
def test_an_answer_that_is_no_candidate_is_named(raw, answer):
    with change(raw, "validation") as file:
        found = np.full(8, 3)
        found[5] = answer
        del file["answer_idx"]
        write_matrix(file, "answer_idx", [found], 8)
    said = fault(raw)
    assert "answer_idx, sample 5 (counted from 0): an answer that is not among" in said
    assert f"candidates: {answer}; the sample has 4 candidates" in said


@pytest.mark.parametrize(("count", "message"), [(8, "sample 2 (counted from 0)"), (7, "7 samples")])
def test_a_sample_without_answer_is_named(raw, count, message):
    with change(raw, "validation") as file:
        bounds = np.arange(count)[:, None] + [0, 1]
        if count == 8:
            bounds[2] = 2, 2
        else:
            bounds[-1, 1] = 8
        del file["answer_start_end"]
        write_matrix(file, "answer_start_end", bounds, 2)
    said = fault(raw)
    assert "answer_start_end" in said
    assert message in said


def test_a_sequence_without_target_is_named(raw):
    with change(raw) as file:
        begin, end = file["logit_mask/indptr"][5:7]
        file["logit_mask/data"][begin:end] = 0
    assert "logit_mask, sample 1, sequence 5 (counted from 0): 0 at position" in fault(raw)


def reformatted(file):
    file["text"].attrs["h5sparse_format"] = "bsr"


def shapeless(file):
    del file["text"].attrs["h5sparse_shape"]


def falling(file):
    file["text/indptr"][2] = 0


def shorter(file):
    data_ = file["text/data"][:-1]
    del file["text/data"]
    file["text/data"] = data_


def fractions(file):
    data_ = file["text/data"][()] / 2
    del file["text/data"]
    file["text/data"] = data_


def partless(file):
    del file["text/indices"]


def halved(file):
    bounds = file["position"].attrs["h5sparse_shape"]
    rows = [np.zeros(64)] * (int(bounds[0]) // 2)
    del file["position"]
    write_matrix(file, "position", rows, 64)


def huge(file):
    for name, each in hdf5.ROWS_A_SEQUENCE.items():
        file[name].attrs["h5sparse_shape"] = (10**12 * each, 64)
    file["choice_start_end"].attrs["h5sparse_shape"] = (10**12, 2)


def wide(file):
    for name, each in hdf5.ROWS_A_SEQUENCE.items():
        file[name].attrs["h5sparse_shape"] = (48 * each, 10**12)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (reformatted, "text: format bsr, shape [48, 64], data int64, indices int32, indptr int64"),
        (shapeless, "text: format csr, shape []"),
        (falling, "text: damaged from row 0 on: "),
        (shorter, "text: damaged from row 0 on: "),
        (fractions, "text: format csr, shape [48, 64], data float64"),
        (partless, "text: format csr, shape [48, 64], data int64, indices absent"),
        (halved, "position: shape (48, 64); text is 48 x 64, so it is 96 x 64"),
        (huge, "mask: 48 separators"),
        (wide, "text: shape (48, 1000000000000); text is 48 x 1000000000000"),
    ],
)
def test_a_matrix_of_another_form_is_refused(raw, damage, message):
    with change(raw) as file:
        damage(file)
    said = fault(raw)
    assert FILES["train"] in said
    assert message in said


def test_matrices_read_whole_have_a_bounded_size(raw, monkeypatch):
    monkeypatch.setattr(hdf5, "LARGEST", 40)
    assert "mask: 48 x 1 numbers; at most 40 are read whole" in fault(raw)


def test_sequences_longer_than_the_recipes_are_refused(raw):
    said = fault(raw, replace(RECIPE, seq_length=63))
    assert "sequences were cut to 64 tokens" in said
    assert "set seq_length=64" in said


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "the file is empty (0 bytes)"), (b"no HDF5 at all", "not readable as HDF5")],
)
def test_what_is_no_hdf5_is_refused(raw, content, message):
    (raw / PUBLISHED / FILES["train"]).write_bytes(content)
    assert f"{FILES['train']}: {message}" in fault(raw)
    assert not (raw.parent / "data").exists()
