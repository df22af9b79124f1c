"""Commands on the hollow card, from start to end: they say that nothing was computed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from trainmark.record.record import read_record

ROOT = Path(__file__).parents[2]
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")
PARTS_WITHOUT_ARITHMETIC = ("conformance", "memory", "monitor", "time")  # of the device contract
# Codes of what is wrong with products that were not computed.
WRONG_PRODUCTS = {"ceiling_zeros", "ceiling_not_finite", "ceiling_error"}


@pytest.fixture
def call(tmp_path):
    """Return a function that runs a module of Python; it returns exit code and output.

    Its keyword arguments are environment variables; no call may print a traceback.
    """

    def run(module, *args, **variables):
        """Run ``python -m module`` in the project's folder; ``variables``: of the environment."""
        env = os.environ | {"TRAINMARK_CACHE": str(tmp_path / "cache")} | variables
        process = subprocess.run(
            [sys.executable, "-m", module, *map(str, args)],
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in process.stderr, process.stderr
        return process.returncode, process.stdout

    return run


def test_list_devices_shows_the_card(call):
    # The simulated card calls itself an H200, and there is one. A row is of a vendor; ``call``
    # returns exit code and output.
    code, output = call("trainmark", "list", "devices", "--json")
    (card,) = [row for row in json.loads(output)["devices"] if row["name"] == "nvidia"]
    assert (code, card["present"], card["products"]) == (0, 1, "NVIDIA H200")


def test_doctor_opens_the_card_in_every_precision(call):
    """``PRECISIONS``: those that the simulated card, an H200, supports, from fp32 to fp8.

    ``call`` runs a module of Python, and returns the exit code and the output.
    """
    code, output = call("trainmark", "doctor", "--device", "nvidia")
    assert code in (0, 1)  # 1: other programs use this machine
    assert "NVIDIA H200" in output
    assert f"can open each rank's device; supported precisions: {', '.join(PRECISIONS)}" in output
    # The version that the simulated card reports.
    assert "nvml 13.580.0 can read 1 device" in output


def test_parts_of_the_device_contract_that_need_no_arithmetic_hold(call):
    """The other parts need results, or memory readings of other processes.

    ``PARTS_WITHOUT_ARITHMETIC``: names of the contract's files. One test of theirs is left out:
    it reads the memory that another process takes. ``call`` runs a module of Python, and
    returns the exit code and the output.
    """
    files = (f"tests/device/test_{name}.py" for name in PARTS_WITHOUT_ARITHMETIC)
    code, output = call(
        "pytest",
        *files,
        *("--device", "nvidia"),
        "--deselect",
        "tests/device/test_monitor.py::test_rank_takes_memory_on_its_device_only",
    )
    assert code == 0, output


def test_ceilings_say_that_nothing_was_computed(call):
    """The simulated card launches matmuls, but computes no product.

    ``--budget-s``: for how many seconds each rate is measured. ``PRECISIONS`` are those in
    which products are measured; a point is one size of the matrices. ``WRONG_PRODUCTS`` are the
    codes of what may be wrong: zeros, a value that is not finite, or a large error. ``call``
    runs a module of Python, and returns the exit code and the output.
    """
    code, output = call("trainmark", "ceilings", "--device", "nvidia", "--budget-s", 0.01, "--json")
    assert code == 1  # some results are wrong
    measurements = json.loads(output)["ranks"][0]["measurements"]
    matmuls = [
        measurement for measurement in measurements if measurement["name"].startswith("matmul")
    ]
    assert [measurement["name"] for measurement in matmuls] == [
        f"matmul_{name}" for name in PRECISIONS
    ]
    for matmul in matmuls:
        assert matmul["best"] is None
        # Products are what the memory held before: zeros, or remains of other tensors.
        wrong = [point for point in matmul["points"] if point["status"] == "wrong"]
        assert {point["why"]["code"] for point in wrong} <= WRONG_PRODUCTS
        assert wrong


def test_run_faster_than_the_published_peak_fails(call, tmp_path):
    """The hollow card calls itself an H200 and computes nothing, so a matmul takes no time.

    ``call`` runs a module of Python, and returns the exit code and the output.
    """
    code, _ = call("trainmark", "run", "toy", "--device", "nvidia", "--out", tmp_path / "run")
    record = read_record(tmp_path / "run")
    assert (code, record.status) == (1, "failed")
    assert record.cause.kind == "impossible_figure"
    assert record.cause.message.code == "matmul_above_peak"


def test_run_that_trains_nothing_fails(call, tmp_path):
    """The card computes nothing; its name has no published peak, and 1 ms an operation is slow.

    So no figure is impossibly high, and the only fault is that the parameters did not change.
    The two variables set the name of the simulated card, and how long each of its operations
    takes. ``call`` runs a module of Python, and returns the exit code and the output.
    """
    code, _ = call(
        *shlex.split("trainmark run toy --device nvidia"),
        *("--out", tmp_path / "run"),
        HOLLOW_NAME="Hollow card",
        HOLLOW_OPERATION_NS="1000000",
    )
    record = read_record(tmp_path / "run")
    assert (code, record.status) == (1, "failed")
    assert record.cause.kind == "not_trained"
    assert record.cause.message.code == "parameters_unchanged_in_window"


def test_run_out_of_memory_leaves_its_record(call, tmp_path):
    """Another program holds memory that NVML does not show, as in a container.

    So planning finds 1000 MiB, enough for the run, but 420 of them cannot be allocated, and the
    remaining 580 are too few. These variables are of the simulated card. Its other name has no
    published peak, and each of its operations takes 1 ms, so that no figure is impossibly high:
    memory is the only fault. ``call`` runs a module of Python, and returns the exit code and
    the output.
    """
    code, _ = call(
        *shlex.split("trainmark run gpt_megatron --device nvidia"),
        *("--out", tmp_path / "run"),
        HOLLOW_NAME="Hollow card",
        HOLLOW_MEMORY_MIB="1000",
        HOLLOW_HIDDEN_MIB="420",
        HOLLOW_OPERATION_NS="1000000",
    )
    record = read_record(tmp_path / "run")
    assert (code, record.status, record.cause.kind) == (1, "oom", "oom")


def test_benchmark_of_a_card_names_sections_that_computed_nothing(call, tmp_path):
    """The simulated card computes nothing, so its ceilings are wrong and its runs train nothing.

    ``call`` runs a module of Python, and returns the exit code and the output.
    """
    code, output = call(
        *shlex.split("benchmarks.card --device nvidia --size tiny"),
        *("--sections", "ceilings overhead"),
        *("--results", tmp_path / "results"),
        *("--scratch", tmp_path / "scratch"),
    )
    assert code == 1
    page = (tmp_path / "results" / "nvidia-h200-tiny.md").read_text()
    assert "**Nothing was computed:**" in page
    assert "NotTrainedError: steps" in page
    assert "ceilings: finished" in output
    assert "ceilings: nothing was computed" in output
    assert "overhead: failed" in output
