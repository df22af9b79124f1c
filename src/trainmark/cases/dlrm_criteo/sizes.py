"""Compute parameters and FLOPs from a recipe and the columns of the data in a record."""

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
    """Return the expected facts and the FLOPs formula for ``recipe`` and the job's facts."""
    num_numerical, tables = facts.get("numerical_features"), facts.get("tables")
    if num_numerical is None or tables is None:
        return Sizes({})
    dim = recipe.embedding_dim
    bottom, top = parse_layer_widths(recipe)
    features = count_features(tables, dim)
    widths = [*pairwise([num_numerical, *bottom]), *pairwise([features, *top])]
    weights = sum(into * out for into, out in widths)
    dense = weights + sum(out for _, out in widths)
    rows = sum(rank["rows"] for rank in facts["placement"])
    padding = (features - dim - tables * (tables + 1) // 2) * top[0]
    products = (tables + 1) ** 2 * dim
    flops_per_sample = 6 * (weights - padding + products) - 2 * num_numerical * bottom[0]

    def compute_flops(counts: Counts) -> float:
        return float(flops_per_sample * counts.samples)

    expected = {
        "dense_parameters": dense,
        "parameters": dense + rows * dim,
        "trainable_parameters": dense + rows * dim,
        "embedding_bytes_per_sample": 4 * tables * dim * FLOAT_BYTES,
    }
    return Sizes(expected, compute_flops)
