"""Which of torch's attention kernels a case's steps run, as the program records it.

``fit_attention`` evens out most of what versions of torch choose differently; the table has the
rest.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support import tiny_jobs
from support.hollow_attention import IN_16_BITS, IN_32_BITS, TABLE
from trainmark.rank.watch import StepWatch
from trainmark.train.read_ahead import iterate_batches


def list_kernels_of_step(device, generated, name, fields: dict[str, Any]) -> set[str]:
    """Return the kernels of attention that a step of a case's tiny recipe runs.

    ``fields`` replace fields of that recipe. ``StepWatch`` notes the names of the kernels, and the
    flags of precision that its argument returns, which are not needed here.
    """
    job = tiny_jobs.build(name, device, generated, kernels="library", **fields)
    batches = iterate_batches(job, device, epoch=0, depth=0)  # depth 0: no read-ahead
    with StepWatch(lambda: {}) as watch:  # without flags of precision
        job.step(batches)
    batches.close()
    return watch.attention


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.case}-{row.fields.get('dropout')}")
def test_attention_runs_documented_kernel(row, device, generated):
    """A row of ``TABLE`` is a case, fields of its recipe, and a function that names the kernel.

    ``IN_32_BITS`` and ``IN_16_BITS`` are the precisions whose attention has inputs of so many bits.
    """
    for precision in IN_32_BITS + IN_16_BITS:
        fields = {"precision": precision} | row.fields
        expected = row.kernel(precision, torch.__version__)  # None: the card cannot run the step
        # A row may be for one precision alone.
        if fields["precision"] == precision and expected is not None:
            kernels = list_kernels_of_step(device, generated, row.case, fields)
            assert kernels == {expected}, precision
