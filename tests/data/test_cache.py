"""Arrays kept beside data: built once, read back, and built again where a file is damaged."""

import json

import numpy as np
import pytest

from trainmark.data.cache import ARRAYS_FILE, mapped_arrays

ARRAYS = [np.arange(5), np.ones((2, 3), np.float32)]


@pytest.fixture
def built():
    """How often arrays were built."""
    return []


@pytest.fixture
def read(tmp_path, built):
    def build():
        built.append(1)
        return ARRAYS

    def read():
        arrays = mapped_arrays(tmp_path / "kept", build)
        for array, wanted in zip(arrays, ARRAYS, strict=True):
            np.testing.assert_array_equal(array, wanted)
        return arrays

    return read


def test_arrays_are_built_once_and_then_mapped(read, built):
    for _ in range(2):
        assert all(isinstance(array, np.memmap) for array in read())
    assert len(built) == 1


def zeros(file):
    np.save(file, np.zeros(5, np.int64))


def cut(file):
    file.write_bytes(file.read_bytes()[:-8])


def no_list(file):
    file.with_name(ARRAYS_FILE).unlink()


def other_list(file):
    file.with_name(ARRAYS_FILE).write_text(json.dumps([1]))


@pytest.mark.parametrize("damage", [zeros, cut, lambda file: file.unlink(), no_list, other_list])
def test_damaged_arrays_are_rebuilt(read, built, tmp_path, damage):
    read()
    damage(tmp_path / "kept" / "00.npy")
    read()
    read()
    assert len(built) == 2


def test_arrays_are_rebuilt_each_time_in_a_read_only_folder(tmp_path, built):
    (tmp_path / "file").write_text("")

    def build():
        built.append(1)
        return ARRAYS

    for _ in range(2):
        assert mapped_arrays(tmp_path / "file" / "kept", build) is ARRAYS
    assert len(built) == 2
