"""Which of torch's attention kernels a case's steps run, as the program records it.

The table is the same for all admitted versions of torch: ``fit_attention`` evens their choices out.
"""

from __future__ import annotations

from typing import Any

import pytest

from support import tiny_jobs
from support.hollow_attention import TABLE
from trainmark.rank.watch import StepWatch
from trainmark.train.read_ahead import batches_of


def kernels_of_step(device, generated, name, fields: dict[str, Any]) -> set[str]:
    job = tiny_jobs.build(name, device, generated, kernels="library", **fields)
    batches = batches_of(job, device, 0, depth=0)
    with StepWatch(dict) as watch:
        job.step(batches)
    batches.close()
    return watch.attention


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}-{row[1].get('dropout')}")
def test_kernel_of_attention(row, device, generated):
    name, fields, in_32_bits, in_16_bits = row
    for precision in ("fp32", "tf32", "bf16", "fp16"):
        expected = in_32_bits if precision in ("fp32", "tf32") else in_16_bits
        kernels = kernels_of_step(device, generated, name, fields | {"precision": precision})
        assert kernels == {expected}, precision
