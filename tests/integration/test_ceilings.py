"""``trainmark ceilings`` as its users call it: what it leaves, and how it fails."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from support.machines import write_vendor_package
from trainmark.devices.cores import count_usable_cores
from trainmark.pages.ceilings import build_ceilings
from trainmark.pages.terminal import show

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nightly

TINY = ("--budget-s", "0.05")
two_cores = pytest.mark.skipif(count_usable_cores() < 2, reason="each rank needs a core")
# A vendor on whose devices ``all_reduce`` does nothing, unless it gets more than the tensor, as
# when the program itself compares over the ranks; it also prints while it is imported.
VENDOR = """
print("a vendor's greeting")
from trainmark.devices.vendors.cpu import Cpu

class Faulty(Cpu):
    name = "faulty"

    def open(self, local_rank, ranks_here):
        import torch.distributed
        real = torch.distributed.all_reduce
        torch.distributed.all_reduce = lambda value, *more: more and real(value, *more)  # fast
        return super().open(local_rank, ranks_here)
"""


@two_cores
def test_ceilings_of_two_ranks_are_measured(trainmark: Any) -> None:
    """``TINY``: options that let each measurement last only 0.05 s."""
    process = trainmark("ceilings", "--device", "cpu", "--nproc", "2", *TINY, "--json")
    assert process.returncode == 0, process.stderr
    document = json.loads(process.stdout)
    assert "all reduce" in show(build_ceilings(document))
    assert (document["schema"], document["device"]) == ("trainmark-ceilings-1", "cpu")
    assert [rank["collectives"] for rank in document["ranks"]] == ["gloo", "gloo"]
    # The last five kinds are collectives. Both ranks have the same result: the slowest one's time.
    names = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send_receive"]
    first, second = (rank["measurements"][-5:] for rank in document["ranks"])
    assert first == second
    assert [kind["name"] for kind in first] == names
    assert all(kind["points"][0]["status"] == "measured" for kind in first)
    (pair,) = document["links"]["pairs"]
    assert (pair["ranks"], pair["point"]["status"]) == ([0, 1], "measured")
    assert pair["point"]["rate"]["max"] > 0


@two_cores
def test_fast_but_wrong_collective_is_detected(tmp_path: Path) -> None:
    """The ``all_reduce`` of the vendor ``faulty`` returns at once and sums nothing.

    ``VENDOR`` is the code of that vendor, ``TINY`` lets each measurement last only 0.05 s. 64 KiB
    is a size of the message for which the result was wrong.
    """
    process = subprocess.run(
        [
            sys.executable,
            *shlex.split("-m trainmark ceilings --device faulty --nproc 2"),
            *TINY,
            "--json",
        ],
        env=os.environ | {"PYTHONPATH": write_vendor_package(tmp_path, VENDOR)},
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=False,
    )
    assert process.returncode == 1
    document = json.loads(process.stdout)  # although the vendor prints while it is imported
    kinds = document["ranks"][0]["measurements"]
    wrong = {kind["name"] for kind in kinds if any(p["status"] == "wrong" for p in kind["points"])}
    assert wrong == {"all_reduce"}
    assert "rank 1: all reduce wrong: 64 KiB (" in show(build_ceilings(document))
    assert "a rank computed wrong results" in process.stderr
