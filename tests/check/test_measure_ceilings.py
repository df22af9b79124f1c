"""What ``trainmark ceilings`` refuses before it starts anything, and what cases let it measure."""

from __future__ import annotations

from typing import Any

import pytest

from trainmark import cases
from trainmark.check.ceilings import measure_ceilings
from trainmark.devices.vendors.cpu import Cpu
from trainmark.errors import EnvironmentFault, TrainmarkError, UsageError
from trainmark.launch.stopping import StopRequest


@pytest.mark.parametrize(
    ("changes", "kind", "where"),
    [
        ({"device": "abacus"}, UsageError, "--device"),
        ({"nproc": Cpu().count() + 1}, EnvironmentFault, "--nproc"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    changes: dict[str, Any], kind: type[TrainmarkError], where: str
) -> None:
    options = {"device": "cpu", "nproc": 1, "budget_s": 0.1, "full": False}
    with pytest.raises(kind) as refused:
        measure_ceilings(StopRequest(), **(options | changes), timeout_s=1.0)
    assert refused.value.where == where
    assert refused.value.exit_code == 2


def test_layers_are_those_of_the_standard_recipes() -> None:
    loaded = {case.name: case for case in cases.load_all()[0]}

    def rows(name: str, recipe: str = "standard-1x1") -> int:
        found = loaded[name].recipes[recipe]
        return found.micro_batch_size * getattr(found, "seq_length", 1)

    gpt, glm, dlrm = (loaded[name].recipes["standard-1x1"]
                      for name in ("gpt_megatron", "glm_superglue", "dlrm_criteo"))  # fmt: skip
    wide = gpt.hidden_size
    assert loaded["gpt_megatron"].layers == {
        "mlp": (rows("gpt_megatron"), wide, 4 * wide),
        "head": (rows("gpt_megatron"), wide, gpt.padded_vocab_size),
    }
    candidates = 1 + glm.max_wrong_choices
    assert loaded["glm_superglue"].layers == {
        "mlp": (candidates * rows("glm_superglue"), glm.hidden_size, 4 * glm.hidden_size)
    }
    bottom, top = ([int(n) for n in text.split(",")] for text in
                   (dlrm.bottom_layers, dlrm.top_layers))  # fmt: skip
    assert loaded["dlrm_criteo"].layers == {
        "bottom": (rows("dlrm_criteo"), bottom[0], bottom[1]),
        "top": (rows("dlrm_criteo"), top[0], top[1]),
    }
    assert {shape[0] for shape in loaded["distilbert_sst2"].layers.values()} == {
        rows("distilbert_sst2")
    }
    assert {shape[0] for shape in loaded["llama2_7b_lora"].layers.values()} == {
        rows("llama2_7b_lora", "standard-bf16-1x1")
    }
