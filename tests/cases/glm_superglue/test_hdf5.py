"""The published sparse HDF5 as choice sequences, and what is refused in it; no torch."""

from dataclasses import replace

import h5py
import numpy as np
import pytest
from benchmarks.glm_sparse import write_matrix, write_split

from trainmark.cases.glm_superglue import data, generate, hdf5_content
from trainmark.cases.glm_superglue.case import CASE
from trainmark.cases.glm_superglue.examples import ChoiceBatch
from trainmark.errors import DataError

TINY = replace(CASE.recipes["tiny"], seq_length=64, vocab_size=128)
RECIPE = replace(TINY, data="real")
PUBLISHED = "ReCoRD/glm_train_eval_hdf5_sparse"
FILES = {"train": "train_hdf5/train_sparse.hdf5", "validation": "eval_hdf5/eval_sparse.hdf5"}


def read_text(folder, least, most):
    """Return a few generated samples with so many candidates each, read from text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "PASSAGES", {"train": 12, "val": 8})
        patch.setattr(generate, "LEAST_PEOPLE", least)
        patch.setattr(generate, "MOST_PEOPLE", most)
        generate.generate(folder, TINY)
    return data.load(folder, TINY)


@pytest.fixture(scope="module")
def text_splits(tmp_path_factory):
    """Samples with four candidates each."""
    return read_text(tmp_path_factory.mktemp("text"), 4, 4)


@pytest.fixture(scope="module")
def mixed_splits(tmp_path_factory):
    """Samples with two to five candidates."""
    return read_text(tmp_path_factory.mktemp("mixed"), 2, 5)


def write(folder, text_splits, **storage):
    for split, name in FILES.items():
        file = folder / PUBLISHED / name
        file.parent.mkdir(parents=True)
        examples = getattr(text_splits, split)
        samples = [examples.sequences(row) for row in range(len(examples))]
        evaluation = split == "validation"
        write_split(file, samples, columns=TINY.seq_length, evaluation=evaluation, **storage)
    return folder


@pytest.fixture
def folder(tmp_path, text_splits):
    return write(tmp_path, text_splits)


def fault(folder, recipe=RECIPE, *, read=data.check):
    with pytest.raises(DataError) as caught:
        read(folder, recipe)
    return str(caught.value).replace(f"{folder}/{PUBLISHED}/", "")


def change(folder, split="train"):
    return h5py.File(folder / PUBLISHED / FILES[split], "r+")


@pytest.mark.parametrize("storage", [{}, {"chunks": (16,), "compression": "gzip"}])
@pytest.mark.parametrize("trim", [False, True])
def test_text_and_sparse_file_give_equal_batches(tmp_path, mixed_splits, storage, trim):
    loaded = data.load(write(tmp_path, mixed_splits, **storage), RECIPE)
    for split in FILES:
        ours, theirs = getattr(mixed_splits, split), getattr(loaded, split)
        assert ours.num_choices.tolist() == theirs.num_choices.tolist()
        assert len(set(ours.num_choices.tolist())) > 1
        rows = np.random.default_rng(1).permutation(len(ours))
        left, right = (examples.batch(rows, trim=trim) for examples in (ours, theirs))
        assert left.samples == right.samples
        for name in ChoiceBatch.__slots__[1:]:
            found, expected = getattr(right, name), getattr(left, name)
            assert found.dtype == expected.dtype, name
            assert found.tolist() == expected.tolist(), name


def test_the_check_reads_every_byte_once_and_names_the_content(folder, monkeypatch):
    facts = data.check(folder, RECIPE)
    assert (facts.train_samples, facts.eval_samples, facts.layout) == (12, 8, "hdf5")
    with monkeypatch.context() as patch:
        patch.setattr(hdf5_content, "_scan", None)
        assert data.check(folder, RECIPE) == facts
    with change(folder) as file:
        file["text/data"][3] += 1
    assert data.check(folder, RECIPE).content_id != facts.content_id


@pytest.mark.parametrize("content", ["", "{}", '{"format": 1}', "[1]"])
def test_damaged_findings_are_made_again(folder, content):
    facts = data.check(folder, RECIPE)
    for file in (folder / "tokens").iterdir():
        file.write_text(content)
    assert data.check(folder, RECIPE) == facts


def test_separators_belong_to_the_content(folder):
    facts = data.check(folder, RECIPE)
    with change(folder) as file:
        file["mask/data"][0] -= 1
    assert data.check(folder, RECIPE).content_id != facts.content_id


def test_opening_reads_no_token(folder):
    for split in FILES:
        with change(folder, split) as file:
            for name in ("text", "position", "target"):
                file[f"{name}/data"][...] = 99_999
                file[f"{name}/indices"][...] = -5
    loaded = data.load(folder, RECIPE)
    assert (len(loaded.train), len(loaded.validation)) == (12, 8)


def test_fewer_wrong_choices_than_the_file_has_leave_the_last_out(folder):
    loaded = data.load(folder, replace(RECIPE, max_wrong_choices=1))
    assert loaded.train.num_choices.tolist() == [2] * 12
    assert loaded.validation.num_choices.tolist() == [4] * 8
    assert loaded.train.batch([1]).correct.tolist() == [True, False]


def test_plain_data_sets_stand_for_small_matrices(folder):
    facts = data.check(folder, RECIPE)
    with change(folder) as file:
        bounds = np.arange(0, 48, 4)[:, None] + [0, 4]
        del file["choice_start_end"]
        file["choice_start_end"] = bounds
    assert data.check(folder, RECIPE) == facts


# What makes sequence 5, of sample 1, the second of the sample, bad.
BAD_VALUES = {
    "target": ("target", -1, "target/data, sample 1, sequence 5 (counted from 0): -1 is outside; "
               "a token id lies in [0, 128), the recipe's vocab_size"),
    "token": ("text", 128, "text/data, sample 1, sequence 5 (counted from 0): 128 is outside"),
    "position": ("position", 65, "position/data, sample 1, sequence 5 (counted from 0): 65 is "
                 "outside; a position lies in [0, 64]"),
    "scored": ("logit_mask", 2, "logit_mask/data, sample 1, sequence 5 (counted from 0): 2"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "value", "message"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_a_number_that_the_model_has_no_row_for_is_named(folder, name, value, message):
    with change(folder) as file:
        row = 2 * 5 + 1 if name == "position" else 5
        file[f"{name}/data"][file[f"{name}/indptr"][row]] = value
    assert fault(folder).startswith(f"{FILES['train']}, {message}")


def test_a_column_past_the_sequence_is_named(folder):
    with change(folder) as file:
        file["target/indices"][file["target/indptr"][6] - 1] = 64
    said = fault(folder)
    assert "target/indices, sample 1, sequence 5 (counted from 0): 64 is outside" in said
    assert "a column lies in [0, 64)" in said


@pytest.mark.parametrize("separator", [64, -3])
def test_a_separator_past_the_sequence_is_named(folder, separator):
    with change(folder) as file:
        file["mask/data"][5] = separator
    said = fault(folder, read=data.load)
    assert f"mask, sample 1, sequence 5 (counted from 0): separator {separator}" in said


@pytest.mark.parametrize("storage", [{}, {"chunks": (16,)}])
def test_a_separator_behind_the_answer_is_named(tmp_path, text_splits, storage):
    folder = write(tmp_path, text_splits, **storage)
    with change(folder) as file:
        last = file["logit_mask/indices"][file["logit_mask/indptr"][6] - 1]
        file["mask/data"][5] = last
    assert data.check(folder, RECIPE).train_samples == len(text_splits.train)
    with change(folder) as file:
        file["mask/data"][5] = last + 1
    said = fault(folder)
    assert f"mask, sample 1, sequence 5 (counted from 0): separator {last + 1};" in said
    assert f"at its last target, {last}, or before" in said


@pytest.mark.parametrize("name", ["text", "position", "target", "logit_mask", "mask"])
def test_a_missing_group_is_named(folder, name):
    with change(folder) as file:
        del file[name]
        there = ", ".join(sorted(file))
    said = fault(folder, read=data.load)
    assert f"{FILES['train']}: no group {name}; there are: {there}" in said


@pytest.mark.parametrize("name", ["answer_idx", "answer_start_end"])
def test_evaluation_needs_its_answers(folder, name):
    with change(folder, "validation") as file:
        del file[name]
    assert f"no group {name}" in fault(folder, read=data.load)


def bounds_of_sample_1(file, first, last, name="choice_start_end"):
    bounds = np.arange(0, 48, 4)[:, None] + [0, 4]
    bounds[1] = first, last
    del file[name]
    write_matrix(file, name, bounds, 2)


@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        (4, 4, "no candidate: from 4 to 4; a sample has at least one, and there are 48"),
        (8, 4, "no candidate: from 8 to 4"),
        (4, 49, "from 4 to 49; a sample has at least one, and there are 48"),
        (-1, 4, "from -1 to 4"),
    ],
)
def test_a_sample_without_candidates_is_named(folder, first, last, message):
    with change(folder) as file:
        bounds_of_sample_1(file, first, last)
    said = fault(folder, read=data.load)
    assert f"choice_start_end, sample 1 (counted from 0): {message}" in said


@pytest.mark.parametrize("answer", [4, -1])
def test_an_answer_that_is_no_candidate_is_named(folder, answer):
    with change(folder, "validation") as file:
        found = np.full(8, 3)
        found[5] = answer
        del file["answer_idx"]
        write_matrix(file, "answer_idx", [found], 8)
    said = fault(folder, read=data.load)
    assert "answer_idx, sample 5 (counted from 0): an answer that is not among" in said
    assert f"candidates: {answer}; the sample has 4 candidates" in said


def test_a_sample_without_answer_is_named(folder):
    with change(folder, "validation") as file:
        bounds = np.arange(8)[:, None] + [0, 1]
        bounds[2] = 2, 2
        del file["answer_start_end"]
        write_matrix(file, "answer_start_end", bounds, 2)
    assert "answer_start_end, sample 2 (counted from 0): no answer" in fault(folder)


def test_a_sequence_without_target_is_named(folder):
    with change(folder) as file:
        held = np.zeros((48, 64), np.int64)
        held[np.arange(48) != 5, 40] = 1
        del file["logit_mask"]
        write_matrix(file, "logit_mask", held, 64)
    said = fault(folder, read=data.load)
    assert "logit_mask, sample 1, sequence 5 (counted from 0): no target" in said


def reformatted(file):
    file["text"].attrs["h5sparse_format"] = "csc"


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


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (reformatted, "text: h5sparse_format is csc, h5sparse_shape is [48, 64]"),
        (shapeless, "text: h5sparse_format is csr, h5sparse_shape is []"),
        (falling, "text: indptr has 49 numbers for 48 rows"),
        (shorter, "indptr rises from 0 to the length of data"),
        (fractions, "/text/data: holds float64; everything in the file is a whole number"),
        (partless, "/text: no vector indices"),
        (halved, "position: 48 x 64; text is 48 x 64, so position is 96 x 64"),
    ],
)
def test_a_matrix_of_another_form_is_refused(folder, damage, message):
    with change(folder) as file:
        damage(file)
    said = fault(folder, read=data.load)
    assert FILES["train"] in said
    assert message in said


def test_sequences_longer_than_the_recipes_are_refused(folder):
    said = fault(folder, replace(RECIPE, seq_length=63))
    assert "64 columns, the recipe's seq_length is 63" in said
    assert "set seq_length=64" in said


@pytest.mark.parametrize("content", [b"", b"no HDF5 at all"])
def test_what_is_no_hdf5_is_refused(folder, content):
    (folder / PUBLISHED / FILES["train"]).write_bytes(content)
    assert f"{FILES['train']}: not readable as HDF5" in fault(folder)
