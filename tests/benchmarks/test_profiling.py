"""The idle share of a device, and a profile of real steps."""

from __future__ import annotations

import pytest
import torch
from benchmarks.profiling import Profile, idle_share, profile_steps, profile_table

from trainmark import devices


@pytest.mark.parametrize(
    ("intervals", "share"),
    [
        ([(0.0, 4.0)], 0.0),
        ([(0.0, 1.0), (3.0, 4.0)], 0.5),
        ([(3.0, 4.0), (0.0, 1.0)], 0.5),
        ([(0.0, 2.0), (1.0, 3.0), (3.0, 4.0)], 0.0),  # they overlap, or touch
        ([(10.0, 18.0), (11.0, 12.0), (19.0, 20.0)], 0.1),  # one lies within another
        ([(0.0, 0.0), (4.0, 5.0)], 0.8),  # one of no length begins the time
        ([(2.0, 2.0)], None),
        ([], None),
    ],
)
def test_idle_is_what_no_interval_covers(
    intervals: list[tuple[float, float]], share: float | None
) -> None:
    assert idle_share(intervals) == pytest.approx(share)


def test_a_table_has_the_longest_first_and_shares_of_all_time() -> None:
    spent = {f"kernel<{number}>": float(number) for number in range(1, 20)}

    lines = Profile(5, spent, on_device=True, idle=0.25).markdown().splitlines()

    assert lines[0] == "| kernel | share |"
    assert lines[2] == "| `kernel<19>` | 10.0% |"  # 19 of 190
    assert sum(line.startswith("| `kernel<") for line in lines) == 14
    assert "25.0%" in lines[-1]


def test_a_name_does_not_break_its_cell() -> None:
    table = Profile(1, {"a|b`" + 200 * "c": 1.0}, on_device=True, idle=None).markdown()

    (row,) = table.splitlines()[2:]
    assert row.count("|") == 3
    assert len(row) < 130


def test_a_host_has_operations_and_no_idle_share() -> None:
    left = torch.randn(64, 64)

    found = profile_steps(lambda: torch.mm(left, left), devices.choose("cpu").open(0, 1))

    assert not found.on_device
    assert found.idle is None
    assert found.spent_us["aten::mm"] > 0


def test_a_profile_that_takes_too_long_is_told_and_ended() -> None:
    text = profile_table("Where", "this", limit_s=0.0)
    assert text.startswith("Where: ")
    assert "0 s" in text
