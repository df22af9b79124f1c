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
    find_unsupported,
    measure_links,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

RANKS = 3
SIZE_BYTES = 4 * 30  # of fp32 numbers, which three ranks divide evenly


def make_device() -> Any:
    return SyncDevice(FakeClock())


def run_collectives(rank: int) -> dict[str, Any]:
    """Return the fault of each collective, then of each with a wrong number on rank 1."""
    ranks = RankGroup(rank, RANKS, dist.new_group(backend="gloo"))
    outcome: dict[str, Any] = {}
    for name, build in COLLECTIVES.items():
        work = build(make_device(), ranks, SIZE_BYTES)
        work.run()
        outcome[name] = work.fault()
        fault = build(make_device(), ranks, SIZE_BYTES).fault() if rank == 1 else work.fault()
        outcome[f"{name} not run on rank 1"] = None if fault is None else fault.code
    outcome["unsupported"] = find_unsupported(make_device(), ranks, "all_gather")
    return outcome


def test_every_collective_has_the_right_result_and_a_missing_one_is_wrong(tmp_path: Path) -> None:
    outcomes = call_on_ranks(RANKS, tmp_path, run_collectives)

    for rank, outcome in enumerate(outcomes):
        for name in COLLECTIVES:
            assert outcome[name] is None, name
            code = "ceiling_numbers" if rank == 1 else "ceiling_wrong_elsewhere"
            assert outcome[f"{name} not run on rank 1"] == code, name
        assert outcome["unsupported"] is None


def run_links(rank: int) -> list[Any]:
    """Return the links of three ranks on which a message of a pair takes as many ns as its sum."""
    ranks = RankGroup(rank, RANKS, dist.new_group(backend="gloo"))
    clock = count(0)
    ranks.read_clock = lambda: int(ranks.find_max(next(clock)))
    pairs = [(0, 1), (0, 2), (1, 2)]
    runs = count()

    def elapsed_ns(of_device: Any, run: Any) -> int:
        # The first run of a pair warms up, three more count.
        pair = pairs[next(runs) // 4]
        run()
        return int(ranks.find_max((100 + 10 * sum(pair)) if rank in pair else 0))

    ranks.measure_ns = elapsed_ns
    links = measure_links(make_device(), ranks, size_bytes=4096, budget_ns=300.0)
    return [
        (link.ranks, link.point.status, link.point.repetitions, link.point.rate) for link in links
    ]


def test_each_pair_is_measured_alone_with_the_rate_of_one_direction(tmp_path: Path) -> None:
    outcomes = call_on_ranks(RANKS, tmp_path, run_links)

    rates = {(0, 1): 4096e9 / 110, (0, 2): 4096e9 / 120, (1, 2): 4096e9 / 130}
    for links in outcomes:
        assert links == [
            (pair, "measured", 3, {"median": rate, "max": rate}) for pair, rate in rates.items()
        ]


def test_backend_that_refuses_a_collective_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("ProcessGroup does not support reduce_scatter\nsecond line")

    for name in ("reduce_scatter_single", "reduce_scatter_tensor"):
        monkeypatch.setattr(dist, name, refuse, raising=False)

    why = find_unsupported(make_device(), RankGroup(0, 2), "reduce_scatter")

    assert why is not None
    assert why.code == "ceiling_unsupported"
    assert "does not support reduce_scatter" in why.args["text"]
    assert "\n" not in why.args["text"]
