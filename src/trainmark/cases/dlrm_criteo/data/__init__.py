"""The click log in a data folder: the check before a run, the load on a rank, and its batches.

Owns which values are allowed, what the content is called, and which bytes a rank reads. The check
is the load with its findings written down, so what passed it cannot surprise a rank. No torch.
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
_SIZE_BITS = 0x7FFF  # of a float16: all but the sign; larger numbers have larger bits
_INFINITE = 0x7C00  # bits of float16 infinity; those of nan are larger
_MOST_THREADS = 8


def read_content(folder: Path, kinds: dict[Path, np.dtype[Any]]) -> dict[Path, Extremes]:
    """Return the extremes of every file of ``kinds``, which has its numbers' type.

    Labels and categories are compared as they are; of float16 the bits without the sign,
    which order as the sizes of the numbers do, infinity and nan last. A large log takes
    minutes; see ``load_or_scan``.

    Raises:
        DataError: a file cannot be read.
    """
    names = {f"{file.relative_to(folder).as_posix()} {kinds[file].str}": file for file in kinds}

    def scan() -> dict[str, Extremes]:
        threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(threads, "dlrm-check") as pool:
            scanned = list(pool.map(_scan_file, kinds, kinds.values()))
        return dict(zip(names, scanned, strict=True))

    extremes_by_name = load_or_scan(folder / CACHE_FILE, names, scan)
    return {file: extremes_by_name[name] for name, file in names.items()}


def _scan_file(file: Path, kind: np.dtype[Any]) -> Extremes:
    """Read a file once, in blocks."""

    def read_blocks() -> Iterator[NDArray[Any]]:
        with translate_read_errors(file), file.open("rb") as stream:
            while block := stream.read(BLOCK_BYTES):  # no whole number of rows
                yield np.frombuffer(block, kind.base)

    return compute_extremes(read_blocks(), to_integers=_order_as_integers)


def _order_as_integers(values: NDArray[Any]) -> NDArray[Any]:
    return values.view("<u2") & _SIZE_BITS if values.dtype.kind == "f" else values


__all__ = ["check", "check_fit", "generate", "load"]  # what the core and the job call
LAYOUT = "criteo-split-binary"


@dataclass(frozen=True, slots=True)
class DlrmData:
    """What a rank reads from; see ``SplitReader``.

    Args:
        num_rows: by split.
        content_id: from every file's bytes and the tables' sizes.
    """

    spec: FeatureSpec
    num_rows: dict[str, int]
    content_id: str


def load(folder: Path, recipe: DlrmRecipe) -> DlrmData:
    """Return what the folder holds, every value found in its range; rows stay on disk.

    Raises:
        DataError: the first fault found, with file, row, rule and fix.
    """
    del recipe  # every recipe reads the same
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
            rule="an AUC needs rows of both labels in the test split",
            fix=f"{PREPARE} from more rows",
        )
    return DlrmData(spec, rows, _compute_content_id(spec, content))


def check(folder: Path, recipe: DlrmRecipe) -> DataFacts:
    """Check all that ``recipe`` reads and name the content.

    Raises:
        DataError: as ``load``.
    """
    loaded = load(folder, recipe)
    best = None
    if recipe.data == "generated":
        from .generated import compute_best_auc

        best = compute_best_auc(recipe)
    rows = loaded.num_rows
    return DataFacts(
        rows["train"],
        rows["test"],
        loaded.content_id,
        LAYOUT,
        best_quality=best,
        changed_rules=loaded.spec.changed_rules,
    )


def _compute_content_id(spec: FeatureSpec, content: dict[Path, Extremes]) -> str:
    """Return a name that neither the files' own names nor their place change."""
    parts = [*map(str, (spec.num_numerical, *spec.cardinalities)), *spec.category_dtypes]
    parts += [extremes.digest for extremes in content.values()]
    return sha256(" ".join(parts).encode()).hexdigest()[:16]


def _refuse_outside(file: Path, extremes: Extremes, kind: np.dtype[Any], limit: int) -> None:
    """Refuse a label, category or number's bits below 0 or not below ``limit``."""
    if extremes.smallest >= 0 and extremes.largest < limit:
        return
    shown = f"values from {extremes.smallest} to {extremes.largest}"
    rule = f"a label, or a category of this table, is in [0, {limit})"
    if kind.shape:
        shown = f"a value is {'inf' if extremes.largest == _INFINITE else 'nan'}"
        rule = f"numbers are finite, at most {np.finfo(np.float16).max:g} in size"
    fix = f"correct the cardinality in feature_spec.yaml, or {PREPARE}"
    raise DataError(shown, where=str(file), rule=rule, fix=fix)


def check_fit(folder: Path, recipe: DlrmRecipe, world_size: int, memory: RankMemory) -> int:
    """Refuse tables and steps that the ranks' memory does not hold.

    Raises:
        EnvironmentFault: it names the smallest world that holds the tables, or the largest
            micro-batch that fits.
    """
    spec = read_spec(folder)
    placement = place_tables(memory, spec.cardinalities, recipe.embedding_dim, world_size)
    return refuse_too_little(
        lambda other: predict(other, placement, spec.num_numerical), recipe, memory
    )


@dataclass(frozen=True, slots=True, eq=False)
class RawBatch:
    """One global batch as one rank sees it.

    Args:
        numerical: this rank's slice, float16 (b_local, num_numerical); no row where the
            batch has fewer rows than ranks.
        labels: of the same rows, float32 (b_local,).
        categories: this rank's columns of the whole batch, int32 (columns, step_samples).
        step_samples: rows of the whole batch.
    """

    numerical: NDArray[np.float16]
    labels: NDArray[np.float32]
    categories: NDArray[np.int32]
    step_samples: int


class SplitReader:
    """The rows of one split in batches; ``columns`` are the tables this rank holds.

    Raises:
        DataError: files are missing, cut off or of different rows; see ``FeatureSpec``.
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
        """Yield the batches of one pass; the split's last one is short.

        Args:
            order: numbers of the batches in the order to read; None: the order of the files.

        Raises:
            DataError: a file can no longer be read as it was when the reader was made.
        """
        count = -(-self.num_rows // global_batch_size)
        numbers = range(count) if order is None else order
        assert len(numbers) == count, f"an order of {len(numbers)} for {count} batches"
        own_columns = [self.files.categories[number] for number in self.columns]
        with ExitStack() as stack:
            streams = {}
            for file in (self.files.numerical, self.files.label, *own_columns):
                with translate_read_errors(file):
                    streams[file] = stack.enter_context(file.open("rb", buffering=0)).fileno()

            def read(file: Path, first: int, end: int) -> NDArray[Any]:
                return _read_rows(file, streams[file], self.kinds[file], first, end)

            for number in numbers:
                first = int(number) * global_batch_size
                rows = min(global_batch_size, self.num_rows - first)
                # As ``train.shards`` cuts a step.
                begin, end = (first + rows * part // world_size for part in (rank, rank + 1))
                categories = np.empty((len(own_columns), rows), np.int32)
                for column, file in zip(categories, own_columns, strict=True):
                    column[:] = read(file, first, first + rows)
                labels = read(self.files.label, begin, end).astype(np.float32)
                numerical = read(self.files.numerical, begin, end)
                yield RawBatch(numerical, labels, categories, rows)


def _read_rows(file: Path, stream: int, kind: np.dtype[Any], first: int, end: int) -> NDArray[Any]:
    """Return rows of an open file, writable, (end - first,) and the shape of a row."""
    rows = np.empty((end - first) * kind.itemsize, np.uint8)
    with translate_read_errors(file):
        got = os.preadv(stream, [rows.data], first * kind.itemsize)
    if got != len(rows):
        raise DataError(
            f"it ends before row {end}",
            where=str(file),
            rule="data stays as it is while a run reads it",
            fix=AGAIN,
        )
    return rows.view(kind.base).reshape(end - first, *kind.shape)
