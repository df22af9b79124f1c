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
# For each table, the number of categories that occur, and the distance between their ids. Two
# tables are large and sparse, so that every element type of columns is used.
NUM_OCCURRING = (50, 75, 100, 150, 200) * 5 + (100,)
STRIDES = (1,) * 24 + (400, 400)
CARDINALITIES = tuple(
    number * stride for number, stride in zip(NUM_OCCURRING, STRIDES, strict=True)
)
PAIRS = tuple((table, table + 1) for table in range(0, len(NUM_OCCURRING), 2))
FACTOR_WEIGHT = 0.3  # of a category's factor in the log-odds
PRODUCT_WEIGHT = 0.35  # of the product of a pair's factors
NUMERICAL_WEIGHT_STD = 0.2  # standard deviation of the weights of numerical values
BIAS = -1.2  # log-odds of the average row: about 30% of the rows are clicks
FLATNESS = 4.0  # the frequency of the n-th category falls as 1 / (n + FLATNESS)
MEAN_COUNT = 8.0  # numerical values are log(1 + count), as prepared logs hold them
_MODEL_SEED = 20_140_703  # the planted model is the same for every seed of a recipe
_DRAW_TABLE_SIZE = 1 << 16  # frequencies are multiples of 1 / _DRAW_TABLE_SIZE


@dataclass(frozen=True, slots=True, eq=False)
class DrawnRows:
    """The rows of a split.

    Args:
        categories: for each table, the category of each row, numbered by frequency: 0 is the most
            frequent one, uint16 (rows,). The id on disk is this number times ``STRIDES``.
        numerical: as on disk, float16 (rows, NUM_NUMERICAL).
        log_odds: of a click (rows,).
        labels: drawn with the log-odds, bool (rows,).
    """

    categories: tuple[NDArray[np.uint16], ...]
    numerical: NDArray[np.float16]
    log_odds: NDArray[np.float64]
    labels: NDArray[np.bool_]


@cache
def build_planted_model() -> tuple[tuple[NDArray[np.float64], ...], NDArray[np.float64]]:
    """Return the known model from which labels are drawn, so that the best AUC can be computed.

    It is the same for every seed of a recipe.

    Returns:
        For each table, the factor of each category that occurs, float64 (categories,); and the
        weight of each numerical value, float64 (NUM_NUMERICAL,). The log-odds of a click are
        computed from both.
    """
    rng = np.random.default_rng(_MODEL_SEED)
    factors = tuple(rng.standard_normal(num_categories) for num_categories in NUM_OCCURRING)
    numerical_weights = NUMERICAL_WEIGHT_STD * rng.standard_normal(NUM_NUMERICAL)
    return factors, numerical_weights


@cache
def _build_draw_table(num_categories: int) -> NDArray[np.uint16]:
    """Return ``_DRAW_TABLE_SIZE`` categories, in which frequent ones are repeated more often.

    So a uniform draw of an index is a draw of a category by its frequency, which falls with the
    category's number as 1 / (number + ``FLATNESS``), as in Zipf's law.
    """
    frequencies = 1.0 / (np.arange(num_categories) + FLATNESS)
    # Index in the array at which the repetitions of each category end.
    ends = np.rint(np.cumsum(frequencies / frequencies.sum()) * _DRAW_TABLE_SIZE).astype(np.int64)
    repetitions = np.diff(ends, prepend=0)  # of each category
    return np.repeat(np.arange(num_categories, dtype=np.uint16), repetitions)


def draw_rows(split: str, seed: int) -> DrawnRows:
    """Draw the rows of a split; equal seeds give equal rows.

    Each category of a table has a factor, a fixed random number. The log-odds of a click are the
    sum of ``BIAS``, the weighted numerical values, the weighted factor of each category, and the
    weighted product of the two factors of each pair of tables in ``PAIRS``.
    """
    factors, numerical_weights = build_planted_model()
    num_rows = ROWS[split]
    # The split's position is part of the seed, so that the splits differ.
    rng = np.random.default_rng([seed, SPLITS.index(split)])
    counts = rng.standard_exponential((num_rows, NUM_NUMERICAL), np.float32)
    counts *= np.float32(MEAN_COUNT)
    # The logarithm of counts, as prepared Criteo logs hold them.
    numerical = np.log1p(np.floor(counts)).astype(np.float16)
    # A uniform index in the table of repeated categories draws each by its frequency.
    categories = tuple(
        _build_draw_table(num_categories)[
            rng.integers(_DRAW_TABLE_SIZE, size=num_rows, dtype=np.uint16)
        ]
        for num_categories in NUM_OCCURRING
    )
    # Roughly the mean is subtracted, so that ``BIAS`` is the log-odds of an average row.
    centered = numerical.astype(np.float32) - np.float32(np.log(MEAN_COUNT))
    log_odds = BIAS + centered @ numerical_weights
    for table_categories, table_factors in zip(categories, factors, strict=True):
        log_odds += (FACTOR_WEIGHT * table_factors)[table_categories]
    for first, second in PAIRS:
        first_factors = factors[first][categories[first]]  # of each row
        second_factors = factors[second][categories[second]]
        log_odds += PRODUCT_WEIGHT * first_factors * second_factors
    labels = rng.random(num_rows) < _compute_click_probability(log_odds)
    return DrawnRows(categories, numerical, log_odds, labels)


def _compute_click_probability(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1.0 / (1.0 + np.exp(-log_odds)))


def compute_best_auc(recipe: DlrmRecipe) -> float:
    """Return the expected AUC of a model that knows the true log-odds of the recipe's test rows.

    No other scores have a higher expected AUC, because labels are drawn with these log-odds. The
    result is the mean over all labels that could be drawn. With the labels that were drawn, the AUC
    of the true log-odds differs from it by about 0.002.
    """
    return _compute_best_auc(recipe.seed)


@cache
def _compute_best_auc(seed: int) -> float:
    """Return ``compute_best_auc`` of a recipe with this seed.

    The result is cached by the seed, because the test rows depend on no other field of the recipe.
    """
    return compute_expected_auc(draw_rows("test", seed).log_odds)


def compute_expected_auc(log_odds: NDArray[np.float64]) -> float:
    """Return the expected AUC if rows are scored by the log-odds with which labels are drawn.

    A row is a click (label 1) or a miss (label 0). A pair is a click and a miss; it is right if the
    click has the higher log-odds, and half right if both are equal. The result is the expected
    number of right pairs, divided by the expected number of all pairs. Rows with equal log-odds
    are counted together.
    """
    values, value_of_row = np.unique(log_odds, return_inverse=True)
    probabilities = _compute_click_probability(values)
    num_rows = np.bincount(value_of_row)  # with each value
    # Expected numbers of rows with each value.
    clicks = num_rows * probabilities
    misses = num_rows * (1 - probabilities)
    misses_below = np.cumsum(misses) - misses
    # The products below count each row as a pair with itself, which it is not.
    self_pairs = num_rows @ (probabilities * (1 - probabilities))
    tied_pairs = clicks @ misses - self_pairs
    right_pairs = clicks @ misses_below + tied_pairs / 2
    all_pairs = clicks.sum() * misses.sum() - self_pairs
    return float(right_pairs / all_pairs)


def generate(folder: Path, recipe: DlrmRecipe) -> None:
    """Write the splits ``train`` and ``test``, and ``feature_spec.yaml``, into ``folder``."""
    spec = FeatureSpec.create(folder, CARDINALITIES)
    for split, files in spec.files.items():
        rows = draw_rows(split, recipe.seed)
        files.label.parent.mkdir()
        rows.labels.tofile(files.label)
        rows.numerical.astype("<f2").tofile(files.numerical)
        columns = zip(files.categories, spec.category_dtypes, rows.categories, STRIDES, strict=True)
        for file, dtype, categories, stride in columns:
            # The id of each category: only every ``stride``-th id of a table occurs. So a few
            # categories make a large table, whose column has a wider type.
            ids = np.arange(categories.max() + 1) * stride
            little_endian_ids = ids.astype(np.dtype(dtype).newbyteorder("<"))
            little_endian_ids[categories].tofile(file)
    write_spec(folder, CARDINALITIES)
