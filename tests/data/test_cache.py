"""Cached arrays: built once, read back, and rebuilt if a file is damaged."""

import json

import numpy as np
import pytest

from trainmark.data.cache import ARRAYS_FILE, load_or_build_arrays

ARRAYS = [np.arange(5), np.ones((2, 3), np.float32)]


@pytest.fixture
def builds():
    """A list with an entry for each time that arrays were built."""
    return []


@pytest.fixture
def read(tmp_path, builds):
    """Return a function that reads the arrays; each time they are built, ``builds`` grows."""

    def build():
        builds.append(1)
        return ARRAYS

    def read():
        """Read the cached arrays, which are built if needed; they must equal ``ARRAYS``."""
        arrays = load_or_build_arrays(tmp_path / "kept", build)
        for array, expected in zip(arrays, ARRAYS, strict=True):
            np.testing.assert_array_equal(array, expected)
        return arrays

    return read


def test_arrays_are_built_once_and_then_mapped(read, builds):
    # ``read`` builds the arrays, unless they are kept from an earlier call, and returns them from
    # their files; ``builds`` has an entry for each time that they were built. Twice read, once
    # built.
    for _ in range(2):
        assert all(isinstance(array, np.memmap) for array in read())
    assert len(builds) == 1


def fill_with_zeros(file):
    np.save(file, np.zeros(5, np.int64))


def truncate(file):
    file.write_bytes(file.read_bytes()[:-8])


def remove_list(file):
    file.with_name(ARRAYS_FILE).unlink()


def change_list(file):
    file.with_name(ARRAYS_FILE).write_text(json.dumps([1]))


@pytest.mark.parametrize(
    "damage", [fill_with_zeros, truncate, lambda file: file.unlink(), remove_list, change_list]
)
def test_damaged_arrays_are_rebuilt(read, builds, tmp_path, damage):
    """A changed or missing array is noticed, and so is the list of arrays beside it.

    ``read`` reads two arrays, which are built and kept in the folder "kept" unless whole ones are
    there; ``builds`` has an entry for each time that they were built.
    """
    read()
    damage(tmp_path / "kept" / "00.npy")  # the file of the first array
    read()  # builds the arrays again
    read()  # finds them
    assert len(builds) == 2


def test_arrays_are_rebuilt_each_time_in_a_read_only_folder(tmp_path, builds):
    (tmp_path / "file").write_text("")  # no folder can be made below a file, even by root

    def build():
        builds.append(1)
        return ARRAYS

    # The very arrays that were built are returned, as there are no files of them.
    for _ in range(2):
        assert load_or_build_arrays(tmp_path / "file" / "kept", build) is ARRAYS
    assert len(builds) == 2
