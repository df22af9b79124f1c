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

from trainmark.data.cache import Extremes, compute_extremes, load_or_scan
from trainmark.errors import DataError
from trainmark.spec import DataFacts
from trainmark.train.step_memory import refuse_too_little

from ..placement import place_tables, predict
from .generated import generate
from .layout import AGAIN, PREPARE, FeatureSpec, read_spec, translate_read_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from trainmark.data.cache import Extremes
    from trainmark.spec import RankMemory

    from ..case import DlrmRecipe
    from .layout import FeatureSpec

CACHE_FILE = "content.json"  # in the data folder
BLOCK_BYTES = 1 << 22
_MAGNITUDE_BITS = 0x7FFF  # of a float16: all but the sign; they order as the magnitudes do
_INFINITE = 0x7C00  # bits of float16 infinity; those of nan are larger
_MAX_THREADS = 8


def read_content(folder: Path, kinds: dict[Path, np.dtype[Any]]) -> dict[Path, Extremes]:
    """Return digest, smallest and largest value of every file.

    For float16, the values are the bits without the sign, which order as the magnitudes do, with
    infinity and nan last. A large log takes minutes, so the result is cached; see ``load_or_scan``.

    Args:
        kinds: maps each file to the type of its values.

    Raises:
        DataError: a file cannot be read.
    """
    names = {f"{file.relative_to(folder).as_posix()} {kinds[file].str}": file for file in kinds}

    def scan() -> dict[str, Extremes]:
        threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(threads, "dlrm-check") as pool:
            scanned = list(pool.map(_scan_file, kinds, kinds.values()))
        return dict(zip(names, scanned, strict=True))

    extremes_by_name = load_or_scan(folder / CACHE_FILE, names, scan)
    return {file: extremes_by_name[name] for name, file in names.items()}


def _scan_file(file: Path, kind: np.dtype[Any]) -> Extremes:
    """Return digest, smallest and largest value of a file, read in blocks."""

    def read_blocks() -> Iterator[NDArray[Any]]:
        with translate_read_errors(file), file.open("rb") as stream:
            while block := stream.read(BLOCK_BYTES):  # may end within a row
                yield np.frombuffer(block, kind.base)

    return compute_extremes(read_blocks(), to_integers=_order_as_integers)


def _order_as_integers(values: NDArray[Any]) -> NDArray[Any]:
    """Return integers unchanged, and of float16 the bits without the sign."""
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
    rows = {split: spec.count_rows(split) for split in spec.files}
    types = {split: spec.get_row_types(split) for split in spec.files}
    content = read_content(
        folder, {file: kind.base for split in types.values() for file, kind in split.items()}
    )
    for split in types.values():
        limits = zip(split.items(), (2, _INFINITE, *spec.cardinalities), strict=True)
        for (file, kind), limit in limits:
            _refuse_outside(file, content[file], kind, limit)
    test = spec.files["test"].label
    if content[test].smallest == content[test].largest:
        raise DataError(
            f"all labels are {content[test].largest}",
            where=str(test),
            rule="AUC needs rows of both labels in the test split",
            fix=f"{PREPARE} from more rows",
        )
    return DlrmData(spec, rows, _compute_content_id(spec, content))


def check(folder: Path, recipe: DlrmRecipe) -> DataFacts:
    """Check all data that ``recipe`` reads; return its facts with the content id.

    Raises:
        DataError: see ``load``.
    """
    loaded = load(folder, recipe)
    best_quality = None
    if recipe.data == "generated":
        from .generated import compute_best_auc

        best_quality = compute_best_auc(recipe)
    rows = loaded.num_rows
    return DataFacts(
        rows["train"],
        rows["test"],
        loaded.content_id,
        LAYOUT,
        best_quality=best_quality,
        changed_rules=loaded.spec.changed_rules,
    )


def _compute_content_id(spec: FeatureSpec, content: dict[Path, Extremes]) -> str:
    """Return a digest of the content that does not depend on names or paths of files."""
    parts = [*map(str, (spec.num_numerical, *spec.cardinalities)), *spec.category_dtypes]
    parts += [extremes.digest for extremes in content.values()]
    return sha256(" ".join(parts).encode()).hexdigest()[:16]


def _refuse_outside(file: Path, extremes: Extremes, kind: np.dtype[Any], limit: int) -> None:
    """Refuse a file with a label, a category or bits of a number outside [0, limit)."""
    if extremes.smallest >= 0 and extremes.largest < limit:
        return
    what = f"values from {extremes.smallest} to {extremes.largest}"
    rule = f"labels, and the categories of this table, must be in [0, {limit})"
    if kind.shape:
        what = f"a value is {'inf' if extremes.largest == _INFINITE else 'nan'}"
        rule = f"numbers must be finite and at most {np.finfo(np.float16).max:g} in magnitude"
    fix = f"correct the cardinality in feature_spec.yaml, or {PREPARE}"
    raise DataError(what, where=str(file), rule=rule, fix=fix)


def check_fit(folder: Path, recipe: DlrmRecipe, world_size: int, memory: RankMemory) -> int:
    """Refuse tables or a micro-batch that exceed the ranks' memory; return the predicted bytes.

    Raises:
        EnvironmentFault: the fix names the smallest number of ranks for the tables, or the largest
            micro-batch that fits.
    """
    spec = read_spec(folder)
    placement = place_tables(memory, spec.cardinalities, recipe.embedding_dim, world_size)
    return refuse_too_little(
        lambda other: predict(other, placement, spec.num_numerical), recipe, memory
    )


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
        columns: the tables that this rank holds; None: all.

    Raises:
        DataError: files are missing, cut off or have different numbers of rows; see
            ``FeatureSpec``.
    """

    def __init__(self, spec: FeatureSpec, split: str, columns: Sequence[int] | None = None) -> None:
        self.files, self.kinds = spec.files[split], spec.get_row_types(split)
        self.columns = range(len(spec.cardinalities)) if columns is None else columns
        self.num_rows = spec.count_rows(split)

    def read_batches(
        self,
        global_batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        order: Sequence[int] | NDArray[np.int64] | None = None,
    ) -> Iterator[RawBatch]:
        """Yield the batches of one pass; the last batch of the split may be smaller.

        Args:
            order: batch numbers in the order of reading; None: ascending.

        Raises:
            DataError: a file cannot be read, or has become shorter.
        """
        count = -(-self.num_rows // global_batch_size)
        numbers = range(count) if order is None else order
        assert len(numbers) == count, f"the order has {len(numbers)} entries for {count} batches"
        local_columns = [self.files.categories[number] for number in self.columns]
        with ExitStack() as stack:
            streams = {}
            for file in (self.files.numerical, self.files.label, *local_columns):
                with translate_read_errors(file):
                    streams[file] = stack.enter_context(file.open("rb", buffering=0)).fileno()

            def read(file: Path, first: int, end: int) -> NDArray[Any]:
                return _read_rows(file, streams[file], self.kinds[file], first, end)

            for number in numbers:
                first = int(number) * global_batch_size
                rows = min(global_batch_size, self.num_rows - first)
                # The rank's rows, cut as in ``train.shards``.
                begin = first + rows * rank // world_size
                end = first + rows * (rank + 1) // world_size
                categories = np.empty((len(local_columns), rows), np.int32)
                for column, file in zip(categories, local_columns, strict=True):
                    column[:] = read(file, first, first + rows)
                labels = read(self.files.label, begin, end).astype(np.float32)
                numerical = read(self.files.numerical, begin, end)
                yield RawBatch(numerical, labels, categories, rows)


def _read_rows(file: Path, stream: int, kind: np.dtype[Any], first: int, end: int) -> NDArray[Any]:
    """Return rows of an open file as a writable array, (end - first,) plus the shape of a row."""
    buffer = np.empty((end - first) * kind.itemsize, np.uint8)
    with translate_read_errors(file):
        num_read = os.preadv(stream, [buffer.data], first * kind.itemsize)
    if num_read != len(buffer):
        raise DataError(
            f"the file ends before row {end}",
            where=str(file),
            rule="data files must not change while a run reads them",
            fix=AGAIN,
        )
    return buffer.view(kind.base).reshape(end - first, *kind.shape)
