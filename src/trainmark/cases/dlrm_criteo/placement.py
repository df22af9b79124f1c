"""Place the rows of embedding tables on ranks, and predict the memory of a step.

Every row has exactly one owner. A part is the rows of a table that a rank holds: usually all rows;
a table that fits on no rank is cut into parts of several ranks. Look-ups are spread as evenly as
whole tables allow, and each rank stays within its memory budget. No torch, because the plan of a
run uses this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from trainmark.errors import EnvironmentFault
from trainmark.train.step_memory import FP32_BYTES, HALF_BYTES, Prediction

from .case import parse_layer_widths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.spec import RankMemory

    from .case import DlrmRecipe

FLOAT_BYTES = 4  # tables are fp32 in memory for every precision of the step
GIB = 2**30
TABLES_SHARE = 0.8  # of a rank's memory; the rest is for activations and their gradients


@dataclass(frozen=True, slots=True)
class TablePart:
    """Rows ``first_row`` to ``first_row + rows`` of ``table``; usually the whole table."""

    table: int
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The parts of each rank, in the order of their tables.

    A rank holds at most one part of a table.

    Args:
        cardinalities: number of rows of each table.
        dim: width of a row.
        parts: of each rank.
    """

    cardinalities: tuple[int, ...]
    dim: int
    parts: tuple[tuple[TablePart, ...], ...]

    @property
    def world_size(self) -> int:
        """Number of ranks that the tables are placed on."""
        return len(self.parts)

    def list_tables(self, rank: int) -> tuple[int, ...]:
        """Return the tables whose ids ``rank`` reads, one for each of its parts."""
        return tuple(part.table for part in self.parts[rank])

    def is_cut(self, part: TablePart) -> bool:
        """Return whether other ranks hold further rows of the part's table."""
        return part.rows < self.cardinalities[part.table]

    def describe(self) -> list[dict[str, object]]:
        """Return the tables of each rank, their rows and GiB, and its share of all look-ups."""
        # Of a sample, on all ranks: one row of each part is looked up.
        num_lookups = sum(len(parts) for parts in self.parts)
        descriptions: list[dict[str, object]] = []
        for rank, parts in enumerate(self.parts):
            rows = sum(part.rows for part in parts)
            tables = " ".join(self._format_part(part) for part in parts)
            descriptions.append(
                {
                    "rank": rank,
                    "tables": tables or "-",
                    "rows": rows,
                    "gib": self.dim * FLOAT_BYTES * rows / GIB,
                    "lookups_share": len(parts) / num_lookups,
                }
            )
        return descriptions

    def _format_part(self, part: TablePart) -> str:
        """Return the number of the part's table, with the range of rows if the table is cut."""
        if not self.is_cut(part):
            return str(part.table)
        return f"{part.table}[{part.first_row}:{part.first_row + part.rows}]"


def place_tables(
    memory: RankMemory, cardinalities: Sequence[int], dim: int, world_size: int
) -> Placement:
    """Place tables of ``cardinalities`` rows of ``dim`` numbers on ``world_size`` ranks.

    Tables are placed by size, the largest first. Of the ranks on which a table fits, it goes to the
    one with the fewest parts and, among those, the most free memory. A rank looks up one row of
    each of its parts for every sample, which takes the same time in a large table as in a small
    one. So the numbers of parts are balanced, and memory only has to suffice. A table that does not
    fit on any rank is cut by rows over as few ranks as possible.

    Args:
        memory: of each rank; tables may take ``TABLES_SHARE`` of it.
        cardinalities: number of rows of each table.

    Raises:
        EnvironmentFault: the tables do not fit; the fix names the smallest number of ranks.
    """
    _refuse_large_tables(memory, cardinalities, dim, world_size)
    row_budget = _count_rows_that_fit(memory.rank_bytes, dim)
    free_rows = [row_budget] * world_size
    parts: list[list[TablePart]] = [[] for _ in range(world_size)]
    # The last element of the two sort keys breaks ties, so that the placement is unique: every rank
    # computes it by itself.
    largest_first = sorted(range(len(cardinalities)), key=lambda t: (-cardinalities[t], t))
    for table in largest_first:
        rows = cardinalities[table]
        ranks = sorted(range(world_size), key=lambda r: (len(parts[r]), -free_rows[r], r))
        fitting_ranks = [rank for rank in ranks if free_rows[rank] >= rows]
        rows_of_ranks = [(fitting_ranks[0], rows)] if fitting_ranks else _cut_table(rows, free_rows)
        first_row = 0
        for rank, num_rows in rows_of_ranks:
            parts[rank].append(TablePart(table, first_row, num_rows))
            free_rows[rank] -= num_rows
            first_row += num_rows
    # A placement has the parts of each rank in the order of their tables.
    ordered_parts = (tuple(sorted(rank_parts, key=lambda part: part.table)) for rank_parts in parts)
    return Placement(tuple(cardinalities), dim, tuple(ordered_parts))


def _count_rows_that_fit(memory_bytes: int, dim: int) -> int:
    """Return how many rows of tables fit in the share of memory that tables may take."""
    return int(TABLES_SHARE * memory_bytes) // (dim * FLOAT_BYTES)


def _refuse_large_tables(
    memory: RankMemory, cardinalities: Sequence[int], dim: int, world_size: int
) -> None:
    """Raise EnvironmentFault if the tables do not fit on the ranks.

    Comparing the numbers of all rows is enough, because any table may be cut at any row.
    """
    row_bytes = dim * FLOAT_BYTES
    rows = sum(cardinalities)
    row_budget = _count_rows_that_fit(memory.rank_bytes, dim)  # of each rank
    if rows <= row_budget * world_size:
        return
    # The fix names how many of this unit the tables need; ``unit_bytes`` is the memory of one.
    unit = "ranks"
    unit_bytes = memory.rank_bytes
    # Not None: the ranks of a machine share its memory, so only more machines add memory.
    if memory.machine_bytes is not None:
        unit = "machines like this one, whose ranks share its memory"
        unit_bytes = memory.machine_bytes
    rows_per_unit = max(1, _count_rows_that_fit(unit_bytes, dim))  # 1: avoid a division by 0
    needed_units = -(-rows // rows_per_unit)  # rounded up
    ranks = f"{world_size} rank" if world_size == 1 else f"{world_size} ranks"
    raise EnvironmentFault(
        f"{rows * row_bytes / GIB:,.2f} GiB of tables do not fit into the memory of {ranks}",
        where=f"{rows:,} rows x {dim} in fp32, {len(cardinalities)} table(s)",
        rule=f"the tables of each rank must fit in {row_budget * row_bytes / GIB:,.2f} GiB",
        fix=f"use at least {needed_units:,} {unit}, lower embedding_dim, or "
        "prepare the data with a higher frequency_threshold",
    )


def _cut_table(rows: int, free_rows: Sequence[int]) -> list[tuple[int, int]]:
    """Cut a table over the fewest ranks, as evenly as they have room.

    Args:
        rows: number of rows of the table.
        free_rows: number of rows for which each rank has memory.

    Returns:
        Each rank and its number of rows, by rank.
    """
    roomiest_first = sorted(range(len(free_rows)), key=lambda rank: (-free_rows[rank], rank))
    ranks: list[int] = []
    # All ranks together have room: ``place_tables`` has refused tables that do not fit.
    while sum(free_rows[rank] for rank in ranks) < rows:
        ranks.append(roomiest_first[len(ranks)])
    rows_of_ranks: list[tuple[int, int]] = []
    remaining_rows = rows
    remaining_ranks = len(ranks)
    # The rank with the least room comes first: rows that do not fit there go to the others.
    for rank in reversed(ranks):
        even_share = -(-remaining_rows // remaining_ranks)  # rounded up
        num_rows = min(free_rows[rank], even_share)
        rows_of_ranks.append((rank, num_rows))
        remaining_rows -= num_rows
        remaining_ranks -= 1
    return sorted(rows_of_ranks)


FEATURE_MULTIPLE = 32  # the top MLP's input is padded to this multiple: 26 tables of 128 give 480


def predict(recipe: DlrmRecipe, placement: Placement, num_numerical: int) -> Prediction:
    """Return the predicted peak memory in a step, of the rank that needs most.

    The peak is at the end of the forward pass, in the interaction's backward pass, or where rows
    are updated.

    Args:
        placement: of the tables on all ranks.
        num_numerical: number of numerical values of a sample.
    """
    predictions = [
        _predict_rank(recipe, placement, rank, num_numerical)
        for rank in range(placement.world_size)
    ]
    return max(predictions, key=lambda prediction: prediction.reserved)


def _predict_rank(
    recipe: DlrmRecipe, placement: Placement, rank: int, num_numerical: int
) -> Prediction:
    """Return the predicted peak memory of one rank in a step.

    Args:
        placement: of the tables on all ranks.
        num_numerical: number of numerical values of a sample.
    """
    dim = placement.dim
    parts = placement.parts[rank]
    has_several_ranks = placement.world_size > 1
    # Bytes of a number in matmuls, and in an exchange between ranks.
    number_bytes = HALF_BYTES if recipe.precision in ("bf16", "fp16") else FP32_BYTES
    # Width of the input and of each layer's output.
    bottom, top = parse_layer_widths(recipe)
    bottom_widths = [num_numerical, *bottom]
    top_widths = [count_features(len(placement.cardinalities), dim), *top]
    layers = [*pairwise(bottom_widths), *pairwise(top_widths)]
    # Weights and biases of all layers; their gradients take the same memory.
    dense_bytes = FP32_BYTES * sum((inputs + 1) * outputs for inputs, outputs in layers)
    rows_held = sum(part.rows for part in parts)
    # The next sizes, up to ``peak_bytes``, are for one sample of this rank. First the rows that the
    # rank looks up, which it does for the samples of all ranks.
    row_bytes = placement.world_size * len(parts) * dim * FP32_BYTES
    # Tensors of this size in ``FusedTables.update``, when the rows themselves are freed already:
    # their gradient and the scaled gradient. fp16 selects between the scaled gradient and zeros:
    # these zeros and the result are two more.
    update_tensors = 4 if recipe.precision == "fp16" else 2
    peak_bytes = max(
        _predict_dense_peak(placement, bottom_widths, top_widths, number_bytes),
        update_tensors * row_bytes,
    )
    # Freed memory that the allocator keeps in addition to that peak: of the looked-up rows, which
    # are freed when the forward pass ends, and of tensors that were sent. With torch 2.13 it keeps
    # received tensors too, with 2.15 it does not. They are left out, and the others are counted
    # wherever the peak is: estimates are then within 10% of what the allocator reserved with either
    # version.
    cached = recipe.micro_batch_size * row_bytes
    if has_several_ranks:
        cached += recipe.micro_batch_size * row_bytes * number_bytes // FP32_BYTES
    return Prediction(
        weights=FP32_BYTES * dim * rows_held + dense_bytes,
        # DDP keeps the gradients in buckets between steps. A single rank frees them after a step,
        # so it has none at the end of the forward pass. In its backward pass it has them, but there
        # they are neglected: 10 MB of 20 GB in the published training.
        gradients=dense_bytes if has_several_ranks else 0,
        optimizer=0,  # plain SGD
        activations=recipe.micro_batch_size * peak_bytes,
        cached=cached,
    )


def _predict_dense_peak(
    placement: Placement, bottom_widths: list[int], top_widths: list[int], number_bytes: int
) -> int:
    """Return the peak bytes of activations in MLPs and interaction, for one sample of a rank.

    The peak is at the end of the forward pass or in the interaction's backward pass.

    Args:
        bottom_widths, top_widths: of each MLP, the width of the input and of each layer's output.
        number_bytes: bytes of a number in matmuls, and in an exchange between ranks.
    """
    dim = placement.dim
    num_tables = len(placement.cardinalities)  # of all ranks: each sample needs all embeddings
    num_vectors = num_tables + 1  # the embeddings of a sample, and the output of the bottom MLP
    # The embeddings are looked up as fp32; several ranks exchange them in the type of matmuls.
    exchanges_embeddings = placement.world_size > 1
    embedding_bytes = num_tables * dim * (number_bytes if exchanges_embeddings else FP32_BYTES)
    # What MLPs and interaction save for the backward pass. The embeddings are not among it: the
    # interaction saves a copy, the vectors. They exist until the model's ``forward`` returns.
    saved_bytes = (sum(bottom_widths) + sum(top_widths) + num_vectors * dim) * number_bytes
    # In the interaction's backward pass, when the embeddings are freed: the bottom MLP's saved
    # tensors, the vectors and their gradient, the gradient of the features, and that of the
    # products of all vectors with all vectors.
    interaction_bytes = (
        sum(bottom_widths) + 2 * num_vectors * dim + top_widths[0] + num_vectors**2
    ) * number_bytes
    return max(embedding_bytes + saved_bytes, interaction_bytes)


def count_features(num_tables: int, dim: int) -> int:
    """Return the width of the top MLP's input, padded to a multiple of ``FEATURE_MULTIPLE``.

    The input is the dense vector of ``dim`` numbers, and the dot product of each pair of vectors:
    the dense one and an embedding of each table. The published model has 26 tables of 128 numbers
    and pads 479 features to 480.
    """
    num_vectors = num_tables + 1
    num_pairs = num_vectors * (num_vectors - 1) // 2
    width = dim + num_pairs
    padding = -width % FEATURE_MULTIPLE  # up to the next multiple
    return width + padding
