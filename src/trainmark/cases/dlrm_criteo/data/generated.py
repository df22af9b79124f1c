"""Clicks from a planted factor model, whose best AUC is computed.

Every category has a factor. The log-odds of a click add up all factors, the product of the
two of each pair of tables in ``PAIRS``, and the numerical values with a weight each. A model
that adds up only, one that leaves out columns, or a wrong loss stays well below the best AUC.
Written in the real on-disk form. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from .layout import NUM_NUMERICAL, SPLITS, FeatureSpec, write_spec

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from ..case import DlrmRecipe

ROWS = {"train": 400_000, "test": 50_000}
# Categories that occur, and the distance of their numbers: two tables are large and mostly
# empty, so that every type of column is written.
OCCURRING = (50, 75, 100, 150, 200) * 5 + (100,)
STRIDES = (1,) * 24 + (400, 400)
CARDINALITIES = tuple(n * stride for n, stride in zip(OCCURRING, STRIDES, strict=True))
PAIRS = tuple((table, table + 1) for table in range(0, len(OCCURRING), 2))
EFFECT, PRODUCT = 0.3, 0.35  # what a factor and a product of two are multiplied with
WEIGHT = 0.2  # standard deviation of the weights of numerical values
BIAS = -1.2  # log-odds of the average row: about three clicks in ten
FLATNESS = 4.0  # the frequency of the n-th category falls as 1 / (n + FLATNESS)
MEAN_COUNT = 8.0  # numerical values are log(1 + count), as prepared logs hold them
_MODEL_SEED = 20_140_703  # the planted model is the same for every seed of a recipe
_DRAWS = 1 << 16  # frequencies are whole parts of it


@dataclass(frozen=True, slots=True, eq=False)
class Clicks:
    """Rows without their categories' numbers on disk; ``ranks`` index occurring categories.

    Args:
        ranks: uint16 (rows,) of each table.
        numerical: as written, float16 (rows, NUM_NUMERICAL).
        log_odds: of a click, (rows,).
        labels: bool (rows,), drawn by the log-odds.
    """

    ranks: tuple[NDArray[np.uint16], ...]
    numerical: NDArray[np.float16]
    log_odds: NDArray[np.float64]
    labels: NDArray[np.bool_]


@cache
def build_planted_model() -> tuple[tuple[NDArray[np.float64], ...], NDArray[np.float64]]:
    """Return the factors of each table's occurring categories, and the weights of numbers."""
    rng = np.random.default_rng(_MODEL_SEED)
    factors = tuple(rng.standard_normal(n) for n in OCCURRING)
    return factors, WEIGHT * rng.standard_normal(NUM_NUMERICAL)


@cache
def _build_draw_table(occurring: int) -> NDArray[np.uint16]:
    """Return a category for each of ``_DRAWS`` equal chances, Zipf-like."""
    falling = 1.0 / (np.arange(occurring) + FLATNESS)
    bounds = np.rint(np.cumsum(falling / falling.sum()) * _DRAWS).astype(np.int64)
    return np.repeat(np.arange(occurring, dtype=np.uint16), np.diff(bounds, prepend=0))


def draw_clicks(split: str, seed: int) -> Clicks:
    """Return the rows of a split, the same for the same seed."""
    (factors, weights), rows = build_planted_model(), ROWS[split]
    rng = np.random.default_rng([seed, SPLITS.index(split)])
    counts = rng.standard_exponential((rows, NUM_NUMERICAL), np.float32) * np.float32(MEAN_COUNT)
    numerical = np.log1p(np.floor(counts)).astype(np.float16)
    ranks = tuple(
        _build_draw_table(n)[rng.integers(_DRAWS, size=rows, dtype=np.uint16)] for n in OCCURRING
    )
    log_odds = BIAS + (numerical.astype(np.float32) - np.float32(np.log(MEAN_COUNT))) @ weights
    for rank, factor in zip(ranks, factors, strict=True):
        log_odds += (EFFECT * factor)[rank]
    for first, other in PAIRS:
        log_odds += PRODUCT * factors[first][ranks[first]] * factors[other][ranks[other]]
    return Clicks(
        ranks, numerical, log_odds, rng.random(rows) < _compute_click_probability(log_odds)
    )


def _compute_click_probability(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1.0 / (1.0 + np.exp(-log_odds)))


def compute_best_auc(recipe: DlrmRecipe) -> float:
    """Return the AUC that the true log-odds have on the recipe's test rows.

    It is the expectation over the labels of just these rows, computed without drawing: the
    expected number of pairs of a click and a miss in the right order over that of all such
    pairs. On the labels that were drawn the true log-odds score 0.002 more or less.
    """
    return _compute_best_auc(recipe.seed)


@cache
def _compute_best_auc(seed: int) -> float:
    return compute_expected_auc(draw_clicks("test", seed).log_odds)


def compute_expected_auc(log_odds: NDArray[np.float64]) -> float:
    """Return the AUC of ``log_odds`` for labels drawn by them, ties counted half."""
    values, which = np.unique(log_odds, return_inverse=True)
    chance = _compute_click_probability(values)
    rows = np.bincount(which)
    clicked, missed = rows * chance, rows * (1 - chance)
    below = np.cumsum(missed) - missed
    alone = chance * (1 - chance)  # a row makes no pair with itself
    right = clicked @ below + (clicked @ missed - rows @ alone) / 2
    return float(right / (clicked.sum() * missed.sum() - rows @ alone))


def generate(folder: Path, recipe: DlrmRecipe) -> None:
    """Write both splits and their description."""
    spec = FeatureSpec.create(folder, CARDINALITIES)
    for split, files in spec.files.items():
        made = draw_clicks(split, recipe.seed)
        files.label.parent.mkdir()
        made.labels.tofile(files.label)
        made.numerical.astype("<f2").tofile(files.numerical)
        columns = zip(files.categories, spec.category_dtypes, made.ranks, STRIDES, strict=True)
        for file, dtype, ranks, stride in columns:
            numbers = (np.arange(ranks.max() + 1) * stride).astype(
                np.dtype(dtype).newbyteorder("<")
            )
            numbers[ranks].tofile(file)
    write_spec(folder, CARDINALITIES)
