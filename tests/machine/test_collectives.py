"""Collectives of ``ceilings`` on three real ranks: right results, wrong ones, pairs, refusals."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from torch import distributed as dist

from support.fakes import FakeClock, SyncDevice
from support.real_ranks import call_on_ranks
from trainmark.machine.ceilings_work import (
    COLLECTIVES,
    RankGroup,
    measure_links,
    try_collective,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

NUM_RANKS = 3
SIZE_BYTES = 4 * 30  # of fp32 numbers, which three ranks divide evenly
LINK_BYTES = 4096
MESSAGE_NS = {(0, 1): 110, (0, 2): 120, (1, 2): 130}  # duration of a message of each pair


def make_device() -> Any:
    """Return a CPU as a device that computes at once, with a clock that only tests advance."""
    return SyncDevice(FakeClock())


def run_collectives(rank: int) -> dict[str, Any]:
    """Return the fault of each collective, then of each whose result is missing on rank 1.

    Of the latter only the code: its arguments differ between collectives.

    This function runs on each of ``NUM_RANKS`` = 3 ranks. ``SIZE_BYTES`` is the size of a message:
    30 fp32 numbers.
    """
    ranks = RankGroup(rank, NUM_RANKS, dist.new_group(backend="gloo"))
    outcome: dict[str, Any] = {}
    for name, build in COLLECTIVES.items():
        work = build(make_device(), ranks, SIZE_BYTES)
        work.run()
        outcome[name] = work.fault()
        # On rank 1 the numbers of a collective that was prepared, but not run. Preparing exchanges
        # nothing, so a rank can do it alone.
        checked = build(make_device(), ranks, SIZE_BYTES) if rank == 1 else work
        fault = checked.fault()
        outcome[f"{name} not run on rank 1"] = None if fault is None else fault.code
    # None if the backend supports it.
    outcome["unsupported"] = try_collective(make_device(), ranks, "all_gather")
    return outcome


def test_every_collective_has_the_right_result_and_a_missing_one_is_wrong(tmp_path: Path) -> None:
    # ``run_collectives`` runs on each of ``NUM_RANKS`` = 3 processes and returns, by the name of
    # each of ``COLLECTIVES`` such as "all_reduce", what is wrong with its result (None: nothing),
    # and the same for a case in which rank 1 alone did not run it.
    outcomes = call_on_ranks(NUM_RANKS, tmp_path, run_collectives)

    for rank, outcome in enumerate(outcomes):
        for name in COLLECTIVES:
            assert outcome[name] is None, name
            # The rank itself knows which numbers are wrong, the others that another rank's are.
            code = "ceiling_numbers" if rank == 1 else "ceiling_wrong_elsewhere"
            assert outcome[f"{name} not run on rank 1"] == code, name
        assert outcome["unsupported"] is None


def run_links(rank: int) -> list[Any]:
    """Return the links of three ranks on which a message takes the time of ``MESSAGE_NS``."""
    ranks = RankGroup(rank, NUM_RANKS, dist.new_group(backend="gloo"))
    clock = count(0)  # so slow that the budget is never the limit
    ranks.read_clock = lambda: int(ranks.find_max(next(clock)))
    pairs = list(MESSAGE_NS)
    num_runs = count()

    def send_in_given_time(_device: Any, run: Any) -> int:
        # The first run of a pair warms up, three more count.
        pair = pairs[next(num_runs) // 4]
        run()
        # All ranks call this; the rank outside the pair waits, and takes no time.
        return int(ranks.find_max(MESSAGE_NS[pair] if rank in pair else 0))

    ranks.measure_ns = send_in_given_time
    # ``LINK_BYTES`` = 4096: size of a message. ``MESSAGE_NS``: ns of a message by pair of ranks.
    links = measure_links(make_device(), ranks, size_bytes=LINK_BYTES, budget_ns=300.0)
    return [
        (link.ranks, link.point.status, link.point.repetitions, link.point.rate) for link in links
    ]


def test_each_pair_is_measured_alone_with_the_rate_of_one_direction(tmp_path: Path) -> None:
    outcomes = call_on_ranks(NUM_RANKS, tmp_path, run_links)

    # ``MESSAGE_NS``: for each pair of the three ranks the ns that a message takes in ``run_links``,
    # such as 110 for (0, 1). ``LINK_BYTES``: its size. Both ranks of a pair send at the same time;
    # the rate counts one direction. Three repetitions of equal time: the median is the maximum.
    rates = {pair: LINK_BYTES * 1e9 / duration_ns for pair, duration_ns in MESSAGE_NS.items()}
    for links in outcomes:  # each rank has the same result
        assert links == [
            (pair, "measured", 3, {"median": rate, "max": rate}) for pair, rate in rates.items()
        ]


def test_backend_that_refuses_a_collective_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    # A collective is an exchange of data among all ranks; libraries do not have every one.
    def refuse(*_: Any) -> None:
        raise RuntimeError("ProcessGroup does not support reduce_scatter\nsecond line")

    # The name of the function depends on the version of PyTorch.
    for name in ("reduce_scatter_single", "reduce_scatter_tensor"):
        monkeypatch.setattr(dist, name, refuse, raising=False)

    why = try_collective(make_device(), RankGroup(rank=0, count=2), "reduce_scatter")

    assert why is not None
    assert why.code == "ceiling_unsupported"
    assert "does not support reduce_scatter" in why.args["text"]
    assert "\n" not in why.args["text"]  # the first line of the error alone
