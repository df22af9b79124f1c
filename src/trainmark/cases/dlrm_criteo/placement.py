"""Place the rows of embedding tables on ranks, and predict the memory of a step.

Every row has exactly one owner. Look-ups are spread as evenly as whole tables allow, and each rank
stays within its memory budget. No torch, because the plan of a run uses this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from trainmark.errors import EnvironmentFault
from trainmark.train.step_memory import FULL, HALF, Prediction

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
        """Return a dict for each rank; ``lookups_share`` is its share of all look-ups."""
        lookups = sum(len(parts) for parts in self.parts)
        rows = [sum(part.rows for part in parts) for parts in self.parts]
        return [
            {
                "rank": rank,
                "tables": " ".join(map(self._name, parts)) or "-",
                "rows": rows[rank],
                "gib": self.dim * FLOAT_BYTES * rows[rank] / GIB,
                "lookups_share": len(parts) / lookups,
            }
            for rank, parts in enumerate(self.parts)
        ]

    def _name(self, part: TablePart) -> str:
        rows = f"[{part.first_row}:{part.first_row + part.rows}]" if self.is_cut(part) else ""
        return f"{part.table}{rows}"


def place_tables(
    memory: RankMemory, cardinalities: Sequence[int], dim: int, world_size: int
) -> Placement:
    """Place tables of ``cardinalities`` rows of ``dim`` numbers on ``world_size`` ranks.

    Tables are placed by size, the largest first. Each goes to the rank with the fewest look-ups
    and, among those, the most free memory: a look-up takes the same time in a large table as in a
    small one, so look-ups are balanced and memory only has to suffice. A table that does not fit on
    any rank is cut by rows over as few ranks as possible.

    Args:
        memory: of a rank; tables may take ``TABLES_SHARE`` of it.

    Raises:
        EnvironmentFault: the tables do not fit; the fix names the smallest number of ranks.
    """
    _refuse_large_tables(memory, cardinalities, dim, world_size)
    row_budget = _count_rows_that_fit(memory.rank_bytes, dim)
    free_rows = [row_budget] * world_size
    parts: list[list[TablePart]] = [[] for _ in range(world_size)]
    for table in sorted(range(len(cardinalities)), key=lambda t: (-cardinalities[t], t)):
        rows = cardinalities[table]
        order = sorted(range(world_size), key=lambda r: (len(parts[r]), -free_rows[r], r))
        fitting = [rank for rank in order if free_rows[rank] >= rows]
        shares = [(fitting[0], rows)] if fitting else _cut_table(rows, free_rows)
        first_row = 0
        for rank, share in shares:
            parts[rank].append(TablePart(table, first_row, share))
            free_rows[rank] -= share
            first_row += share
    ordered = (tuple(sorted(rank_parts, key=lambda part: part.table)) for rank_parts in parts)
    return Placement(tuple(cardinalities), dim, tuple(ordered))


def _count_rows_that_fit(memory_bytes: int, dim: int) -> int:
    """Return how many rows of tables fit in the share of memory that tables may take."""
    return int(TABLES_SHARE * memory_bytes) // (dim * FLOAT_BYTES)


def _refuse_large_tables(
    memory: RankMemory, cardinalities: Sequence[int], dim: int, world_size: int
) -> None:
    """Raise EnvironmentFault if the tables do not fit on the ranks.

    The comparison is exact, because any table may be cut at any row.
    """
    row_bytes, rows = dim * FLOAT_BYTES, sum(cardinalities)
    row_budget = _count_rows_that_fit(memory.rank_bytes, dim)
    if rows <= row_budget * world_size:
        return
    unit, unit_bytes = "ranks", memory.rank_bytes
    if memory.machine_bytes is not None:  # more ranks on one machine would not add memory
        unit, unit_bytes = (
            "machines like this one, whose ranks share its memory",
            memory.machine_bytes,
        )
    needed_units = -(-rows // max(1, _count_rows_that_fit(unit_bytes, dim)))
    ranks = f"{world_size} rank" if world_size == 1 else f"{world_size} ranks"
    raise EnvironmentFault(
        f"{rows * row_bytes / GIB:,.2f} GiB of tables do not fit into the memory of {ranks}",
        where=f"{rows:,} rows x {dim} in fp32, {len(cardinalities)} table(s)",
        rule=f"each rank has {row_budget * row_bytes / GIB:,.2f} GiB for tables",
        fix=f"use at least {needed_units:,} {unit}; or lower embedding_dim, or "
        "prepare the data with a higher frequency_threshold",
    )


def _cut_table(rows: int, free_rows: Sequence[int]) -> list[tuple[int, int]]:
    """Return (rank, rows) for a table cut over the fewest ranks, as evenly as they have room."""
    emptiest_first = sorted(range(len(free_rows)), key=lambda rank: (-free_rows[rank], rank))
    ranks: list[int] = []
    while sum(free_rows[rank] for rank in ranks) < rows:
        ranks.append(emptiest_first[len(ranks)])
    shares: list[tuple[int, int]] = []
    # The fullest rank comes first: rows that do not fit there go to ranks with more room.
    for remaining_ranks, rank in zip(range(len(ranks), 0, -1), reversed(ranks), strict=True):
        share = min(free_rows[rank], -(-rows // remaining_ranks))
        shares.append((rank, share))
        rows -= share
    return sorted(shares)


FEATURE_MULTIPLE = 32  # the top MLP's input is padded to this multiple: 26 tables of 128 give 480


def predict(recipe: DlrmRecipe, placement: Placement, num_numerical: int) -> Prediction:
    """Return the predicted peak memory in a step, of the rank that needs most.

    The peak is at the end of the forward pass, in the interaction's backward pass, or where rows
    are updated.

    Args:
        placement: of the tables on all ranks.
        num_numerical: number of numerical values of a sample.
    """
    dim, tables = placement.dim, len(placement.cardinalities)
    bottom, top = parse_layer_widths(recipe)
    widths = [[num_numerical, *bottom], [count_features(tables, dim), *top]]
    dense_bytes = FULL * sum((into + 1) * out for mlp in widths for into, out in pairwise(mlp))
    number_bytes = HALF if recipe.precision in ("bf16", "fp16") else FULL  # in matmuls
    # Bytes per sample that MLPs and interaction save for the backward pass.
    saved = (sum(map(sum, widths)) + (tables + 1) * dim) * number_bytes
    # Bytes per sample in the interaction's backward pass: the bottom MLP's saved tensors, the
    # vectors and their gradient, the features, and the pairs in both orders.
    vectors = tables + 1
    interaction = (sum(widths[0]) + 2 * vectors * dim + widths[1][0] + vectors**2) * number_bytes
    # Copies of the rows in an update: rows and gradient; fp16 adds the unscaled gradient and zeros.
    row_copies = 4 if recipe.precision == "fp16" else 2
    # Bytes per sample of the embeddings, from the look-up or the exchange.
    embedded = tables * dim * (FULL if placement.world_size == 1 else number_bytes)
    predictions = []
    for parts in placement.parts:
        row_bytes = placement.world_size * len(parts) * dim * FULL  # per local sample
        weights = FLOAT_BYTES * dim * sum(part.rows for part in parts) + dense_bytes
        gradients = dense_bytes if placement.world_size > 1 else 0  # DDP keeps its buckets
        bytes_per_sample = max(embedded + saved, interaction, row_copies * row_bytes)
        activations = recipe.micro_batch_size * bytes_per_sample
        # Freed memory that the allocator keeps: rows, and tensors that were sent. Up to torch 2.13,
        # it keeps received tensors too; 2.15 does not.
        cached = recipe.micro_batch_size * row_bytes
        if placement.world_size > 1:
            cached += recipe.micro_batch_size * row_bytes * number_bytes // FULL
        predictions.append(Prediction(weights, gradients, 0, activations, cached))
    return max(predictions, key=lambda item: item.reserved)


def count_features(num_tables: int, dim: int) -> int:
    """Return the width of the top MLP's input: dense vector and pairs, padded."""
    width = dim + num_tables * (num_tables + 1) // 2
    return width + -width % FEATURE_MULTIPLE
