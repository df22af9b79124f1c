"""Whole runs on a simulated accelerator, from the command line to the record."""

from __future__ import annotations

import os

import pytest

from support.old_torch import needs_python_devices
from support.stand_in_jobs import SITE
from trainmark.record.record import read_record

pytestmark = [pytest.mark.nightly, needs_python_devices]

SHORT = ("warmup_steps=1", "window_steps=2", "target_value=none", "--quiet")
STEPS = 5
FP32_ERROR = 1e-6  # relative, of losses on two devices


@pytest.fixture(autouse=True)
def install_vendor(monkeypatch):
    """Let the programs that a test starts import the simulated vendor's package from ``SITE``."""
    paths = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.fixture
def run(trainmark, tmp_path, monkeypatch):
    """Return a function that runs ``STEPS`` steps; it returns the record and the exit code.

    Its arguments: the case, the run's folder, words of the command line; environment variables.
    ``SHORT`` has options that all runs here share. The device ``standin`` is simulated on the CPU.
    """

    def call(case, out, *args, device="standin", **variables):
        """Run a case into the folder ``out``; return its record and the exit code."""
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        args = ("--out", out, "--device", device, f"max_steps={STEPS}", *SHORT, *args)
        process = trainmark("run", case, *args)
        assert (tmp_path / out / "record.json").exists(), process.stderr
        return read_record(tmp_path / out), process.returncode

    return call


def test_every_training_feature_runs_on_the_stand_in_device(run, tmp_path):
    """``STEPS``: how many steps ``run`` trains on the simulated device, named ``standin``."""
    record, code = run(
        "llama2_7b_lora",
        "llama",
        "precision=bf16",
        "gas=2",  # micro-batches of a step
        "checkpoint_activations=true",
        "mmlu_mode=off",
        STANDIN_OPERATION_NS="30000",  # how long the simulated device takes for an operation
    )
    assert (code, record.status, record.cause) == (0, "passed", None)
    assert record.plan.device.vendor == record.plan.device.torch_type == "standin"
    assert record.counts.micro_batches == 2 * record.counts.steps == 2 * STEPS
    assert record.environment["precision_flags"]["autocast"] == "bf16"
    assert record.environment["driver"] == "1.0"
    assert record.environment["variables"]["STANDIN_OPERATION_NS"] == "30000"
    assert record.quality.history[-1].detail["val_loss"] > 0
    assert (tmp_path / "llama/artifacts/adapters/adapter_model.safetensors").exists()
    figures = record.figures
    assert figures["mem_total"].value == 8 << 30  # of a stand-in, if no variable says otherwise
    # More than weights and adapters alone, a megabyte. The peak is 14.9 MB; it would be 22.5 MB if
    # activations were kept and not recomputed.
    assert 1 << 20 < figures["allocator_peak"].value < 18_000_000
    assert figures["mem"].value == figures["allocator_peak"].value
    assert figures["p_core"].value >= figures["p_train"].value >= figures["p_whole"].value


@pytest.mark.parametrize(
    ("case", "args"),
    [
        ("gpt_megatron", ("tensor_parallel=2",)),  # DTensors and functional collectives
        ("dlrm_criteo", ()),  # all-to-all, and DDP for the dense part
    ],
)
def test_two_simulated_devices_train_as_two_ranks_on_a_cpu(run, case, args):
    """``FP32_ERROR``: the relative error that rounding in fp32 may cause between two devices.

    ``run`` trains five steps of a case on simulated devices unless another is named; it returns
    the record and the exit code.
    """
    record, code = run(case, case, "--nproc", "2", *args)
    expected, _ = run(case, f"{case}-cpu", "--nproc", "2", *args, device="cpu")
    assert (code, record.status, expected.status) == (0, "passed", "passed")
    assert record.steps.loss == pytest.approx(expected.steps.loss, rel=FP32_ERROR)
    # One of the qualities is an AUC, which changes in steps: if two rows swap their order.
    assert record.quality.value == pytest.approx(expected.quality.value, rel=1e-5)
    assert record.environment["collective"] == "gloo through host memory"
    assert [rank.counts for rank in record.ranks] == [rank.counts for rank in expected.ranks]


def test_a_full_device_ends_the_run_as_out_of_memory(run):
    """``run`` runs the case toy on a simulated device, which here has 300,000 bytes of memory.

    ``bs=512``: samples of a batch. The result is the record and the exit code.
    """
    # The model fits, but not the activations of a large batch.
    record, code = run("toy", "full", "bs=512", STANDIN_MEMORY_BYTES="300000")
    assert (code, record.status) == (1, "oom")
    assert (record.cause.kind, record.cause.rank) == ("oom", 0)
    assert record.cause.type == "OutOfMemoryError"
