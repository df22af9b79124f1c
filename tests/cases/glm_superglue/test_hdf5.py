"""The published sparse HDF5: its batches as they are; no torch."""

import re
from dataclasses import replace

import h5py
import numpy as np
import pytest

from support.glm_sparse import write_split
from trainmark.cases.glm_superglue import data
from trainmark.cases.glm_superglue.case import CASE
from trainmark.cases.glm_superglue.data import generated
from trainmark.cases.glm_superglue.prepare import prepare
from trainmark.errors import DataError

TINY = replace(CASE.recipes["tiny"], seq_length=64, vocab_size=128, trim_padding=True)
RECIPE = replace(TINY, data="real")
FILES = {"train": "train_hdf5/train_sparse.hdf5", "validation": "eval_hdf5/eval_sparse.hdf5"}


@pytest.fixture
def splits(tmp_path, monkeypatch):
    """Return 12 training and 8 validation samples, generated and read from text.

    Each of as many passages (``PASSAGES``) has one question with one right answer.
    """
    (tmp_path / "text").mkdir()
    monkeypatch.setattr(generated, "PASSAGES", {"train": 12, "val": 8})
    generated.generate(tmp_path / "text", TINY)
    return data.load(tmp_path / "text", TINY)


@pytest.fixture
def folder(tmp_path, splits):
    """Return a folder with the samples of ``splits`` as a download of HDF5 files."""
    return write_download(tmp_path / "raw", splits)


def write_download(folder, splits, **storage):
    """Write ``splits`` at the published paths; return ``folder``.

    Args:
        storage: options of ``write_split``, such as the compression of arrays.
    """
    for split, name in FILES.items():
        # Each split has a subfolder of its own.
        file = folder / "ReCoRD" / "glm_train_eval_hdf5_sparse" / name
        file.parent.mkdir(parents=True)
        examples = getattr(splits, split)
        samples = [examples.build_sequences(row) for row in range(len(examples))]
        # Sequences are padded to ``columns`` tokens.
        write_split(
            file, samples, columns=TINY.seq_length, evaluation=split == "validation", **storage
        )
    return folder


def assert_same_batches(first_examples, second_examples):
    """Compare all samples as one batch: the counts, and each array of it."""
    assert len(first_examples) == len(second_examples)
    all_rows = range(len(first_examples))
    first_arrays, first_counts = first_examples.batch(all_rows)
    second_arrays, second_counts = second_examples.batch(all_rows)
    assert first_counts == second_counts
    for name in first_arrays.__slots__:
        np.testing.assert_array_equal(getattr(first_arrays, name), getattr(second_arrays, name))


@pytest.mark.parametrize("storage", [{}, {"chunks": (4,), "compression": "gzip"}])
def test_text_and_hdf5_files_give_equal_batches(tmp_path, splits, storage):
    """``splits`` has generated samples that were read from text; here they are written as HDF5.

    Reading these files must give the same batches. ``storage`` are options of h5py: none, or arrays
    in compressed pieces of four numbers.
    """
    content = data.load(write_download(tmp_path / "raw", splits, **storage), RECIPE)
    assert_same_batches(content.train, splits.train)
    assert_same_batches(content.validation, splits.validation)
    # The files do not say how many passages were shortened.
    assert content.train.num_shortened is None


@pytest.mark.parametrize("form", ["csr", "csc"])
def test_a_download_is_prepared_and_read(tmp_path, splits, form):
    """Sparse matrices are stored by rows (csr) or columns (csc); 12 samples train, 8 validate."""
    folder = write_download(tmp_path / "raw", splits, form=form)
    if form == "csc":  # rows cannot be read one by one
        with pytest.raises(DataError, match="`trainmark prepare` converts csc to csr"):
            data.load(folder, RECIPE)
    prepare(folder, tmp_path / "data", lambda _: None)
    facts = data.check(tmp_path / "data", RECIPE)
    assert (facts.train_samples, facts.eval_samples, facts.layout) == (12, 8, "hdf5")
    content = data.load(tmp_path / "data", RECIPE)
    assert_same_batches(content.train, splits.train)
    assert_same_batches(content.validation, splits.validation)


def test_longer_sequences_and_damaged_files_are_refused(folder):
    """The fixture folder has valid files, whose sequences are padded to 64 tokens."""
    with pytest.raises(DataError, match="the sequences have 64 tokens each"):
        data.check(folder, replace(RECIPE, seq_length=52))  # shorter than the files' 64
    next(folder.rglob(FILES["train"])).write_bytes(b"x")
    with pytest.raises(DataError, match="not readable as HDF5"):
        data.check(folder, RECIPE)


def change_array(folder, name, edit, split="validation"):
    """Replace an array of a file by what ``edit`` makes of it; return the file.

    Args:
        folder: with the file of each split, at any depth.
        name: of the matrix and its array, such as ``text/data``.
        edit: takes the array and returns another one.
    """
    file = next(folder.rglob(FILES[split]))
    with h5py.File(file, "r+") as opened:
        array = opened[name][()]
        del opened[name]
        opened[name] = edit(array)
    return file


def set_numbers(*pairs):
    """Return an edit that sets elements of an array; ``pairs``: an index and the new value."""

    def edit(array):
        """Return a changed copy."""
        array = array.copy()
        for index, value in pairs:
            array[index] = value
        return array

    return edit


CONTRADICTIONS = {
    "more data than indices": ("text/data", lambda x: x[:-1], "data has"),
    "indptr too short": ("text/indptr", lambda x: x[:-1], "indptr has"),
    "indptr begins later": ("text/indptr", set_numbers((0, 1)), "indptr goes from 1"),
    "indptr ends early": ("text/indptr", set_numbers((-1, 5)), "indptr goes from 0 to 5"),
    "indptr falls": (
        "target/indptr",
        set_numbers((1, 1000), (2, 0)),
        "row 1 (counted from 0) begins at 1000",
    ),
    "negative in indptr": (
        "target/indptr",
        set_numbers((1, -3)),
        "row 0 (counted from 0) begins at 0",
    ),
    "column outside": (
        "text/indices",
        set_numbers((0, 64)),
        "row 0 (counted from 0) has an entry in column 64",
    ),
    "column below 0": (
        "text/indices",
        set_numbers((0, -1)),
        "row 0 (counted from 0) has an entry in column -1",
    ),
    "column twice": (
        "text/indices",
        set_numbers((1, 0)),
        "row 0 (counted from 0) stores column 0 twice",
    ),
    "no target": ("logit_mask/data", lambda x: 0 * x, "sequence 0 (counted from 0) has no target"),
    "separator outside": (
        "mask/data",
        set_numbers((0, 65)),
        "sequence 0 (counted from 0) has its separator at 65",
    ),
    "separator behind the answer": (
        "mask/data",
        set_numbers((1, 64)),  # the end of the padding
        "sequence 1 (counted from 0) has its separator at 64, after its last target",
    ),
    "token outside": ("text/data", set_numbers((0, 128)), "the numbers range from 0 to 128"),
    "position outside": ("position/data", set_numbers((0, 65)), "the numbers range from 0 to 65"),
    # The first bound, 0, is not stored: numbers 1 to 4 belong to samples 1 and 2.
    "first samples point to a later one": (
        "choice_start_end/data",
        lambda x: np.concatenate([x[:1], x[3:5], x[3:]]),
        "a range begins",
    ),
    "sample without a sequence": (
        "choice_start_end/data",
        lambda x: np.concatenate([x[:1], x[2:3], x[2:]]),
        "a range begins",
    ),
    "answer outside": ("answer_idx/data", set_numbers((0, 9)), "sample"),
    "answers of another sample": ("answer_start_end/data", set_numbers((0, 2)), "a range begins"),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_arrays_of_a_file_that_contradict_each_other_are_refused(folder, kind):
    """``CONTRADICTIONS`` holds, by name, changes of one array after which a file is invalid.

    The file stores each matrix sparsely, as three arrays: its numbers (data), their columns
    (indices), and where each row begins (indptr). The fixture ``folder`` has valid files.
    """
    name, edit, what = CONTRADICTIONS[kind]  # array, its change, the begin of the error
    data.check(folder, RECIPE)  # valid before; what is cached now must not hide the change
    file = change_array(folder, name, edit)
    with pytest.raises(DataError) as caught:
        data.check(folder, RECIPE)
    assert caught.value.what.startswith(what)
    # The error names the matrix, which is the first part of an array's name, such as text/data.
    assert caught.value.where == f"{file}, {name.partition('/')[0]}"


@pytest.mark.parametrize(
    ("name", "edit", "what"),
    [
        ("text/data", set_numbers((0, 128)), "the numbers range from 0 to 128"),
        ("target/data", set_numbers((0, 128)), "the numbers range from 0 to 128"),
        ("position/data", set_numbers((0, 65)), "the numbers range from 0 to 65"),
        ("logit_mask/data", lambda x: 0 * x, "a sequence of sample 0 (counted from 0) has no"),
    ],
)
def test_a_file_that_changes_after_the_check_is_refused_by_the_rank(folder, name, edit, what):
    """``check`` reads all numbers; a rank reads a sample when it needs it, and checks it again.

    ``set_numbers((0, 128))`` sets the first number of an array to 128; ``lambda x: 0 * x`` sets all
    to 0. ``what`` is a part of the error.
    """
    # ``RECIPE`` has token ids below 128 and sequences of 64 tokens.
    data.check(folder, RECIPE)
    file = change_array(folder, name, edit)
    # Loading reads only the shapes of these matrices.
    examples = data.load(folder, RECIPE).validation
    with pytest.raises(DataError, match=re.escape(what)) as caught:
        examples.build_sequences(0)
    assert caught.value.where.startswith(f"{file}, {name.partition('/')[0]}")


@pytest.mark.parametrize(
    ("name", "shape", "what"),
    [
        ("text", (6,), "the shape is (6,)"),
        ("text", (2, 3, 1), "the matrix cannot be read by rows"),
        ("mask", (), "the matrix cannot be read by rows"),
    ],
)
def test_a_plain_data_set_with_other_dimensions_is_refused(folder, name, shape, what):
    """A matrix may also be stored as a plain array; here one with a wrong shape replaces it."""
    file = next(folder.rglob(FILES["validation"]))
    with h5py.File(file, "r+") as opened:
        del opened[name]
        opened[name] = np.zeros(shape, np.int64)
    with pytest.raises(DataError, match=re.escape(what)) as caught:
        data.check(folder, RECIPE)
    assert caught.value.where == f"{file}, {name}"


def test_error_of_a_missing_matrix_names_it_and_the_cause(folder):
    """``folder`` has valid files; ``target``, the tokens to predict, is removed from one."""
    file = next(folder.rglob(FILES["validation"]))
    with h5py.File(file, "r+") as opened:
        del opened["target"]
    with pytest.raises(DataError, match="object 'target' doesn't exist") as caught:
        data.check(folder, RECIPE)
    assert caught.value.what.startswith("the matrix cannot be read by rows: ")
    assert caught.value.where == f"{file}, target"


def test_files_with_other_numbers_of_sequences_are_refused(folder):
    """The matrices of sequences must have the same number of rows; the fixture folder is valid.

    A sample has several sequences, one for each candidate, so there are fewer samples.
    """
    file = next(folder.rglob(FILES["train"]))
    with h5py.File(file, "r+") as opened:
        del opened["target"]
        # A matrix with a row for each sample takes the place of one with a row for each sequence.
        opened.copy("choice_start_end", "target")
    with pytest.raises(DataError, match="the shape is") as caught:
        data.check(folder, RECIPE)
    assert caught.value.where == f"{file}, target"


@pytest.mark.parametrize(
    "kind", ["no target", "first samples point to a later one", "answer outside"]
)
def test_prepare_refuses_arrays_that_contradict_each_other(folder, tmp_path, kind):
    """``CONTRADICTIONS`` has by name a change of one array after which a file is invalid.

    ``check`` and ``prepare`` read a file by the same class, and ``check`` is tested with all
    changes. These three stand for the others: no token of a sequence is to be predicted, a sample
    has sequences of a later one, and the right answer is none of the sample's candidates. The
    fixture has written valid files.
    """
    name, edit, what = CONTRADICTIONS[kind]  # array, its change, the begin of the error
    file = change_array(folder, name, edit)
    with pytest.raises(DataError, match=re.escape(what)) as caught:
        prepare(folder, tmp_path / "data", lambda _: None)
    # The error names the matrix, which is the first part of an array's name, such as text/data.
    assert caught.value.where == f"{file}, {name.partition('/')[0]}"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("kind", ["indptr falls", "column outside", "more data than indices"])
def test_prepare_refuses_to_transpose_a_contradictory_matrix(tmp_path, splits, kind):
    """A sparse matrix is stored by rows (csr) or by columns (csc), as three arrays.

    They are its numbers (data), for each number its place in the row or column (indices), and where
    each row or column begins (indptr). ``prepare`` turns csc into csr, which is what a run reads.
    """
    folder = write_download(tmp_path / "raw", splits, form="csc")
    name, edit, _ = CONTRADICTIONS[kind]  # array, its change, the error of a matrix by rows
    # By columns, an index is a row instead of a column; there are fewer than 10,000 rows.
    file = change_array(
        folder, name, set_numbers((0, 10_000)) if kind == "column outside" else edit
    )
    with pytest.raises(DataError) as caught:
        prepare(folder, tmp_path / "data", lambda _: None)
    # The error names the matrix, which is the first part of an array's name, such as text/data.
    assert caught.value.where == f"{file}, {name.partition('/')[0]}"
    assert not (tmp_path / "data").exists()


def remove_shape(matrix):
    """Remove the shape of a sparse matrix."""
    del matrix.attrs["h5sparse_shape"]


def set_shape_to_one_number(matrix):
    """Let a sparse matrix have a shape of one number instead of two."""
    matrix.attrs["h5sparse_shape"] = 5


def remove_indptr(matrix):
    """Remove the array that tells where each row or column of a sparse matrix begins."""
    del matrix["indptr"]


@pytest.mark.parametrize("damage", [remove_shape, set_shape_to_one_number, remove_indptr])
def test_prepare_refuses_to_transpose_an_incomplete_matrix(tmp_path, splits, damage):
    """A matrix that is stored by columns has four parts: its shape and three arrays."""
    folder = write_download(tmp_path / "raw", splits, form="csc")
    file = next(folder.rglob(FILES["train"]))
    with h5py.File(file, "r+") as opened:
        damage(opened["text"])
    with pytest.raises(DataError, match="the matrix cannot be converted: ") as caught:
        prepare(folder, tmp_path / "data", lambda _: None)
    assert caught.value.where == f"{file}, text"
    assert not (tmp_path / "data").exists()
