"""Which rank is the slowest, from events written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import launch_event, make_window, measure, write_run
from trainmark.events.timeline import read_run
from trainmark.record import findings

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.spec import Message

MS = 1_000_000


@pytest.fixture
def find_skew(tmp_path: Path) -> Any:
    """Return a function that writes a run and returns the findings about slow ranks."""

    def call(
        *ranks: tuple[int, int], steps: int = 100, nproc: int = 2
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return the findings for ranks with these milliseconds per step and of waiting in it.

        A finding is its code and its arguments by name. A step has 4 samples; any number does.

        Args:
            ranks: milliseconds of a step, and how many of them the rank waits for data.
            steps: how many each rank takes, all of the same time.
            nproc: ranks of each node.
        """
        events = [
            [
                make_window(
                    0,
                    steps * step * MS,
                    step_ns=[step * MS] * steps,
                    wait_ns=[wait * MS] * steps,
                    samples=[4] * steps,
                )
            ]
            for step, wait in ranks
        ]
        run_dir = write_run(tmp_path / "run", [launch_event()], *events)
        return [
            (item.code, dict(item.args)) for item in list_slow_ranks(run_dir, len(ranks), nproc)
        ]

    return call


def list_slow_ranks(run_dir: Path, ranks: int, nproc: int) -> list[Message]:
    """Return the findings on slow ranks.

    Args:
        run_dir: folder of the run.
        ranks: how many it has.
        nproc: how many of them are on each node.
    """
    # {}: no figures, which only other findings are derived from.
    measurement = measure(read_run(run_dir, ranks), nproc=nproc)
    all_findings = findings.find_in_measurement(measurement, {})
    return [finding for finding in all_findings if finding.code in {"slow_rank", "slow_data"}]


def test_slowest_rank_is_named_with_its_node_and_the_number_of_slow_ranks(find_skew: Any) -> None:
    # Milliseconds of a step and of waiting in it, for six ranks on three nodes, two on each. The
    # median of the ranks is 100 ms, the lower of the two in the middle. A rank is slow above 105
    # ms: two are, both on node 2. ``own_s`` and ``median_s`` are the seconds of a step of the
    # slowest rank, which takes 30% longer, and of the median; ``slow`` and ``nodes`` count the slow
    # ranks and their nodes.
    assert find_skew((100, 1), (101, 1), (100, 1), (100, 1), (125, 1), (130, 1)) == [
        (
            "slow_rank",
            {
                "rank": 5,
                "node": 2,
                "own_s": 0.13,
                "median_s": 0.1,
                "share": 0.3,
                "slow": 2,
                "nodes": 1,
            },
        ),
    ]


def test_of_two_ranks_the_slower_is_compared_with_the_faster(find_skew: Any) -> None:
    # For each rank, milliseconds of a step and of waiting in it. A rank is slow if it takes more
    # than 5% longer than the median, of two ranks the faster one: 106 is 6% more than 100.
    ((code, args),) = find_skew((100, 0), (106, 0))
    assert (code, args["rank"], args["share"]) == ("slow_rank", 1, pytest.approx(0.06, rel=1e-12))
    assert find_skew((100, 0), (105, 0)) == []


def test_ranks_that_share_cores_are_not_compared(tmp_path: Path) -> None:
    # Milliseconds of a step and of waiting in it, for two ranks of a node. The second one takes 30%
    # longer, and waits longer for data by 10% of a step. Each takes 100 steps of 4 samples.
    windows = [
        make_window(
            0,
            100 * step * MS,
            step_ns=[step * MS] * 100,
            wait_ns=[wait * MS] * 100,
            samples=[4] * 100,
        )
        for step, wait in ((100, 2), (130, 12))
    ]
    run = write_run(tmp_path / "run", [launch_event()], *([window] for window in windows))
    measurement = measure(read_run(run, 2), nproc=2)
    codes = [finding.code for finding in findings.find_in_measurement(measurement, {})]
    assert {"slow_rank", "slow_data"} <= set(codes)

    # The label of a run with more ranks than cores: which rank waits for a core is chance.
    plan = measurement.plan.model_copy(update={"labels": ["oversubscribed"]})
    shared = replace(measurement, plan=plan)

    codes = [finding.code for finding in findings.find_in_measurement(shared, {})]
    assert not {"slow_rank", "slow_data"} & set(codes)


def test_a_rank_that_waits_for_data_makes_all_ranks_wait(find_skew: Any) -> None:
    # Of each rank, milliseconds per step and of waiting in it; two ranks on a node. All steps take
    # 100 ms, as the others wait for rank 2. It waits 12 ms for data, the median rank 2 ms: the
    # share is the difference of 10 ms in a step of 100 ms.
    ((code, args),) = find_skew((100, 2), (100, 2), (100, 12), (100, 2))
    assert code == "slow_data"
    assert (args["rank"], args["node"], args["share"]) == (2, 1, pytest.approx(0.1, rel=1e-12))
    assert (args["own_s"], args["median_s"]) == (0.012, 0.002)


def test_a_rank_that_begins_its_windows_first_and_waits_in_them_is_not_slow(
    tmp_path: Path,
) -> None:
    # Each of two ranks has three windows of 8 steps. Rank 0 begins each of them 80 ms earlier, and
    # waits that long in its first step, which takes 180 ms; all other steps take 100 ms, and both
    # ranks end a window together. By the mean step, 110 ms and 100 ms, rank 0 would be slow: the
    # limit is 5% more than the other. Ranks are compared by their median step, 100 ms in both.
    windows_of_ranks = [
        [
            make_window(
                (start + 80 - waiting) * MS,
                (start + 880) * MS,
                step_ns=[(100 + waiting) * MS] + [100 * MS] * 7,
                samples=[4] * 8,
            )
            for start in (0, 1000, 2000)
        ]
        for waiting in (80, 0)
    ]
    run = write_run(tmp_path / "run", [launch_event()], *windows_of_ranks)
    assert list_slow_ranks(run, ranks=2, nproc=1) == []
