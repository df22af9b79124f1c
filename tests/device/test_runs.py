"""Whole runs on the device: targets reached, faults named; see docs/faults.md."""

from __future__ import annotations

import pytest

from support import faulty_runs, tiny_jobs
from support.real_runs import read_checked_record


@pytest.fixture
def run(trainmark, vendor, tmp_path):
    """Return a function that runs a case on the device; it returns the record of a passed run.

    Its arguments are the name of the case and further ones of ``trainmark run``. ``trainmark`` runs
    the program until it ends.
    """

    def call(case, *args):
        out = tmp_path / "run"
        process = trainmark("run", case, "--device", vendor.name, "--out", str(out), *args)
        assert process.returncode == 0, process.stdout + process.stderr
        record = read_checked_record(out)
        assert record.status == "passed"
        assert record.plan.device.vendor == vendor.name
        return record

    return call


def is_target_reached(record):
    """Return whether the quality in a run's record meets the target in its plan."""
    return record.plan.target.reached(record.quality.value)


def test_the_smallest_case_reaches_its_target(run):
    # ``run`` trains the case on the device and returns the record. ``is_target_reached`` compares
    # the quality in it with the case's target; ``mem`` and ``mem_total`` are bytes of memory.
    record = run("toy")
    assert is_target_reached(record)
    used, total = (record.figures[name].value for name in ("mem", "mem_total"))
    assert 0 < used <= total


@pytest.mark.parametrize("case", [name for name in tiny_jobs.CASES if name != "toy"])
def test_every_case_reaches_its_target(accelerator, run, case):
    assert is_target_reached(run(case))


def test_two_devices_train_together(accelerator, run):
    if accelerator.count() < 2:
        pytest.skip("one device here")
    # ``run`` trains the case toy, here with two ranks, a device each. ``is_target_reached``
    # compares the quality in the record with the case's target.
    record = run("toy", "--nproc", "2")
    assert is_target_reached(record)
    assert len(record.ranks) == 2


@pytest.fixture
def start_faulty_run(accelerator, start_run):
    """Return a function that starts a run of the case ``faulty`` on the device.

    ``fault=NAME`` among its arguments chooses the fault.
    """

    def start(*args, **more):
        return start_run("--device", accelerator.name, *args, **more)

    return start


def test_killed_rank_is_the_recorded_cause(start_faulty_run, fifo):
    faulty_runs.check_killed_rank(start_faulty_run, fifo, rank=0)


def test_hang_is_the_recorded_cause(start_faulty_run, fifo):
    faulty_runs.check_hang(start_faulty_run, fifo, ranks=1)


@pytest.mark.parametrize(
    "fault",
    [faulty_runs.check_nan_loss, faulty_runs.check_divergence, faulty_runs.check_out_of_memory],
)
def test_fault_is_the_recorded_cause(start_faulty_run, fault):
    fault(start_faulty_run)
