"""Whole runs on a simulated accelerator, from the command line to the record."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from stand_in_jobs import SITE
from trainmark.record.record import read

pytestmark = pytest.mark.nightly

SHORT = ("warmup_steps=1", "window_steps=2", "target_value=none", "--quiet")
STEPS = 5
FP32_ERROR = 1e-6


@pytest.fixture(scope="module")
def trainmark(tmp_path_factory):
    """Run the program where the vendor's package is installed."""
    place = tmp_path_factory.mktemp("runs")

    def call(*words, **variables):
        paths = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "TRAINMARK_CACHE": str(place / "cache"),
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        return subprocess.run(
            [sys.executable, "-m", "trainmark", *words],
            env=env, cwd=place, capture_output=True, text=True, check=False, timeout=280,
        )  # fmt: skip

    call.place = place
    return call


def run(trainmark, case, out, *words, steps=STEPS, device="standin", **variables):
    """Return the record of a run and the exit code."""
    words = ("--out", out, "--device", device, f"max_steps={steps}", *SHORT, *words)
    done = trainmark("run", case, *words, **variables)
    assert (trainmark.place / out / "record.json").exists(), done.stderr
    return read(trainmark.place / out), done.returncode


def windows(trainmark, out):
    events = (trainmark.place / out / "events.rank0.jsonl").read_text().splitlines()
    return [item for item in map(json.loads, events) if item["event"] == "window"]


def test_accumulation_autocast_checkpointing_evaluation_and_artifacts(trainmark):
    record, code = run(
        trainmark, "llama2_7b_lora", "llama", "precision=bf16", "gas=2",
        "checkpoint_activations=true", "mmlu_mode=off", STANDIN_OPERATION_NS="30000",
    )  # fmt: skip
    assert (code, record.status, record.cause) == (0, "passed", None)
    assert record.plan.device.vendor == record.plan.device.torch_type == "standin"
    assert record.counts.micro_batches == 2 * record.counts.steps == 2 * STEPS
    assert record.environment["precision_flags"]["autocast"] == "bf16"
    assert record.environment["driver"] == "1.0"
    assert record.environment["variables"]["STANDIN_OPERATION_NS"] == "30000"
    assert record.quality.history[-1].detail["val_loss"] > 0
    assert (trainmark.place / "llama/artifacts/adapters/adapter_model.safetensors").exists()
    figures = record.figures
    assert figures["mem_total"].value == 8 << 30
    # Weights and adapters alone are a megabyte; a whole step's activations are not kept.
    assert 1 << 20 < figures["allocator_peak"].value == figures["mem"].value < 64 << 20
    assert figures["p_core"].value >= figures["p_train"].value >= figures["p_whole"].value


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("gpt_megatron", ("tensor_parallel=2",)),  # DTensors and functional collectives
        ("dlrm_criteo", ()),  # all-to-all, and DDP for the dense part
    ],
)
def test_two_ranks_train_as_on_a_cpu(trainmark, case, words):
    found, code = run(trainmark, case, case, "--nproc", "2", *words)
    expected, _ = run(trainmark, case, f"{case}-cpu", "--nproc", "2", *words, device="cpu")
    assert (code, found.status, expected.status) == (0, "passed", "passed")
    assert found.steps.loss == pytest.approx(expected.steps.loss, rel=FP32_ERROR)
    assert found.quality.value == pytest.approx(expected.quality.value, rel=1e-5)
    assert found.environment["collective"] == "gloo through host memory"
    assert [x.counts for x in found.ranks] == [x.counts for x in expected.ranks]


def test_a_full_device_ends_the_run_as_out_of_memory(trainmark):
    record, code = run(trainmark, "toy", "full", "bs=512", STANDIN_MEMORY_BYTES="300000")
    assert (code, record.status) == (1, "oom")
    assert (record.cause.kind, record.cause.rank) == ("oom", 0)
    assert record.cause.type == "OutOfMemoryError"
