"""``compile=reduce-overhead``: allowed where a step can be replayed, else refused before a run."""

from __future__ import annotations

from typing import Any

import pytest

from trainmark.devices.vendors.cpu import Cpu
from trainmark.errors import UsageError
from trainmark.plan.choosing import choose
from trainmark.plan.overrides import changes
from trainmark.plan.request import RunRequest
from trainmark.recipe import Recipe


def recipe_of(case: str, *, nproc: int = 1, **overrides: str) -> Recipe:
    words = {"compile": "reduce-overhead", **overrides}
    return choose(RunRequest(case=case, recipe="tiny", overrides=words, nproc=nproc)).recipe


@pytest.mark.parametrize("case", ["toy", "distilbert_sst2", "gpt_megatron", "llama2_7b_lora"])
def test_a_step_of_fixed_shapes_may_be_replayed(case: str) -> None:
    recipe = recipe_of(case)
    assert recipe.compile == "reduce-overhead"
    assert recipe.replays_graphs
    tiny = choose(RunRequest(case=case, recipe="tiny")).recipe
    assert changes(recipe, named=tiny, standard=tiny) == ({"compile": "reduce-overhead"}, {})


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("toy", {"grad_accum_steps": "2"}),
        ("toy", {"warmup_steps": "2"}),
        ("toy", {"nproc": 2}),
        ("gpt_megatron", {"checkpoint_activations": "true"}),
        ("glm_superglue", {}),
        ("dlrm_criteo", {}),
    ],
)
def test_what_a_graph_cannot_replay_is_refused(case: str, words: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        recipe_of(case, **words)
    assert caught.value.where == "recipe field compile"
    plainly = {**words, "compile": "true"}
    if case != "dlrm_criteo":  # which does not compile at all
        assert recipe_of(case, **plainly).compile is True


def test_a_processor_replays_no_graphs() -> None:
    refusal = Cpu().refuse(Recipe(compile="reduce-overhead"), 1)
    assert refusal is not None
    assert "compile=true" in refusal.way_out
    assert Cpu().refuse(Recipe(compile=True), 1) is None
