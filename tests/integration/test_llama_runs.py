"""The fine-tuning case from the command line over two ranks."""

from __future__ import annotations

import shlex

import pytest

from trainmark.record.record import read_record

pytestmark = pytest.mark.nightly


def test_two_ranks_train_random_weights_for_speed_only(trainmark, tmp_path):
    """A run without a target measures the speed alone; ``performance-only`` is its label."""
    process = trainmark(
        *shlex.split("run llama2_7b_lora --nproc 2 --out pair --quiet"),
        *shlex.split("init=random fsdp=true steps=12 target=none eval_every_epochs=none"),
        *shlex.split("mmlu_mode=off warmup_steps=2 lora_targets=q_proj,v_proj"),
    )
    assert process.returncode == 0, process.stdout + process.stderr
    record = read_record(tmp_path / "pair")
    # The settings above: both ranks hold parts of one model (``fsdp``), 12 steps, no evaluation.
    assert "performance-only" in record.labels
    assert record.counts.samples == 12 * 2 * 6  # steps, ranks, and the recipe's micro-batch
    assert record.environment["job"]["parallel"] == {"data": 2, "fsdp": True}
    assert "FSDP2" in (tmp_path / "pair" / "page.en.md").read_text()
