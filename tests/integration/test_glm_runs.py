"""The GLM case from the command line: downloads with a checkpoint become a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from trainmark.cases import load
from trainmark.cases.glm_superglue.data import generate
from trainmark.cases.glm_superglue.model import build_model
from trainmark.record.record import read_record

pytestmark = pytest.mark.nightly

SMALL = ("num_heads=1", "target=none", "steps=4")


def write_downloads(folder):
    """Write 200 + 40 generated passages and a checkpoint of one layer in the original's layout.

    The weights are random, of any seed.
    """
    case = load("glm_superglue")
    recipe = case.recipes["tiny"]
    folder.mkdir()
    generate(folder, recipe)
    for split, lines in (("train", 200), ("val", 40)):
        file = folder / f"{split}.jsonl"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:lines]))
    model = build_model(replace(recipe, num_layers=1).shape, seed=5)
    weights = folder / "blocklm" / "300"  # the iteration after which it was saved
    weights.mkdir(parents=True)
    torch.save({"module": model.state_dict()}, weights / "mp_rank_00_model_states.pt")
    (weights.parent / "latest_checkpointed_iteration.txt").write_text("300")


def test_downloads_are_prepared_and_their_checkpoint_trains_on_two_ranks(trainmark, tmp_path):
    """``write_downloads`` writes 240 passages and a checkpoint of one layer into ``raw``.

    ``SMALL`` sets four steps, no target, and a single head of attention.
    """
    write_downloads(tmp_path / "raw")
    process = trainmark("prepare", "glm_superglue", "--from", "raw", "--data", "data")
    assert process.returncode == 0, process.stderr
    args = ("run", "glm_superglue", "--data", "data", "--recipe", "tiny", "init=pretrained")
    args += SMALL
    cadence = ("eval_every_samples=64", "eval_from_sample=32")
    process = trainmark(*args, "num_layers=1", *cadence, "--nproc", "2", "--out", "run")
    assert process.returncode == 0, process.stdout + process.stderr
    record = read_record(tmp_path / "run")
    # Two ranks with 16 samples each take 32 a step. Evaluations are due after 32 samples, 64 later
    # at 96, and at the end, after 128: that is after steps 1, 3 and 4.
    assert [point.step for point in record.quality.history] == [1, 3, 4]
    assert {point.samples for point in record.quality.history} == {40}  # passages of val.jsonl
    assert record.counts.samples == 4 * 32
    job = record.environment["job"]
    assert (job["init"], job["checkpoint"]["unexpected"]) == ("pretrained", [])
    # The checkpoint has one layer: it does not fit a model of two.
    process = trainmark(*args, "num_layers=2", "--out", "other")
    assert process.returncode == 2
    assert "transformer.layers.1" in process.stderr
    assert not (tmp_path / "other").exists()
