"""Which rank holds which rows of which embedding table.

Owns the cut of tables over ranks: every row has exactly one owner, look-ups are spread as
evenly as whole tables allow, memory stays within each rank's budget. No torch: it is
asked while planning.
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
    """Rows ``first_row`` to ``first_row + rows`` of ``table``; the whole of it mostly."""

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
        """Ranks that the tables are placed on."""
        return len(self.parts)

    def list_tables(self, rank: int) -> tuple[int, ...]:
        """Return the tables whose ids ``rank`` has to read, one for each of its parts."""
        return tuple(part.table for part in self.parts[rank])

    def is_cut(self, part: TablePart) -> bool:
        """Tell whether other ranks hold further rows of the part's table."""
        return part.rows < self.cardinalities[part.table]

    def describe(self) -> list[dict[str, object]]:
        """Return one row a rank, in plain values; ``lookups_share`` is of all look-ups."""
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

    The largest table goes first, to the rank with the fewest look-ups and, among those,
    the most room: a look-up costs the same time in a large table as in a small one, so
    look-ups are evened out and memory only has to fit. A table that fits no rank whole is
    cut by rows over as few ranks as hold it.

    Args:
        memory: of a rank, for everything; tables may take ``TABLES_SHARE`` of it.

    Raises:
        EnvironmentFault: they do not fit; it names the smallest world that holds them.
    """
    row_bytes, rows = dim * FLOAT_BYTES, sum(cardinalities)
    row_budget = int(TABLES_SHARE * memory.rank_bytes) // row_bytes
    if rows > row_budget * world_size:
        # Exact, because any table may be cut at any row. More ranks on a machine whose memory
        # they share would only cut it finer.
        shared = memory.machine_bytes is not None
        unit = "machines like this one, whose ranks share its memory" if shared else "ranks"
        max_rows = int(TABLES_SHARE * (memory.machine_bytes or memory.rank_bytes)) // row_bytes
        raise EnvironmentFault(
            f"{rows * row_bytes / GIB:,.2f} GiB of tables exceed the memory of {world_size} rank"
            + "s" * (world_size > 1),
            where=f"{rows:,} rows x {dim} in fp32, {len(cardinalities)} table(s)",
            rule=f"a rank has {row_budget * row_bytes / GIB:,.2f} GiB for them",
            fix=f"use {-(-rows // max(1, max_rows)):,} {unit} or more; or lower embedding_dim, or "
            "prepare with a higher frequency_threshold",
        )
    room = [row_budget] * world_size
    parts: list[list[TablePart]] = [[] for _ in range(world_size)]
    for table in sorted(range(len(cardinalities)), key=lambda t: (-cardinalities[t], t)):
        rows = cardinalities[table]
        order = sorted(range(world_size), key=lambda r: (len(parts[r]), -room[r], r))
        fitting = [rank for rank in order if room[rank] >= rows]
        first_row = 0
        for rank, share in [(fitting[0], rows)] if fitting else _cut(rows, room):
            parts[rank].append(TablePart(table, first_row, share))
            room[rank] -= share
            first_row += share
    ordered = (tuple(sorted(rank_parts, key=lambda part: part.table)) for rank_parts in parts)
    return Placement(tuple(cardinalities), dim, tuple(ordered))


def _cut(rows: int, room: Sequence[int]) -> list[tuple[int, int]]:
    """Return (rank, rows) of a table on the fewest ranks that hold it, as evenly as they can."""
    roomiest = sorted(range(len(room)), key=lambda rank: (-room[rank], rank))
    taken: list[int] = []
    while sum(room[rank] for rank in taken) < rows:
        taken.append(roomiest[len(taken)])
    shares: list[tuple[int, int]] = []
    # The fullest rank first: rows that do not fit there go to ranks with more room.
    for ranks_left, rank in zip(range(len(taken), 0, -1), reversed(taken), strict=True):
        share = min(room[rank], -(-rows // ranks_left))
        shares.append((rank, share))
        rows -= share
    return sorted(shares)


FEATURE_MULTIPLE = 32  # the top MLP's input is padded to it, as 26 tables of 128 give 480


def predict(recipe: DlrmRecipe, placement: Placement, num_numerical: int) -> Prediction:
    """Return what the rank that needs most holds at the peak of a step.

    The peak is where the forward pass ends, in the interaction's backward pass, or where rows
    are updated.

    Args:
        placement: of the tables on all ranks.
        num_numerical: numbers of a sample.
    """
    dim, tables = placement.dim, len(placement.cardinalities)
    bottom, top = parse_layer_widths(recipe)
    widths = [[num_numerical, *bottom], [count_features(tables, dim), *top]]
    dense = FULL * sum((into + 1) * out for mlp in widths for into, out in pairwise(mlp))
    number = HALF if recipe.precision in ("bf16", "fp16") else FULL  # in matmuls
    saved = (sum(map(sum, widths)) + (tables + 1) * dim) * number  # by MLPs and interaction
    # What the bottom MLP saved, the vectors and their gradient, features, and pairs both ways.
    vectors = tables + 1
    mixing = (sum(widths[0]) + 2 * vectors * dim + widths[1][0] + vectors**2) * number
    # Rows and their gradient; in fp16 it is unscaled and compared with zeros of the same size.
    updating = 4 if recipe.precision == "fp16" else 2
    # Rows of all tables for own samples, as the look-up or the exchange gives them.
    embedded = tables * dim * (FULL if placement.world_size == 1 else number)
    predictions = []
    for parts in placement.parts:
        rows = placement.world_size * len(parts) * dim * FULL  # of own columns, a sample
        held = FLOAT_BYTES * dim * sum(part.rows for part in parts) + dense
        gradients = dense if placement.world_size > 1 else 0  # buckets of replicas stay
        activations = recipe.micro_batch_size * max(embedded + saved, mixing, updating * rows)
        # Freed tensors that fit no later one: rows, and those that are sent. What is received is
        # kept too by torch up to 2.13, and not by 2.15.
        cached = recipe.micro_batch_size * rows
        if placement.world_size > 1:
            cached += recipe.micro_batch_size * rows * number // FULL
        predictions.append(Prediction(held, gradients, 0, activations, cached))
    return max(predictions, key=lambda item: item.reserved)


def count_features(num_tables: int, dim: int) -> int:
    """Return the numbers of a sample that the interaction gives the top MLP."""
    numbers = dim + num_tables * (num_tables + 1) // 2
    return numbers + -numbers % FEATURE_MULTIPLE
