"""Recipe and device decide which operation computes the loss."""

from __future__ import annotations

from typing import Any

import pytest

from trainmark.recipe import Recipe
from trainmark.train.kernels import choose_kernels


@pytest.mark.parametrize(
    ("fields", "torch_type", "source"),
    [
        ({}, "cpu", "own"),
        ({}, "cuda", "library"),
        ({"kernels": "library"}, "cpu", "library"),
        ({"kernels": "own"}, "cuda", "own"),
    ],
)
def test_kernel_choice_depends_on_recipe_and_device(
    fields: dict[str, Any], torch_type: str, source: str
) -> None:
    # Without a choice in the recipe, our kernel is for the CPU.
    # "own": the kernel of Trainmark; "library": that of torch.
    kernels = choose_kernels(Recipe(**fields), torch_type)
    assert kernels.describe_used("cross_entropy") == {"cross_entropy": source}
