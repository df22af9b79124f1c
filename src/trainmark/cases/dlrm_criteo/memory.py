"""What a step of DLRM takes of a rank's memory; no torch.

Owns the estimate; ``step_memory`` refuses what does not fit. Batches themselves, row numbers
and what a library's kernels copy come on top.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from trainmark.train.step_memory import FULL, HALF, Prediction

from .placement import FLOAT_BYTES
from .recipe import layers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .placement import Placement
    from .recipe import DlrmRecipe

FEATURE_MULTIPLE = 32  # the top MLP's input is padded to it, as 26 tables of 128 give 480


def predict(recipe: DlrmRecipe, placement: Placement, num_numerical: int) -> Prediction:
    """Return what the rank that needs most holds at the peak of a step.

    Args:
        placement: of the tables on all ranks.
        num_numerical: numbers of a sample.
    """
    dim = placement.dim
    bottom, top = layers(recipe)
    bottom_widths = [num_numerical, *bottom]
    top_widths = [num_features(len(placement.cardinalities), dim), *top]
    dense = FULL * (_parameters(bottom_widths) + _parameters(top_widths))
    found = []
    for parts in placement.parts:
        moments = _moments(recipe, placement, len(parts), bottom_widths, top_widths)
        if placement.world_size > 1:  # buckets of replicas stay from step to step
            moments = ((dense, activations) for _, activations in moments)
        gradients, activations = max(moments, key=sum)
        tables = FLOAT_BYTES * dim * sum(part.rows for part in parts)
        found.append(Prediction(tables + dense, gradients, 0, activations))
    return max(found, key=lambda item: item.total)


def num_features(num_tables: int, dim: int) -> int:
    """Return the numbers of a sample that the interaction gives the top MLP."""
    numbers = dim + num_tables * (num_tables + 1) // 2
    return numbers + -numbers % FEATURE_MULTIPLE


def _moments(
    recipe: DlrmRecipe,
    placement: Placement,
    own_parts: int,
    bottom: Sequence[int],
    top: Sequence[int],
) -> Iterator[tuple[int, int]]:
    """Yield bytes of gradients and of activations at each moment that may be the peak.

    Autograd frees what a layer saved once its backward pass is done. That of the bottom MLP
    runs before the update of the rows, which stay until then with their gradient.

    Args:
        own_parts: of tables, that the rank holds.
        bottom, top: widths of the MLPs, inputs first.
    """
    number = HALF if recipe.precision in ("bf16", "fp16") else FULL  # in matmuls
    samples, dim = recipe.micro_batch_size, placement.dim
    tables = len(placement.cardinalities)
    vectors = tables + 1
    a_number = samples * number  # bytes of one number of each sample
    alone = placement.world_size == 1
    # Numbers of the rank's own columns: of the global batch.
    own = samples * placement.world_size * own_parts * dim
    rows = own * FULL
    layers_saved = rows + sum(bottom) * a_number  # by the bottom MLP
    interacting = vectors * dim * a_number
    copy = tables * dim * a_number  # of embeddings, under autocast or from other ranks
    # Autocast's copies of weights; a first layer needs no gradient of its input.
    copies = 0 if number == FULL else HALF
    of_bottom = copies * _weights(bottom[1:])
    top_gradients = FULL * _parameters(top)

    pairs = vectors * (vectors - 1) // 2
    made = vectors**2 + top[0] + pairs  # products, features, products taken once
    cast = 0 if alone and number == FULL else copy
    yield 0, layers_saved + of_bottom + cast + interacting + made * a_number
    # A ReLU's backward pass holds its result, the gradient that comes and the one it makes.
    for last in range(1, len(top) - 1):
        saved = (sum(top[: last + 1]) + 2 * top[last]) * a_number
        weights = of_bottom + copies * _weights(top[: last + 1])
        gradients = FULL * _parameters(top[last:])
        yield gradients, layers_saved + weights + interacting + saved
    if not alone:  # the embeddings stay until the top MLP returns
        saved = sum(top) * a_number + copies * _weights(top)
        yield 0, layers_saved + of_bottom + copy + interacting + saved
    # The interaction's: gradient of features, each pair's both ways, that of the vectors.
    made = top[0] + vectors**2 + dim
    yield top_gradients, layers_saved + of_bottom + 2 * interacting + made * a_number

    if not alone:
        exchanged_parts = sum(len(parts) for parts in placement.parts)
        gradient = exchanged_parts * dim * a_number + own * number  # sent, received
        sending = interacting + gradient
    elif number == FULL:
        gradient = sending = interacting
    else:
        gradient = rows
        sending = interacting + gradient
    yield top_gradients, layers_saved + of_bottom + sending + dim * a_number
    for last in range(1, len(bottom)):
        saved = (sum(bottom[: last + 1]) + 2 * bottom[last]) * a_number
        weights = copies * _weights(bottom[1 : last + 1])
        gradients = top_gradients + FULL * _parameters(bottom[last:])
        yield gradients, rows + gradient + weights + saved

    updating = _updating_bytes(recipe, alone=alone, rows=rows, interacting=interacting)
    yield top_gradients + FULL * _parameters(bottom), rows + updating


def _updating_bytes(recipe: DlrmRecipe, *, alone: bool, rows: int, interacting: int) -> int:
    """Return the bytes that an update of rows holds beside them.

    Args:
        rows: bytes of the rows.
        interacting: bytes of the vectors' gradient, which holds that of the rows.
    """
    if recipe.precision == "fp16":  # unscaled, compared with zeros of the same size
        return 4 * rows
    if recipe.precision == "bf16":
        return rows if alone else rows + rows * HALF // FULL  # as received
    if not alone:
        return rows
    return interacting + rows


def _weights(widths: Sequence[int]) -> int:
    return sum(inputs * outputs for inputs, outputs in pairwise(widths))


def _parameters(widths: Sequence[int]) -> int:
    return _weights(widths) + sum(widths[1:])
