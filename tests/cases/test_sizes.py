"""Sizes that cases derive from recipes equal those that their jobs count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support import tiny_jobs
from support.fakes import SyncDevice
from trainmark import cases
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.protocols import Counts

if TYPE_CHECKING:
    from pathlib import Path

CHANGES: dict[str, list[dict[str, Any]]] = {
    "toy": [{}],
    "distilbert_sst2": [{}, {"seq_length": 16}],
    "glm_superglue": [{}, {"num_layers": 3, "hidden_size": 32}],
    "llama2_7b_lora": [{}, {"lora_rank": 4, "lora_targets": "q_proj,down_proj"}],
    "dlrm_criteo": [{}, {"top_layers": "32,16,1", "bottom_layers": "32,16"}],
    "gpt_oss_20b": [{}, {"num_layers": 3, "num_experts": 4, "top_k": 3, "ffn_size": 96}],
    "gpt_megatron": [{}, {"num_layers": 3, "hidden_size": 32, "seq_length": 48}],
    "llama31_8b": [{}, {"num_layers": 2, "ffn_size": 96, "num_kv_heads": 4}],
}


@pytest.mark.parametrize(
    ("name", "changes"),
    [(name, fields) for name, field_sets in CHANGES.items() for fields in field_sets],
)
def test_planned_sizes_equal_those_of_the_job(
    name: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``changes``: fields that differ from the tiny recipe of the case ``name``, as ``CHANGES`` has
    # them. A job knows its sizes from its model; ``find_sizes`` computes them without a model.
    monkeypatch.setattr(CpuDevice, "matmul_rate", SyncDevice.matmul_rate)  # not measured, so quick
    job = tiny_jobs.build(name, CpuDevice(threads=1), tmp_path, **changes)
    facts = dict(job.facts())
    recipe = job.context.recipe
    sizes = cases.import_part(name, "sizes").find_sizes(recipe, facts)
    assert "parameters" in sizes.facts  # the least that a plan needs
    # What both know is equal; each may know more.
    assert {key: facts[key] for key in sizes.facts if key in facts} == {
        key: value for key, value in sizes.facts.items() if key in facts
    }
    # FLOPs of three samples without padding.
    tokens = 3 * getattr(recipe, "seq_length", 1)
    counts = Counts(samples=3, sequences=3, tokens=tokens, tokens_padded=tokens)
    if sizes.flops is not None:
        assert sizes.flops(counts) == pytest.approx(job.model_flops(counts), rel=1e-12)


def test_every_shipped_case_derives_sizes_from_its_recipe() -> None:
    assert {name for name in cases.list_names() if cases.is_shipped(name)} == CHANGES.keys()
    assert all(cases.has_part(name, "sizes") for name in CHANGES)
