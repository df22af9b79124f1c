"""Every row exactly once, the same number of steps on every rank, every sample equal."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from trainmark.train.shards import MicroBatch, Sharding, evaluation_rows

SIZES = {
    "num_rows": st.integers(1, 70),
    "micro_batch_size": st.integers(1, 9),
    "grad_accum_steps": st.integers(1, 4),
    "world_size": st.integers(1, 6),
    "seed": st.integers(0, 2**31),
    "epoch": st.integers(0, 50),
}


def group_steps(micros: list[MicroBatch]) -> list[list[MicroBatch]]:
    """Group micro-batches into steps by the flag that closes one."""
    steps: list[list[MicroBatch]] = [[]]
    for micro in micros:
        steps[-1].append(micro)
        if micro.closes_step:
            steps.append([])
    assert steps.pop() == []  # the last micro-batch closes its step
    return steps


def list_rows(micros: list[MicroBatch]) -> list[int]:
    """Return the rows that count in a step of one rank."""
    return [int(row) for micro in micros if not micro.weightless for row in micro.rows]


def shard_over_ranks(
    *, num_rows: int, micro_batch_size: int, grad_accum_steps: int, world_size: int, seed: int
) -> list[Sharding]:
    """Return the share of each rank: which rows it trains in an epoch, in which micro-batches.

    Args:
        num_rows: rows of the data.
        micro_batch_size: rows of a micro-batch of one rank.
        grad_accum_steps: micro-batches of a step on each rank.
        world_size: number of ranks.
        seed: of the order of the rows.
    """
    return [
        Sharding(
            num_rows=num_rows,
            micro_batch_size=micro_batch_size,
            grad_accum_steps=grad_accum_steps,
            world_size=world_size,
            rank=rank,
            seed=seed,
        )
        for rank in range(world_size)
    ]


@given(**SIZES)
def test_epoch_is_divided_completely_and_evenly(epoch: int, **sizes: int) -> None:
    # ``SIZES``: random numbers of rows, ranks and micro-batches. ``by_rank`` has, by rank and step,
    # its micro-batches. ``list_rows`` leaves out rows without weight, which only fill up a step.
    shardings = shard_over_ranks(**sizes)
    by_rank = [group_steps(list(item.micro_batches(epoch))) for item in shardings]
    full, rows = shardings[0].global_batch_size, sizes["num_rows"]
    assert full == sizes["micro_batch_size"] * sizes["grad_accum_steps"] * sizes["world_size"]
    assert {len(steps) for steps in by_rank} == {shardings[0].steps_per_epoch}

    times_seen = Counter[int]()
    for steps in by_rank:
        for micros in steps:
            times_seen.update(list_rows(micros))
    assert times_seen == dict.fromkeys(range(rows), 1)

    for number, ranks in enumerate(zip(*by_rank, strict=True)):
        samples = min(full, rows - number * full)
        num_rows_held = [len(list_rows(micros)) for micros in ranks]
        assert sum(num_rows_held) == samples
        assert max(num_rows_held) - min(num_rows_held) <= 1
        for micros, count in zip(ranks, num_rows_held, strict=True):
            assert {micro.step_samples for micro in micros} == {samples}
            assert len(micros) <= sizes["grad_accum_steps"]
            assert [micro.closes_step for micro in micros] == [False] * (len(micros) - 1) + [True]
            assert all(1 <= len(micro.rows) <= sizes["micro_batch_size"] for micro in micros)
            # The micro-batches that hold rows, rounded up; the rest only fills up the step.
            weighty = -(-count // sizes["micro_batch_size"])
            weightless = [False] * weighty + [True] * (len(micros) - weighty)
            assert [micro.weightless for micro in micros] == weightless
        # A pass of a sharded model is one of all ranks: one more on one of them waits forever.
        assert len({len(micros) for micros in ranks}) == 1


def test_global_batch_has_the_same_rows_for_any_split() -> None:
    def step_rows(micro: int, accumulate: int, world: int) -> list[list[int]]:
        """Return the rows of each step over all ranks, sorted."""
        by_rank = [
            group_steps(list(item.micro_batches(3)))  # of an arbitrary epoch
            for item in shard_over_ranks(
                num_rows=45,
                micro_batch_size=micro,
                grad_accum_steps=accumulate,
                world_size=world,
                seed=1,
            )
        ]
        rows_of_steps = []
        for ranks in zip(*by_rank, strict=True):
            rows_of_steps.append(sorted(row for micros in ranks for row in list_rows(micros)))
        return rows_of_steps

    # Always 16 rows a step: micro-batch size x micro-batches of a step x ranks.
    assert (
        step_rows(micro=16, accumulate=1, world=1)
        == step_rows(micro=4, accumulate=4, world=1)
        == step_rows(micro=4, accumulate=1, world=4)
        == step_rows(micro=2, accumulate=4, world=2)
    )


@given(num_rows=st.integers(0, 100), world_size=st.integers(1, 9))
def test_evaluation_rows_are_disjoint_and_complete(num_rows: int, world_size: int) -> None:
    # The numbers of the rows that each of the ranks scores.
    parts = [
        evaluation_rows(num_rows, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    assert sorted(row for part in parts for row in part) == list(range(num_rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1  # ranks have about as many rows
