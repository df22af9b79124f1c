"""Whole runs on a Vulkan device, from the command line to the verified record."""

from __future__ import annotations

from trainmark.record.record import read_record


def test_run_of_the_toy_case_passes_and_is_verified(trainmark, tmp_path):
    process = trainmark("run", "toy", "--device", "vulkan", "--out", "run")
    record = read_record(tmp_path / "run")
    assert (process.returncode, record.status, record.cause) == (0, "passed", None), process.stderr
    assert record.plan.device.vendor == record.plan.device.torch_type == "vulkan"
    # The name of Mesa's software driver, which computes on the processor.
    assert record.environment["devices"][0]["name"].startswith("llvmpipe")
    # Figures of one run of the toy case are not to be quoted; its record fits its raw events.
    assert "passed, do not quote, verified" in process.stdout
