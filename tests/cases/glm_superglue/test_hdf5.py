"""The published sparse HDF5: its batches as they are; no torch."""

from dataclasses import replace

import numpy as np
import pytest

from glm_sparse import write_split
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
    """A few generated samples read from text."""
    (tmp_path / "text").mkdir()
    monkeypatch.setattr(generated, "PASSAGES", {"train": 12, "val": 8})
    generated.generate(tmp_path / "text", TINY)
    return data.load(tmp_path / "text", TINY)


@pytest.fixture
def folder(tmp_path, splits):
    """The same samples as a download of HDF5 files."""
    return write(tmp_path / "raw", splits)


def write(folder, splits, **storage):
    for split, name in FILES.items():
        file = folder / "ReCoRD" / "glm_train_eval_hdf5_sparse" / name
        file.parent.mkdir(parents=True)
        examples = getattr(splits, split)
        samples = [examples.sequences(row) for row in range(len(examples))]
        write_split(file, samples, columns=64, evaluation=split == "validation", **storage)
    return folder


def same(ours, theirs):
    assert len(ours) == len(theirs)
    left, right = (examples.batch(range(len(ours))) for examples in (ours, theirs))
    assert left[1] == right[1]
    for name in left[0].__slots__:
        np.testing.assert_array_equal(getattr(left[0], name), getattr(right[0], name))


@pytest.mark.parametrize("storage", [{}, {"chunks": (4,), "compression": "gzip"}])
def test_text_and_sparse_file_give_equal_batches(tmp_path, splits, storage):
    found = data.load(write(tmp_path / "raw", splits, **storage), RECIPE)
    same(found.train, splits.train)
    same(found.validation, splits.validation)
    assert found.train.shortened is None


@pytest.mark.parametrize("form", ["csr", "csc"])
def test_a_download_is_prepared_and_read(tmp_path, splits, form):
    folder = write(tmp_path / "raw", splits, form=form)
    if form == "csc":
        with pytest.raises(DataError, match="prepare turns csc into csr"):
            data.load(folder, RECIPE)
    prepare(folder, tmp_path / "data", lambda _: None)
    facts = data.check(tmp_path / "data", RECIPE)
    assert (facts.train_samples, facts.eval_samples, facts.layout) == (12, 8, "hdf5")
    found = data.load(tmp_path / "data", RECIPE)
    same(found.train, splits.train)
    same(found.validation, splits.validation)


def test_longer_sequences_and_damaged_files_are_refused(folder):
    with pytest.raises(DataError, match="sequences of 64 tokens"):
        data.check(folder, replace(RECIPE, seq_length=52))
    next(folder.rglob(FILES["train"])).write_bytes(b"x")
    with pytest.raises(DataError, match="not readable as HDF5"):
        data.check(folder, RECIPE)
