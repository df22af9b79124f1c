"""The loads of experts in figures: of one rank, of several, and where a run ended early."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainmark.cases.gpt_oss_20b.figures import compute
from trainmark.spec import Figure

FACTS = {
    "loads_of_ranks": [], "overload_trend": [{"step": 1, "rank": 1.0, "expert": 2.0}],
    "assignments_dropped": 0, "routing": "trained", "parallel": {"data": 1, "experts": 1},
    "rank_overload_p50": 1.0, "rank_overload_worst": 1.0, "expert_overload_p50": 1.5,
    "expert_overload_worst": 2.5, "exchanged_bytes_per_token": 10.0,
}  # fmt: skip
SHARED = FACTS | {
    "parallel": {"data": 2, "experts": 2},
    "rank_overload_p50": 1.25,
    "rank_overload_worst": 1.75,
}


def make_ranks(number: int, facts: dict[str, Any]) -> Any:
    """Return the work of ``number`` equal ranks, as figures are computed from it.

    Each trained 1,000 tokens in measured windows of 2 s, of which the exchange of tokens between
    ranks (all-to-all) took 0.5 s.

    Args:
        facts: what the job of every rank reported, such as the loads of experts.
    """
    return [
        SimpleNamespace(
            facts=facts,
            windows_ns=2_000_000_000,
            counts=SimpleNamespace(tokens=1000),
            parts_ns={"all_to_all": 500_000_000},
        )
        for _ in range(number)
    ]


def compute_case_figures(number: int, facts: dict[str, Any]) -> Any:
    """Return the figures and notes of a run on ``number`` ranks that all reported ``facts``."""
    return compute(make_ranks(number, facts), {"MFU": Figure(40.0)})


def test_single_rank_has_the_mean_load_with_a_reason() -> None:
    # ``FACTS`` is what a job reports: here the busiest expert has 1.5 times the mean load.
    # ``expert_overload`` and ``expert_overload_worst`` compare ranks: a single rank has all
    # experts, so its load is the mean (1.0) by definition. ``note`` is the run's; it names the load
    # of the busiest expert. There is no exchange (all-to-all) of tokens on one rank, so that figure
    # has a reason, not a value.
    figures, (note,) = compute_case_figures(1, FACTS)
    for name in ("expert_overload", "expert_overload_worst"):
        assert figures[name].value == 1.0
        assert figures[name].note.code == "one_rank_has_all_experts"
    assert figures["single_expert_overload"] == Figure(1.5)
    assert (note.code, note.args) == ("busiest_expert", {"expert": 1.5})
    assert figures["all_to_all_share"].reason.code == "experts_not_shared"


def test_load_of_the_busiest_rank_and_exchange_are_reported() -> None:
    # ``SHARED``: the busiest of two ranks has 1.25 times the mean load, at worst 1.75 times; the
    # busiest expert has 1.5 times the mean load of an expert.
    figures, (note,) = compute_case_figures(2, SHARED)
    assert figures["expert_overload"] == Figure(1.25)
    assert figures["expert_overload_worst"] == Figure(1.75)
    assert (note.code, note.args) == ("busiest_rank", {"rank": 1.25, "expert": 1.5})
    # ``compute_case_figures`` makes equal ranks, each with 1,000 tokens in 2 s, of which 0.5 s are
    # exchange: 25%. ``SHARED`` has 10 exchanged bytes a token: 1,000 x 10 / 2 s on each device.
    assert figures["all_to_all_bytes_per_device"].value == pytest.approx(5_000)
    assert figures["all_to_all_share"].value == pytest.approx(25.0)


def test_balanced_routing_has_a_note() -> None:
    _, (note,) = compute_case_figures(1, FACTS | {"routing": "balanced"})
    assert note.code == "balanced_routing"


def test_run_that_ended_early_has_no_figures() -> None:
    assert compute_case_figures(1, {}).figures == {}
