"""The data that the toy case reads from a folder of ``--data``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from trainmark.cases.toy.data import FEATURES, load
from trainmark.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import ArrayLike


def write_splits(folder: Path, labels: ArrayLike) -> None:
    """Write both splits with 3 rows of features, and with these labels."""
    for split in ("train", "validation"):
        np.savez(folder / f"{split}.npz", x=np.zeros((3, FEATURES), np.float32), y=labels)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32, np.bool_])
def test_labels_of_any_numeric_type_are_read_as_whole_numbers(tmp_path: Path, dtype: type) -> None:
    write_splits(tmp_path, np.array([0, 1, 1], dtype))
    labels = load(tmp_path)["train"].labels
    assert (labels.dtype, labels.tolist()) == (np.int64, [0, 1, 1])


@pytest.mark.parametrize("label", [2, -1, 0.5, float("nan")])
def test_label_that_is_neither_0_nor_1_is_refused(tmp_path: Path, label: float) -> None:
    write_splits(tmp_path, [0, label, 1])
    with pytest.raises(DataError, match="neither 0 nor 1") as caught:
        load(tmp_path)
    assert caught.value.where == f"{tmp_path / 'train.npz'}, row 2"


@pytest.mark.parametrize("labels", [1, [[0], [1], [1]], [0, 1]], ids=["scalar", "column", "short"])
def test_labels_of_another_shape_are_refused(tmp_path: Path, labels: ArrayLike) -> None:
    write_splits(tmp_path, labels)
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert caught.value.rule == "x must have shape (rows, 16), and y must have shape (rows,)"
