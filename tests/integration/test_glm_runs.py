"""The GLM case from the command line: learning, and downloads with a checkpoint to a run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from trainmark.cases import load
from trainmark.cases.glm_superglue.data import generate
from trainmark.cases.glm_superglue.model import build_model
from trainmark.record.record import read

pytestmark = pytest.mark.nightly

SMALL = ("num_heads=1", "target=none", "steps=4")


@pytest.mark.timeout(1500)  # a minute on an idle machine, several on a busy one
def test_the_tiny_recipe_learns_to_read(trainmark, tmp_path):
    words = ("run", "glm_superglue", "--out", "run", "--quiet", "--timeout", "1400")
    done = trainmark(*words, limit_s=1450)
    assert done.returncode == 0, done.stdout + done.stderr
    record = read(tmp_path / "run")
    assert 0.9 <= record.quality.value <= record.quality.best_possible == 1.0
    assert record.quality.eval_samples == record.plan.data.eval_samples == 500
    assert [point.step % 200 for point in record.quality.history[:-1]] == [0] * (
        len(record.quality.history) - 1
    )  # 3,200 samples, 16 a step
    assert record.counts.sequences > 3 * record.counts.samples
    assert record.counts.tokens_padded == 52 * record.counts.sequences
    rates = [record.figure(name) for name in ("p_train", "p_train_sequences", "p_train_tokens")]
    counts = [record.counts.samples, record.counts.sequences, record.counts.tokens]
    assert rates[1] / rates[0] == pytest.approx(counts[1] / counts[0], rel=1e-9)
    assert rates[2] / rates[0] == pytest.approx(counts[2] / counts[0], rel=1e-9)
    speed = json.loads((tmp_path / "run/index/nlp_glm-tiny_sp_bs16_fp32_1_speed").read_text())
    assert (speed["mission_name"], speed["UNIT"]) == ("阅读理解", "samples/s")


def write_downloads(folder):
    """Write generated passages and a small checkpoint in the original's layout."""
    case = load("glm_superglue")
    recipe = case.recipes["tiny"]
    folder.mkdir()
    generate(folder, recipe)
    for split, lines in (("train", 200), ("val", 40)):
        file = folder / f"{split}.jsonl"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:lines]))
    model = build_model(replace(recipe, num_layers=1).shape, seed=5)
    weights = folder / "blocklm" / "300"
    weights.mkdir(parents=True)
    torch.save({"module": model.state_dict()}, weights / "mp_rank_00_model_states.pt")
    (weights.parent / "latest_checkpointed_iteration.txt").write_text("300")


def test_downloads_become_a_folder_and_a_checkpoint_a_run_on_two_ranks(trainmark, tmp_path):
    write_downloads(tmp_path / "raw")
    done = trainmark("prepare", "glm_superglue", "--from", "raw", "--data", "data")
    assert done.returncode == 0, done.stderr
    words = ("run", "glm_superglue", "--data", "data", "--recipe", "tiny", "init=pretrained")
    words += SMALL
    cadence = ("eval_every_samples=64", "eval_from_sample=32")
    done = trainmark(*words, "num_layers=1", *cadence, "--nproc", "2", "--out", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    record = read(tmp_path / "run")
    # 32 samples a step: due at 32, at 96, and at the end.
    assert [point.step for point in record.quality.history] == [1, 3, 4]
    assert {point.samples for point in record.quality.history} == {40}
    assert record.counts.samples == 128
    job = record.environment["job"]
    assert (job["init"], job["checkpoint"]["unexpected"]) == ("pretrained", [])
    done = trainmark(*words, "num_layers=2", "--out", "other")
    assert done.returncode == 2
    assert "transformer.layers.1" in done.stderr
    assert not (tmp_path / "other").exists()
