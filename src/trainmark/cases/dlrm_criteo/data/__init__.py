"""The click log in a data folder: the check before a run, and the load on a rank.

Owns which values are allowed, and what the content is called. The check is the load with
its findings written down, so what passed it cannot surprise a rank. No torch.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.cache import Extremes, cached_scan, extremes
from trainmark.errors import DataError
from trainmark.spec import DataFacts
from trainmark.train.step_memory import refuse_too_little

from ..case import table_rows
from ..placement import place_within, predict
from .generated import generate
from .layout import CATEGORY_BYTES, PREPARE, FeatureSpec, readable
from .spec_file import read_spec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from trainmark.data.cache import Extremes
    from trainmark.spec import RankMemory

    from ..case import DlrmRecipe
    from .layout import FeatureSpec

CACHE_FILE = "content.json"  # in the data folder
BLOCK_BYTES = 1 << 22
_SIZE_BITS = 0x7FFF  # of a float16: all but the sign; larger numbers have larger bits
_MOST_THREADS = 8


def read_content(folder: Path, spec: FeatureSpec) -> dict[Path, Extremes]:
    """Return the extremes of every file that ``spec`` names; none of them is empty.

    Labels and categories are compared as they are; of float16 the bits without the sign,
    which order as the sizes of the numbers do, infinity and nan last. A large log takes
    minutes; see ``cached_scan``.

    Raises:
        DataError: a file cannot be read.
    """
    kinds = _kinds(spec)
    names = {f"{file.relative_to(folder).as_posix()} {kinds[file].str}": file for file in kinds}

    def scan() -> dict[str, Extremes]:
        threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(threads, "dlrm-check") as pool:
            found = list(pool.map(_scan, kinds, kinds.values()))
        return dict(zip(names, found, strict=True))

    for file in kinds:
        with readable(file):
            file.stat()
    found = cached_scan(folder / CACHE_FILE, names, scan)
    return {file: found[name] for name, file in names.items()}


def _kinds(spec: FeatureSpec) -> dict[Path, np.dtype[Any]]:
    """Return the element type of every file."""
    label, numerical = np.dtype("u1"), np.dtype("<f2")
    columns = [np.dtype(f"<i{CATEGORY_BYTES[dtype]}") for dtype in spec.category_dtypes]
    kinds: dict[Path, np.dtype[Any]] = {}
    for files in spec.files.values():
        kinds |= {files.label: label, files.numerical: numerical}
        kinds |= zip(files.categories, columns, strict=True)
    return kinds


def _scan(file: Path, kind: np.dtype[Any]) -> Extremes:
    """Read a file once, in blocks."""

    def blocks() -> Iterator[NDArray[Any]]:
        with readable(file), file.open("rb") as stream:
            while block := stream.read(BLOCK_BYTES):
                yield np.frombuffer(block, kind)

    return extremes(blocks(), comparable=_comparable)


def _comparable(values: NDArray[Any]) -> NDArray[Any]:
    return values.view("<u2") & _SIZE_BITS if values.dtype.kind == "f" else values


__all__ = ["check", "check_fit", "generate", "load"]  # what the core and the job call
LAYOUT = "criteo-split-binary"
_INFINITE = 0x7C00  # bits of float16 infinity; those of nan are larger


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a rank reads from; see ``reader.SplitReader``.

    Args:
        num_rows: by split.
        content_id: from every file's bytes and the tables' sizes.
    """

    spec: FeatureSpec
    num_rows: dict[str, int]
    content_id: str


def load(folder: Path, recipe: DlrmRecipe) -> Loaded:
    """Return what the folder holds, every value found in its range; rows stay on disk.

    Raises:
        DataError: the first fault found, with file, row, rule and way out.
    """
    del recipe  # every recipe reads the same
    spec = read_spec(folder)
    rows = {split: spec.num_rows(split) for split in spec.files}
    content = read_content(folder, spec)
    for files in spec.files.values():
        _refuse_labels(files.label, content[files.label])
        _refuse_numerical(files.numerical, content[files.numerical], spec.num_numerical)
        for file, cardinality in zip(files.categories, spec.cardinalities, strict=True):
            _refuse_categories(file, content[file], cardinality)
    test = spec.files["test"].label
    if content[test].smallest == content[test].largest:
        raise DataError(
            f"all labels are {content[test].largest}", where=str(test),
            rule="an AUC needs rows of both labels in the test split",
            remedy=f"{PREPARE} from more rows",
        )  # fmt: skip
    return Loaded(spec, rows, _content_id(spec, content))


def check(folder: Path, recipe: DlrmRecipe) -> DataFacts:
    """Check all that ``recipe`` reads and name the content.

    Raises:
        DataError: as ``load``.
    """
    loaded = load(folder, recipe)
    best = None
    if recipe.data == "generated":
        from .generated import best_auc

        best = best_auc(recipe)
    rows = loaded.num_rows
    return DataFacts(
        rows["train"], rows["test"], loaded.content_id, LAYOUT, best_quality=best,
        changed_rules=loaded.spec.changed_rules,
    )  # fmt: skip


def _content_id(spec: FeatureSpec, content: dict[Path, Extremes]) -> str:
    """Return a name that neither the files' own names nor their place change."""
    parts = [*map(str, (spec.num_numerical, *spec.cardinalities)), *spec.category_dtypes]
    parts += [found.digest for found in content.values()]
    return sha256(" ".join(parts).encode()).hexdigest()[:16]


def _refuse_labels(file: Path, found: Extremes) -> None:
    if found.largest > 1:
        raise DataError(
            f"label {found.largest}", where=f"{file}, row {found.largest_at} (counted from 0)",
            rule="a label is one byte, 0 or 1", remedy=PREPARE,
        )  # fmt: skip


def _refuse_numerical(file: Path, found: Extremes, num_numerical: int) -> None:
    if found.largest >= _INFINITE:
        row, column = divmod(found.largest_at, num_numerical)
        raise DataError(
            f"value {'inf' if found.largest == _INFINITE else 'nan'}",
            where=f"{file}, row {row}, column {column} (both counted from 0)",
            rule=f"numerical values are finite, at most {np.finfo(np.float16).max:g} in size",
            remedy=f"scale them, log(1 + x) for instance, or {PREPARE}",
        )


def _refuse_categories(file: Path, found: Extremes, cardinality: int) -> None:
    """Refuse categories outside the table, naming the worst."""
    for value, at in (
        (found.smallest, found.smallest_at), (found.largest, found.largest_at),
    ):  # fmt: skip
        if not 0 <= value < cardinality:
            raise DataError(
                f"category {value}", where=f"{file}, row {at} (counted from 0)",
                rule=f"a category of this table lies in [0, {cardinality}), its cardinality "
                "in feature_spec.yaml",
                remedy=f"correct the cardinality, or {PREPARE}",
            )  # fmt: skip


def check_fit(folder: Path, recipe: DlrmRecipe, world_size: int, memory: RankMemory) -> None:
    """Refuse tables and steps that the ranks' memory does not hold.

    Raises:
        EnvironmentFault: it names the smallest world that holds the tables, or the largest
            micro-batch that fits.
    """
    spec = read_spec(folder)
    rows = table_rows(spec.cardinalities, recipe)
    placement = place_within(memory, rows, recipe.embedding_dim, world_size)
    refuse_too_little(lambda other: predict(other, placement, spec.num_numerical), recipe, memory)
