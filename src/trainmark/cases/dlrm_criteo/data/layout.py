"""The layout of a click log on disk: one file a column group, rows of fixed size.

Owns which files belong to a split, what a row takes in each, and that they hold the same
rows. Must not know what the values mean, nor how the description is written down.

A split is ``numerical.bin`` (num_numerical x float16 a row), ``label.bin`` (one byte a row)
and a file for each categorical column, whole numbers of 1, 2 or 4 bytes. Everything is
little endian, row after row, without headers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from trainmark.data import files as data_files
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SPLITS = ("train", "test")
CATEGORY_BYTES = {"int8": 1, "int16": 2, "int32": 4}
NUMERICAL_TYPE, NUMERICAL_BYTES = "float16", 2
LABEL_TYPE, LABEL_BYTES = "bool", 1
NUM_NUMERICAL = 13  # integer columns of the Criteo logs
# How the published runs' data was prepared: NVIDIA's DLRM preprocessing with Spark.
PUBLISHED_RULES: dict[str, int | str] = {
    "frequency_threshold": 15, "log_offset": 3, "order": "shuffled", "empty_category": "rare",
}  # fmt: skip
PREPARE = "run `trainmark prepare dlrm_criteo --from RAW --data DIR`"
AGAIN = f"copy the folder again, or {PREPARE}"


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The files of one split; categories in the order of the tables."""

    numerical: Path
    label: Path
    categories: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """What a data folder holds.

    Args:
        num_numerical: float16 values of a row.
        cardinalities: rows of each table; a category lies below its table's.
        category_dtypes: ``int8``, ``int16`` or ``int32``: how each column is stored.
        files: by split, ``train`` and ``test``.
        rules: options of ``prepare`` that made the folder, as text; none where unknown.
    """

    num_numerical: int
    cardinalities: tuple[int, ...]
    category_dtypes: tuple[str, ...]
    files: dict[str, SplitFiles]
    rules: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, folder: Path, cardinalities: Sequence[int], *, num_numerical: int = NUM_NUMERICAL
    ) -> FeatureSpec:
        """Return the names and types that this program gives to data it writes."""
        numbers = range(len(cardinalities))
        files = {
            split: SplitFiles(
                folder / split / "numerical.bin",
                folder / split / "label.bin",
                tuple(folder / split / f"cat_{number}.bin" for number in numbers),
            )
            for split in SPLITS
        }
        dtypes = tuple(smallest_dtype(cardinality) for cardinality in cardinalities)
        return cls(num_numerical, tuple(cardinalities), dtypes, files)

    @property
    def changed_rules(self) -> dict[str, str]:
        """The rules that are not those of the published runs."""
        published = {name: str(value) for name, value in PUBLISHED_RULES.items()}
        return {
            name: value for name, value in self.rules.items() if published.get(name, value) != value
        }

    def row_bytes(self, split: str) -> dict[Path, int]:
        """Return the bytes a row takes in each file of a split."""
        files = self.files[split]
        sizes = (CATEGORY_BYTES[dtype] for dtype in self.category_dtypes)
        return {
            files.label: LABEL_BYTES,
            files.numerical: NUMERICAL_BYTES * self.num_numerical,
            **dict(zip(files.categories, sizes, strict=True)),
        }

    def num_rows(self, split: str) -> int:
        """Return the rows of a split, from the sizes of all its files.

        Raises:
            DataError: a file is missing, ends inside a row, holds other rows than the
                labels, or there are none.
        """
        label = self.files[split].label
        rows: dict[Path, int] = {}
        for file, size in self.row_bytes(split).items():
            rows[file] = _whole_rows(file, size)
            if rows[file] != rows[label]:
                raise DataError(
                    f"{rows[file]} rows, where {label} has {rows[label]}",
                    where=str(file), rule="all files of a split hold the same rows",
                    remedy=AGAIN,
                )  # fmt: skip
        if rows[label] == 0:
            raise DataError(
                f"the {split} split is empty", where=str(label),
                rule="a split has at least one row", remedy="prepare from more rows",
            )  # fmt: skip
        return rows[label]


def smallest_dtype(cardinality: int) -> str:
    """Return the narrowest type that holds 0 to ``cardinality - 1``."""
    assert 0 < cardinality <= largest_cardinality("int32"), cardinality
    return next(dtype for dtype in CATEGORY_BYTES if cardinality <= largest_cardinality(dtype))


def largest_cardinality(dtype: str) -> int:
    """Return how many categories a signed type of the layout numbers from 0."""
    return int(1 << (8 * CATEGORY_BYTES[dtype] - 1))


readable = partial(
    data_files.readable,
    rule="every file that feature_spec.yaml names is a readable one",
    remedy=AGAIN,
)


def _whole_rows(file: Path, row_bytes: int) -> int:
    with readable(file):
        length = file.stat().st_size
    rows, rest = divmod(length, row_bytes)
    if rest:
        raise DataError(
            f"{length} bytes: cut off inside row {rows} (counted from 0)", where=str(file),
            rule=f"a row takes {row_bytes} bytes here", remedy=AGAIN,
        )  # fmt: skip
    return rows
