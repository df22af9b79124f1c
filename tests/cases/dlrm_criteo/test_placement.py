"""Every row of every table lives on exactly one rank, and no rank does much more than others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from support.tiny_dlrm import make_rank_memory
from trainmark.cases.dlrm_criteo.placement import Placement, TablePart, place_tables

DIM = 4
tables = st.lists(st.integers(1, 60), min_size=1, max_size=12)


def count_owners(placement: Placement) -> list[list[int]]:
    """Return by table, for each of its rows, the number of ranks that hold it."""
    counts = [[0] * rows for rows in placement.cardinalities]
    for parts in placement.parts:
        for part in parts:
            for row in range(part.first_row, part.first_row + part.rows):
                counts[part.table][row] += 1
    return counts


@given(tables, st.integers(1, 6), st.integers(0, 40))
def test_every_row_has_one_owner_within_the_budget(
    cardinalities: list[int], world_size: int, spare_rows: int
) -> None:
    """Tables are placed on ranks as a whole, or cut by rows if no rank can hold them.

    ``cardinalities`` are the rows of each table, up to 12 tables of up to 60 rows; ``parts`` has by
    rank the rows of tables that it holds. ``count_owners`` counts the ranks that hold a row.
    """
    # Rows for which each rank has memory: its even share, rounded up, and some more.
    row_budget = -(-sum(cardinalities) // world_size) + spare_rows
    placement = place_tables(make_rank_memory(row_budget, DIM), cardinalities, DIM, world_size)
    assert count_owners(placement) == [[1] * rows for rows in cardinalities]
    for rank, parts in enumerate(placement.parts):
        assert sum(part.rows for part in parts) <= row_budget
        columns = placement.list_tables(rank)
        assert list(columns) == sorted(set(columns))
        assert all(part.rows > 0 for part in parts)
    # A table is split only if no rank could hold it whole. One rank at least always has room for
    # ``spare_rows`` more.
    for table, rows in enumerate(cardinalities):
        pieces = sum(table in placement.list_tables(rank) for rank in range(world_size))
        assert pieces == 1 or rows > spare_rows


def test_table_larger_than_a_rank_is_split_evenly_over_few_ranks() -> None:
    """Three tables of 50, 5 and 4 rows are placed on four ranks, which train together.

    ``DIM``, 4, is the number of float32 in a row. ``list_tables`` returns the numbers of the tables
    of which a rank holds rows.
    """
    # Each rank has memory for 30 rows; the first table has 50.
    placement = place_tables(
        make_rank_memory(30, DIM), cardinalities=[50, 5, 4], dim=DIM, world_size=4
    )
    # The parts of each rank.
    assert placement.parts == (
        (TablePart(table=0, first_row=0, rows=25),),
        (TablePart(table=0, first_row=25, rows=25),),
        (TablePart(table=1, first_row=0, rows=5),),
        (TablePart(table=2, first_row=0, rows=4),),
    )
    # Rank 1 has a part of table 0, which is cut; table 1 is whole.
    assert placement.list_tables(1) == (0,)
    assert placement.is_cut(TablePart(table=0, first_row=25, rows=25))
    assert not placement.is_cut(TablePart(table=1, first_row=0, rows=5))
    # As the record shows it: tables, those that are cut with their range of rows. Each of the four
    # parts has one of four look-ups of a sample; a row has four float32, that is, 16 bytes.
    assert placement.describe()[1:3] == [
        {
            "rank": 1,
            "tables": "0[25:50]",
            "rows": 25,
            "gib": 25 * 16 / 2**30,
            "lookups_share": 0.25,
        },
        {"rank": 2, "tables": "1", "rows": 5, "gib": 5 * 16 / 2**30, "lookups_share": 0.25},
    ]


def test_table_that_just_fits_is_not_cut_and_further_ranks_hold_nothing() -> None:
    """``parts`` has by rank what it holds of tables; ``describe`` has a row for each rank."""
    # Each of two ranks has memory for 30 rows, as many as the only table has.
    placement = place_tables(make_rank_memory(30, DIM), cardinalities=[30], dim=DIM, world_size=2)
    assert placement.parts == ((TablePart(table=0, first_row=0, rows=30),), ())
    assert [row["tables"] for row in placement.describe()] == ["0", "-"]
