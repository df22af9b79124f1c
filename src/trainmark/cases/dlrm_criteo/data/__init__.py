"""The click log in a data folder: the check before a run, the load on a rank, and its batches.

The check runs the same code as the load, so a rank can load all data that passed the check.
No torch.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.affinity import count_allowed_cores
from trainmark.data.cache import Extremes, compute_extremes, load_or_scan
from trainmark.errors import DataError
from trainmark.spec import DataFacts
from trainmark.train.step_memory import refuse_too_little_memory

from ..placement import place_tables, predict
from .generated import compute_best_auc, generate
from .layout import COPY_AGAIN, PREPARE, FeatureSpec, read_spec, translate_read_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from trainmark.data.cache import Extremes
    from trainmark.spec import RankMemory
    from trainmark.train.step_memory import Prediction

    from ..case import DlrmRecipe
    from .layout import FeatureSpec

CACHE_FILE = "content.json"  # in the data folder
BLOCK_BYTES = 1 << 22
# Bits of a float16 but the sign. As integers they have the order of the magnitudes: finite numbers,
# then infinity, then nan.
_MAGNITUDE_BITS = 0x7FFF
_INFINITY_BITS = 0x7C00
_MAX_THREADS = 8


def read_content(folder: Path, value_types: dict[Path, np.dtype[Any]]) -> dict[Path, Extremes]:
    """Return digest, smallest and largest value of every file.

    The smallest and largest float16 are those by magnitude, given as their bits without the sign;
    infinity and nan are above all numbers. Large files take minutes to read, so the result is
    cached in ``folder`` until the size or the modification time of a file changes.

    Args:
        value_types: maps each file to the type of its values.

    Raises:
        DataError: a file cannot be read.
    """
    # A name in the cache is the file's path and type, so that a file whose type changes is read
    # again.
    file_by_name = {
        f"{file.relative_to(folder).as_posix()} {value_type.str}": file
        for file, value_type in value_types.items()
    }

    def scan() -> dict[str, Extremes]:
        """Read all files, several at the same time; return their extremes by name in the cache.

        It is called only if the cache has no result for these files as they are now.
        """
        threads = min(_MAX_THREADS, count_allowed_cores())
        with ThreadPoolExecutor(threads, "dlrm-check") as pool:
            extremes = list(pool.map(_scan_file, value_types, value_types.values()))
        # ``file_by_name`` has the files in the order of ``value_types``.
        return dict(zip(file_by_name, extremes, strict=True))

    extremes_by_name = load_or_scan(folder / CACHE_FILE, file_by_name, scan)
    return {file: extremes_by_name[name] for name, file in file_by_name.items()}


def _scan_file(file: Path, value_type: np.dtype[Any]) -> Extremes:
    """Return digest, smallest and largest value of a file, read in blocks.

    Args:
        value_type: the type of its values; a row may have several.
    """

    def read_blocks() -> Iterator[NDArray[Any]]:
        with translate_read_errors(file), file.open("rb") as stream:
            # A block may end within a row, but not within a value: sizes of values divide it.
            block = stream.read(BLOCK_BYTES)
            while block:  # empty at the end of the file
                yield np.frombuffer(block, value_type)
                block = stream.read(BLOCK_BYTES)

    return compute_extremes(read_blocks(), to_integers=_to_ordered_integers)


def _to_ordered_integers(values: NDArray[Any]) -> NDArray[Any]:
    """Return integers unchanged, and float16 numbers as integers that order them by magnitude.

    These integers are the bits without the sign. Those of infinity are larger than those of every
    number, and those of nan larger still. So the largest tells whether all numbers are finite.
    """
    if values.dtype.kind == "f":
        return values.view("<u2") & _MAGNITUDE_BITS
    return values


__all__ = ["check", "check_fit", "generate", "load"]  # what the core and the job call
LAYOUT = "criteo-split-binary"


@dataclass(frozen=True, slots=True)
class DlrmData:
    """A checked data folder; ``SplitReader`` reads its rows.

    Args:
        num_rows: number of rows of each split.
        content_id: digest of the bytes of every file and the sizes of the tables.
    """

    spec: FeatureSpec
    num_rows: dict[str, int]
    content_id: str


def load(folder: Path, recipe: DlrmRecipe) -> DlrmData:
    """Check that every value is in its range, and return the folder's facts; rows stay on disk.

    Raises:
        DataError: the first fault, with file, rule and fix.
    """
    del recipe  # all recipes read the same files
    spec = read_spec(folder)
    num_rows = {split: spec.count_rows(split) for split in spec.files}
    value_types: dict[Path, np.dtype[Any]] = {}
    for split in spec.files:
        for file, row_type in spec.get_row_types(split).items():
            value_types[file] = row_type.base  # of one value: a numerical row has several
    # Of each file: its smallest and largest value, and a digest of its content.
    extremes_by_file = read_content(folder, value_types)
    for files in spec.files.values():
        _refuse_outside(files.label, extremes_by_file[files.label], limit=2, fix=PREPARE)
        _refuse_infinite(files.numerical, extremes_by_file[files.numerical])
        for file, cardinality in zip(files.categories, spec.cardinalities, strict=True):
            fix = f"correct the cardinality in feature_spec.yaml, or {PREPARE}"
            _refuse_outside(file, extremes_by_file[file], limit=cardinality, fix=fix)
    test_labels = spec.files["test"].label
    label = extremes_by_file[test_labels]
    if label.smallest == label.largest:
        raise DataError(
            f"all labels in the test split are {label.largest}",
            where=str(test_labels),
            rule="the test split must contain rows with both labels; otherwise, AUC is undefined",
            fix=f"{PREPARE} with more rows",
        )
    return DlrmData(spec, num_rows, _compute_content_id(spec, extremes_by_file))


def check(folder: Path, recipe: DlrmRecipe) -> DataFacts:
    """Check all data that ``recipe`` reads; return its facts with the content id.

    Raises:
        DataError: the first fault, with file, rule and fix.
    """
    loaded = load(folder, recipe)
    best_quality = None
    if recipe.data == "generated":  # only then is the true probability of each click known
        best_quality = compute_best_auc(recipe)
    return DataFacts(
        train_samples=loaded.num_rows["train"],
        eval_samples=loaded.num_rows["test"],
        content_id=loaded.content_id,
        layout=LAYOUT,
        best_quality=best_quality,
        # Rules by which the data was prepared that differ from those of the published runs.
        changed_rules=loaded.spec.changed_rules,
    )


def _compute_content_id(spec: FeatureSpec, extremes_by_file: dict[Path, Extremes]) -> str:
    """Return a digest of the content that does not depend on names or paths of files.

    Args:
        extremes_by_file: in the order of splits and columns in ``spec``.
    """
    sizes = (spec.num_numerical, *spec.cardinalities)
    parts = [*map(str, sizes), *spec.category_dtypes]
    parts += [extremes.digest for extremes in extremes_by_file.values()]
    return sha256(" ".join(parts).encode()).hexdigest()[:16]


def _refuse_outside(file: Path, extremes: Extremes, *, limit: int, fix: str) -> None:
    """Refuse a file of labels, or of the categories of one table, with one outside [0, limit)."""
    if extremes.smallest < 0 or extremes.largest >= limit:
        raise DataError(
            f"the values range from {extremes.smallest} to {extremes.largest}",
            where=str(file),
            rule=f"all values in this file must be at least 0 and less than {limit}",
            fix=fix,
        )


def _refuse_infinite(file: Path, extremes: Extremes) -> None:
    """Refuse a file of float16 numbers with an infinity or a nan.

    Args:
        extremes: of the numbers' bits without the sign, which as integers order the numbers by
            magnitude.
    """
    if extremes.largest >= _INFINITY_BITS:
        # The bits of every nan are above those of infinity, see IEEE 754.
        value = "inf" if extremes.largest == _INFINITY_BITS else "nan"
        largest_number = np.finfo(np.float16).max
        raise DataError(
            f"the file contains the value {value}",
            where=str(file),
            rule=f"numbers must be finite and at most {largest_number:g} in magnitude",
            fix=PREPARE,
        )


def check_fit(folder: Path, recipe: DlrmRecipe, world_size: int, memory: RankMemory) -> int:
    """Refuse tables or a micro-batch that exceed the ranks' memory.

    Returns:
        The bytes that the rank with the largest need is predicted to need.

    Raises:
        EnvironmentFault: the fix names the smallest number of ranks for the tables, or the largest
            micro-batch that fits.
    """
    spec = read_spec(folder)
    # Raises the error if the tables alone do not fit.
    placement = place_tables(memory, spec.cardinalities, recipe.embedding_dim, world_size)

    def predict_for(tried_recipe: DlrmRecipe) -> Prediction:
        """Predict for the recipe, or for a smaller one that the error may propose."""
        return predict(tried_recipe, placement, spec.num_numerical)

    return refuse_too_little_memory(predict_for, recipe, memory)


@dataclass(frozen=True, slots=True, eq=False)
class RawBatch:
    """The parts of one global batch that one rank reads.

    Args:
        numerical: values of this rank's rows, float16 (B_local, num_numerical); no rows if the
            batch has fewer rows than there are ranks.
        labels: of the same rows, float32 (B_local,).
        categories: this rank's columns for the global batch, int32 (columns, step_samples).
        step_samples: number of rows of the global batch.
    """

    numerical: NDArray[np.float16]
    labels: NDArray[np.float32]
    categories: NDArray[np.int32]
    step_samples: int


class SplitReader:
    """Reads the rows of one split in batches.

    Args:
        spec: describes the files of all splits.
        split: ``train`` or ``test``.
        tables: numbers of the tables whose categories are read, those that this rank holds; None:
            all.

    Raises:
        DataError: files are missing, cut off or have different numbers of rows; see
            ``FeatureSpec``.
    """

    def __init__(self, spec: FeatureSpec, split: str, tables: Sequence[int] | None = None) -> None:
        """Find the files of ``split``.

        Args:
            tables: numbers of the tables whose categories are read, in this order; None: all.
        """
        files = spec.files[split]
        self.label_file = files.label
        self.numerical_file = files.numerical
        if tables is None:
            tables = range(len(spec.cardinalities))
        self.category_files = [files.categories[table] for table in tables]
        self.row_types = spec.get_row_types(split)
        self.num_rows = spec.count_rows(split)

    def read_batches(
        self,
        global_batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        order: Sequence[int] | NDArray[np.int64] | None = None,
    ) -> Iterator[RawBatch]:
        """Yield what ``rank`` reads of each global batch of one pass.

        The last batch of the split may be smaller.

        Args:
            global_batch_size: number of rows of a batch over all ranks.
            order: batch numbers in the order of reading; None: ascending.

        Raises:
            DataError: a file cannot be read, or has become shorter.
        """
        num_batches = -(-self.num_rows // global_batch_size)  # rounded up
        numbers = range(num_batches) if order is None else order
        assert len(numbers) == num_batches, (
            f"the order has {len(numbers)} entries for {num_batches} batches"
        )
        with ExitStack() as stack:
            descriptors: dict[Path, int] = {}
            for file in (self.numerical_file, self.label_file, *self.category_files):
                with translate_read_errors(file):
                    # Rows are read through the descriptor, so a buffer would not be used.
                    stream = stack.enter_context(file.open("rb", buffering=0))
                descriptors[file] = stream.fileno()
            for number in numbers:
                first = int(number) * global_batch_size
                end = min(first + global_batch_size, self.num_rows)
                yield self._read_batch(descriptors, first, end, rank=rank, world_size=world_size)

    def _read_batch(
        self, descriptors: dict[Path, int], first: int, end: int, *, rank: int, world_size: int
    ) -> RawBatch:
        """Return the rank's parts of the global batch of rows ``first`` to ``end - 1``.

        Args:
            descriptors: the descriptor of each open file.
        """

        def read(file: Path, first_row: int, end_row: int) -> NDArray[Any]:
            return _read_rows(file, descriptors[file], self.row_types[file], first_row, end_row)

        step_samples = end - first
        # A rank reads labels and numbers of its own samples only, which are its even share of the
        # batch. But it reads the categories of all samples, because it looks up the tables that it
        # holds for the whole global batch; ``category_files`` has one file for each of them.
        rank_first = first + step_samples * rank // world_size
        rank_end = first + step_samples * (rank + 1) // world_size
        categories = np.empty((len(self.category_files), step_samples), np.int32)  # (tables, rows)
        for column, file in zip(categories, self.category_files, strict=True):
            column[:] = read(file, first, end)
        return RawBatch(
            numerical=read(self.numerical_file, rank_first, rank_end),
            labels=read(self.label_file, rank_first, rank_end).astype(np.float32),
            categories=categories,
            step_samples=step_samples,
        )


def _read_rows(
    file: Path, descriptor: int, row_type: np.dtype[Any], first: int, end: int
) -> NDArray[Any]:
    """Return rows ``first`` to ``end - 1`` of an open file as an array.

    It is writable, as ``torch.from_numpy`` expects. Its shape is (end - first,) plus that of
    ``row_type``.

    Args:
        file: its path, for errors.
    """
    buffer = np.empty((end - first) * row_type.itemsize, np.uint8)
    num_read = 0
    with translate_read_errors(file):
        # A call may read less than asked for, on Linux at most 2 GiB; at the file's end, nothing.
        while num_read < len(buffer):
            offset = first * row_type.itemsize + num_read
            num_new = os.preadv(descriptor, [buffer.data[num_read:]], offset)
            if num_new == 0:
                break
            num_read += num_new
    if num_read != len(buffer):
        raise DataError(
            f"the file ends before row {end}",
            where=str(file),
            rule="data files must not change while a run reads them",
            fix=COPY_AGAIN,
        )
    return buffer.view(row_type.base).reshape(end - first, *row_type.shape)
