"""Generate clicks from a planted factor model whose best AUC can be computed.

Every category has a factor. The log-odds of a click are the sum of all factors, the products of the
two factors of each pair of tables in ``PAIRS``, and the weighted numerical values. A model without
products, one that ignores columns, or a wrong loss stays well below the best AUC. The files have
the on-disk form of real data. No torch.
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
# Number of occurring categories, and the distance of their ids: two tables are large and sparse, so
# that every element type of columns is used.
OCCURRING = (50, 75, 100, 150, 200) * 5 + (100,)
STRIDES = (1,) * 24 + (400, 400)
CARDINALITIES = tuple(n * stride for n, stride in zip(OCCURRING, STRIDES, strict=True))
PAIRS = tuple((table, table + 1) for table in range(0, len(OCCURRING), 2))
EFFECT, PRODUCT = 0.3, 0.35  # weights of a factor and of a product of two factors
WEIGHT = 0.2  # standard deviation of the weights of numerical values
BIAS = -1.2  # log-odds of the average row: about 30% of the rows are clicks
FLATNESS = 4.0  # the frequency of the n-th category falls as 1 / (n + FLATNESS)
MEAN_COUNT = 8.0  # numerical values are log(1 + count), as prepared logs hold them
_MODEL_SEED = 20_140_703  # the planted model is the same for every seed of a recipe
_DRAWS = 1 << 16  # frequencies are multiples of 1 / _DRAWS


@dataclass(frozen=True, slots=True, eq=False)
class Clicks:
    """The rows of a split.

    Args:
        ranks: for each table, the row's category by frequency, 0 is the most frequent one, uint16
            (rows,); ``STRIDES`` turns it into the id on disk.
        numerical: as on disk, float16 (rows, NUM_NUMERICAL).
        log_odds: of a click (rows,).
        labels: drawn with the log-odds, bool (rows,).
    """

    ranks: tuple[NDArray[np.uint16], ...]
    numerical: NDArray[np.float16]
    log_odds: NDArray[np.float64]
    labels: NDArray[np.bool_]


@cache
def build_planted_model() -> tuple[tuple[NDArray[np.float64], ...], NDArray[np.float64]]:
    """Return the factors of each table's categories, and the weights of numerical values."""
    rng = np.random.default_rng(_MODEL_SEED)
    factors = tuple(rng.standard_normal(n) for n in OCCURRING)
    return factors, WEIGHT * rng.standard_normal(NUM_NUMERICAL)


@cache
def _build_draw_table(occurring: int) -> NDArray[np.uint16]:
    """Return ``_DRAWS`` categories; a uniform draw from them is a Zipf-like draw of a category."""
    frequencies = 1.0 / (np.arange(occurring) + FLATNESS)
    bounds = np.rint(np.cumsum(frequencies / frequencies.sum()) * _DRAWS).astype(np.int64)
    return np.repeat(np.arange(occurring, dtype=np.uint16), np.diff(bounds, prepend=0))


def draw_clicks(split: str, seed: int) -> Clicks:
    """Draw the rows of a split; equal seeds give equal rows."""
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
    """Return the expected AUC of the true log-odds on the recipe's test rows.

    The expectation is over the labels of these rows: the expected number of pairs of a click and a
    miss in the right order, divided by the expected number of all such pairs. With the labels that
    were drawn, the AUC of the true log-odds differs by about 0.002.
    """
    return _compute_best_auc(recipe.seed)


@cache
def _compute_best_auc(seed: int) -> float:
    return compute_expected_auc(draw_clicks("test", seed).log_odds)


def compute_expected_auc(log_odds: NDArray[np.float64]) -> float:
    """Return the expected AUC of ``log_odds`` if they draw the labels; ties count half."""
    values, value_numbers = np.unique(log_odds, return_inverse=True)
    probabilities = _compute_click_probability(values)
    rows = np.bincount(value_numbers)  # number of rows with each value
    clicks, misses = rows * probabilities, rows * (1 - probabilities)  # expected numbers
    misses_below = np.cumsum(misses) - misses
    self_pairs = rows @ (probabilities * (1 - probabilities))  # a row is no pair with itself
    right_pairs = clicks @ misses_below + (clicks @ misses - self_pairs) / 2
    return float(right_pairs / (clicks.sum() * misses.sum() - self_pairs))


def generate(folder: Path, recipe: DlrmRecipe) -> None:
    """Write both splits and ``feature_spec.yaml``."""
    spec = FeatureSpec.create(folder, CARDINALITIES)
    for split, files in spec.files.items():
        clicks = draw_clicks(split, recipe.seed)
        files.label.parent.mkdir()
        clicks.labels.tofile(files.label)
        clicks.numerical.astype("<f2").tofile(files.numerical)
        columns = zip(files.categories, spec.category_dtypes, clicks.ranks, STRIDES, strict=True)
        for file, dtype, ranks, stride in columns:
            ids = (np.arange(ranks.max() + 1) * stride).astype(np.dtype(dtype).newbyteorder("<"))
            ids[ranks].tofile(file)
    write_spec(folder, CARDINALITIES)
