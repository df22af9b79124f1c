"""The fine-tuning case from the command line: the tiny recipe to its target, two ranks, faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from statistics import fmean

import pytest

from trainmark.record.record import read

pytestmark = pytest.mark.nightly

CHANCE = 0.25  # four choices
MARGIN = 0.5


@pytest.fixture(scope="module")
def trainmark(tmp_path_factory):
    place = tmp_path_factory.mktemp("llama")

    def call(*words, limit_s=280):
        env = os.environ | {"TRAINMARK_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, "-m", "trainmark", *words],
            env=env, cwd=place, capture_output=True, text=True, check=False, timeout=limit_s,
        )  # fmt: skip

    call.place = place
    return call


@pytest.mark.timeout(1500)  # a minute on an idle machine, several on a busy one
def test_the_tiny_recipe_learns_to_summarise_and_to_answer(trainmark):
    words = ("run", "llama2_7b_lora", "--out", "run", "--quiet", "--timeout", "1400")
    done = trainmark(*words, limit_s=1450)
    assert done.returncode == 0, done.stdout + done.stderr
    run = trainmark.place / "run"
    record = read(run)
    assert CHANCE + MARGIN <= record.quality.value <= record.quality.best_possible == 1.0
    detail, parts = record.quality.history[-1].detail, record.quality.history[-1].parts
    assert {kind: len(part) for kind, part in parts.items()} == {
        "subject": 57, "items by shots": 1,
    }  # fmt: skip
    # Every subject asks as many: their mean is the score.
    assert fmean(parts["subject"].values()) == pytest.approx(record.quality.value)
    assert (detail["shots"], detail["cut"]) == (5, 0)
    assert sorted(path.name for path in (run / "artifacts" / "adapters").iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors",
    ]  # fmt: skip
    assert record.spans.by_name_ns["checkpoint"] > 0
    name = "nlp_llama2-7b-lora-tiny_sp_bs6_fp32_1_speed"
    speed = json.loads((run / "index" / name).read_text())
    assert (speed["JOB_FAIL_FLAG"], speed["UNIT"]) == (0, "tokens/s")
    for lang in ("en", "zh"):
        assert "LoraConfig(" in (run / f"page.{lang}.md").read_text()


@pytest.mark.timeout(600)
def test_two_ranks_train_random_weights_for_speed_only(trainmark):
    done = trainmark(
        "run", "llama2_7b_lora", "--nproc", "2", "--out", "pair", "--quiet", "init=random",
        "fsdp=true", "steps=12", "target=none", "eval_every_epochs=none", "mmlu_mode=off",
        "warmup_steps=2", "lora_targets=q_proj,v_proj", limit_s=550,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = read(trainmark.place / "pair")
    assert "performance-only" in record.labels
    assert record.counts.samples == 12 * 12
    assert record.environment["job"]["parallel"] == {"data": 2, "fsdp": True}
    assert "FSDP2" in (trainmark.place / "pair" / "page.en.md").read_text()
