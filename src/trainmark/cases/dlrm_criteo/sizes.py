"""Compute parameters and FLOPs from a recipe and the columns of the data in a record.

Records are checked against them, also without the events of the run.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trainmark.spec import Sizes

from .case import parse_layer_widths
from .placement import FLOAT_BYTES, count_features

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.protocols import Counts

    from .case import DlrmRecipe


def find_sizes(recipe: DlrmRecipe, facts: Mapping[str, Any]) -> Sizes:
    """Return the facts that the job must report, and the formula of the model FLOPs.

    Args:
        facts: what the job reported. Sizes depend on its numbers of numerical values and of
            embedding tables, and on the rows of these tables that each rank holds.
    """
    num_numerical = facts.get("numerical_features")
    num_tables = facts.get("tables")
    if num_numerical is None or num_tables is None:
        return Sizes({})  # without the job's facts, nothing can be expected
    dim = recipe.embedding_dim
    bottom, top = parse_layer_widths(recipe)
    num_features = count_features(num_tables, dim)
    # Inputs and outputs of each linear layer of the bottom MLP and of the top MLP.
    layers = [*pairwise([num_numerical, *bottom]), *pairwise([num_features, *top])]
    weights = sum(inputs * outputs for inputs, outputs in layers)
    biases = sum(outputs for _, outputs in layers)
    # Rows of all embedding tables: every row is on one rank.
    rows = sum(rank["rows"] for rank in facts["placement"])
    parameters = weights + biases + rows * dim
    # FLOPs: 6 for each weight, and 6 for each multiplication of two numbers in the interaction, but
    # 4 for a weight of the first layer, whose input needs no gradient. Padding does not count.
    num_vectors = num_tables + 1  # an embedding of each table, and the output of the bottom MLP
    num_pairs = num_tables * (num_tables + 1) // 2  # of different vectors
    # The features are the output of the bottom MLP (``dim``), the dot product of each pair, and the
    # padding.
    padding_weights = (num_features - dim - num_pairs) * top[0]
    # The interaction computes the dot products of every vector with every vector.
    multiplications = num_vectors**2 * dim
    first_layer_weights = num_numerical * bottom[0]
    flops_per_sample = 6 * (weights - padding_weights + multiplications) - 2 * first_layer_weights

    def compute_flops(counts: Counts) -> float:
        return float(flops_per_sample * counts.samples)

    expected = {
        "dense_parameters": weights + biases,
        "parameters": parameters,
        "trainable_parameters": parameters,
        # A look-up reads a row of each table. The update reads the row's gradient and the row, and
        # writes the row. All four have the same size.
        "embedding_bytes_per_sample": 4 * num_tables * dim * FLOAT_BYTES,
    }
    return Sizes(expected, compute_flops)
