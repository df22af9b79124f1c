"""Twenty mistakes planted in jobs are detected; a correct job passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from support import tiny_gpt_oss
from support.old_torch import needs_fsdp
from support.planted_experts import (
    MISTAKES,
    TWO_RANKS,
    check_plants_on_rank,
    find_mistake,
    list_codes,
    list_routers,
)
from support.real_ranks import call_on_ranks

if TYPE_CHECKING:
    from pathlib import Path


def test_a_job_without_mistakes_passes() -> None:
    assert find_mistake(tiny_gpt_oss.new_job())["code"] == ""


def test_an_expert_may_get_its_first_tokens_after_the_watched_steps() -> None:
    job = tiny_gpt_oss.new_job()
    bias = list_routers(job)[0].bias
    stream = job.batches(0)
    for step in range(10):
        with torch.no_grad():
            # In the first five steps, whose gradients are watched, no token chooses expert 7: the
            # bias of the first layer's router keeps it out. Without a gradient an expert is an
            # error only if it received tokens in these steps.
            bias[7] = -1000.0 if step < 5 else 0.0
        job.step(stream)
    job.check()  # an error would end the run


@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistake_is_detected(name: str) -> None:
    # ``MISTAKES``: by name, a function that spoils a job in place, and the code of the error or of
    # the broken rule that must reveal it. ``find_mistake`` trains some steps and returns what it
    # found.
    plant, code = MISTAKES[name]
    job = tiny_gpt_oss.new_job()
    plant(job)
    assert find_mistake(job)["code"] == code


@needs_fsdp
def test_routers_that_differ_between_ranks_are_detected(tmp_path: Path) -> None:
    # ``TWO_RANKS``: by name, mistakes that can be made only on several ranks, each with the code of
    # the error or of the broken rule that must reveal it.
    names = [*TWO_RANKS, "none"]  # the last: no mistake is planted
    # Each rank trains a job for each name, and returns what was found in it. ``list_codes`` also
    # compares the parameters of both ranks.
    rank_0, rank_1 = call_on_ranks(2, tmp_path, check_plants_on_rank, names)
    codes_by_name = {
        name: list_codes([result_0, result_1])
        for name, result_0, result_1 in zip(names, rank_0, rank_1, strict=True)
    }
    for name, mistake in TWO_RANKS.items():
        assert mistake.code in codes_by_name[name], name
    assert codes_by_name["none"] == {""}  # no fault on either rank


def test_twenty_mistakes_are_planted() -> None:
    assert len(MISTAKES) + len(TWO_RANKS) == 20
