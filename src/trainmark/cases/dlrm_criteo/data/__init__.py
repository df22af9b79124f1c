"""The click log in a data folder: the check before a run, and the load on a rank.

Owns which values are allowed, and what the content is called. The check is the load with
its findings written down, so what passed it cannot surprise a rank. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from trainmark.errors import DataError
from trainmark.spec import DataFacts
from trainmark.train.step_memory import refuse_too_little

from ..memory import predict
from ..placement import place_within
from ..recipe import table_rows
from .content import read_content
from .generated import generate
from .layout import PREPARE, FeatureSpec
from .spec_file import read_spec

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.data.cache import Extremes
    from trainmark.spec import RankMemory

    from ..recipe import DlrmRecipe

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
