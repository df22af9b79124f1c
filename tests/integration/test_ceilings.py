"""``trainmark ceilings`` as its users call it: what it leaves, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from machines import vendor_package
from trainmark.devices.cores import usable_cores
from trainmark.pages.ceilings import blocks
from trainmark.pages.terminal import Screen, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.nightly

TINY = ("--budget-s", "0.05")
two_cores = pytest.mark.skipif(usable_cores() < 2, reason="each rank needs a core")
VENDOR = '''
import os, signal
print("a vendor's greeting")
from trainmark.devices.vendors.cpu import Cpu
from trainmark.spec import RankMemory

class Faulty(Cpu):
    """The processor, and what a test wants to go wrong on the second rank."""

    name = "faulty"

    def open(self, local_rank, ranks_here):
        import torch.distributed
        device = super().open(local_rank, ranks_here)
        fault = os.environ["FAULT"]
        if fault == "wrong":
            torch.distributed.all_reduce = lambda value: None  # fast
        elif local_rank == 1 and fault == "little memory":
            type(self).rank_memory = lambda *_: RankMemory(1 << 20)
        elif local_rank == 1 and fault == "raise":
            raise RuntimeError("the device is broken")
        elif local_rank == 1 and fault == "hang":
            with open(os.environ["FAULT_FIFO"], "w") as told:
                told.write("here")
            signal.pause()
        return device
'''


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the program with a vendor of its own; end it with the test."""
    paths = vendor_package(tmp_path, VENDOR)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "tmp").mkdir()
    env = os.environ | {
        "PYTHONPATH": paths, "FAULT_FIFO": str(tmp_path / "fifo"),
        "TMPDIR": str(tmp_path / "tmp"),
    }  # fmt: skip
    started = []

    def start(fault: str, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "trainmark", "ceilings", "--device", "faulty", "--nproc", "2",
             *TINY, *words],
            env=env | {"FAULT": fault}, cwd=tmp_path, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@two_cores
def test_two_ranks(trainmark: Any) -> None:
    ended = trainmark("ceilings", "--device", "cpu", "--nproc", "2", *TINY, "--json")
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert "all reduce" in show(blocks(document), Screen())
    assert set(document) == {
        "schema", "suite", "started", "took_s", "device", "nproc", "shares_cores", "budget_s",
        "full", "environment", "ranks",
    }  # fmt: skip
    assert (document["schema"], document["device"]) == ("trainmark-ceilings-1", "cpu")
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    for rank in document["ranks"]:
        assert set(rank) == {
            "rank", "device", "collectives", "measurements", "placement",
        }  # fmt: skip
        assert rank["collectives"] == "gloo"
        for kind in rank["measurements"]:
            assert set(kind) == {
                "name", "unit", "reason", "counts", "points", "best", "bus_factor", "peak",
                "share_of_peak",
            }  # fmt: skip
            assert all(set(point) == {
                "size", "name", "amount", "status", "reason", "repetitions", "rate", "swing",
            } for point in kind["points"])  # fmt: skip
    # What is collective is the same for both: the slowest rank's time.
    one, two = (rank["measurements"][-2:] for rank in document["ranks"])
    assert one == two
    assert [kind["name"] for kind in one] == ["all_reduce", "all_to_all"]
    assert all(kind["points"][0]["status"] == "measured" for kind in one)


@two_cores
def test_a_fast_and_wrong_collective_is_found(faulty: Any, tmp_path: Path) -> None:
    process = faulty("wrong", "--json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    kinds = json.loads(out)["ranks"][0]["measurements"]
    wrong = {kind["name"] for kind in kinds if any(p["status"] == "wrong" for p in kind["points"])}
    assert wrong == {"all_reduce"}
    assert "trainmark: rank 0: all reduce wrong: 64 KiB (" in err
    assert "rank 1: all reduce wrong: 64 KiB (" in err
