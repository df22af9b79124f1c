"""Twenty mistakes planted in jobs are found; a job without one passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support import tiny_gpt_oss
from support.old_torch import needs_fsdp
from support.planted_experts import MISTAKES, TWO_RANKS, codes_of, found_in, on_rank
from support.real_ranks import on_ranks

if TYPE_CHECKING:
    from pathlib import Path


def test_a_job_without_mistakes_passes() -> None:
    assert found_in(tiny_gpt_oss.new_job())["code"] == ""


@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistake_is_detected(name: str) -> None:
    plant, code = MISTAKES[name]
    job = tiny_gpt_oss.new_job()
    plant(job)
    assert found_in(job)["code"] == code


@needs_fsdp
def test_routers_that_differ_between_ranks_are_detected(tmp_path: Path) -> None:
    names = [*TWO_RANKS, "none"]
    found = dict(zip(names, zip(*on_ranks(2, tmp_path, on_rank, names), strict=True), strict=True))
    for name, (_, code, _) in TWO_RANKS.items():
        assert code in codes_of(found[name]), name
    assert codes_of(found["none"]) == {""}


def test_twenty_mistakes_are_planted() -> None:
    assert len(MISTAKES) + len(TWO_RANKS) == 20
