"""Model FLOPs against torch's own counter: every case that has a formula, at two sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainmark import cases
from trainmark.cases import ensure_generated_data
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.protocols import JobContext
from trainmark.rank.watch import StepWatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def keep_recipe(data: Any) -> Any:
    return data


def change_sizes(data: Any, sizes: dict[str, int]) -> Any:
    config = type(data.config).model_validate({**data.config.raw, **sizes})
    return replace(data, config=config)


def widen_distilbert(data: Any) -> Any:
    sizes = {"dim": 96, "hidden_dim": 200, "n_layers": 3, "n_heads": 4}
    return change_sizes(data, sizes)


def widen_llama(data: Any) -> Any:
    """Return the loaded data with a larger model, whose heads share keys and values.

    The tiny model has 4 heads, so that two of them share one head of keys and values. The other
    sizes are any, different from each other.
    """
    sizes = {
        "hidden_size": 96,
        "intermediate_size": 200,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
    }
    return change_sizes(data, sizes)


# Case, what differs from its tiny recipe, what is done to the data that it loads.
SIZES: list[tuple[str, dict[str, Any], Callable[[Any], Any]]] = [
    ("distilbert_sst2", {}, keep_recipe),
    ("distilbert_sst2", {"seq_length": 48}, widen_distilbert),
    ("glm_superglue", {}, keep_recipe),
    ("glm_superglue", {"hidden_size": 128, "num_layers": 3, "seq_length": 60}, keep_recipe),
    ("glm_superglue", {"trim_padding": True}, keep_recipe),
    ("gpt_megatron", {}, keep_recipe),
    ("gpt_megatron", {"hidden_size": 96, "num_layers": 3, "vocab_size": 300}, keep_recipe),
    ("llama2_7b_lora", {}, keep_recipe),
    ("llama2_7b_lora", {"init": "random", "seq_length": 64}, widen_llama),
    *(
        ("llama2_7b_lora", {"init": "random", "lora_targets": targets}, keep_recipe)
        for targets in ("q_proj,v_proj", "v_proj", "k_proj,gate_proj", "down_proj")
    ),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("generated")


@pytest.mark.parametrize(("name", "fields", "change_data"), SIZES)
def test_model_flops_are_what_the_counter_counts(
    name: str, fields: dict[str, Any], change_data: Callable[[Any], Any], root: Path
) -> None:
    # ``SIZES``: cases, fields that differ from their tiny recipe, and functions that change the
    # data they load.
    case = cases.load(name)
    recipe = replace(case.recipes["tiny"], micro_batch_size=4, **fields)
    module = cases.import_part(name, "job")
    context = JobContext(
        recipe=recipe,
        data_dir=ensure_generated_data(case, recipe, root),
        rank=0,
        world_size=1,
        device=CpuDevice(threads=1),
    )
    # The data of some cases hold the sizes of the model, which ``change_data`` may change.
    job = module.build(context, change_data(module.load_data(context)))
    # One batch as a whole step, whatever the recipe's accumulation.
    batch = replace(next(iter(job.batches(0))), closes_step=True)
    # No fused kernels: they compute scores a second time in the backward pass, which is no model
    # FLOP. ``flags``: the precision flags, which do not matter here.
    with sdpa_kernel(SDPBackend.MATH), StepWatch(flags=dict) as watch:
        job.step(iter([batch]))
    # ``counted``: FLOPs of the matmuls that torch ran, which include attention's.
    counted = watch.flops.total()
    assert counted > 1e7  # enough for a comparison to mean something
    assert job.model_flops(batch.counts) == pytest.approx(counted, rel=0.01)
