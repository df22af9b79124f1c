"""Ranks of a real run on cores of their own, on a machine that is said to have two NUMA nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from trainmark.record import record

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nightly

ON_TWO_NODES = """\
import os
from trainmark.devices import cores as host

cores = sorted(os.sched_getaffinity(0))
host.topology = lambda: [[(cores[0],)], [(core,) for core in cores[1:]]]

from trainmark.cli.app import main

main()
"""
RUN = ("run", "toy", "--device", "cpu", "--nproc", "2", "--out", "run", "--quiet",
       "--sample-every", "0", "max_epochs=1", "target_value=none")  # fmt: skip
CORES = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


@pytest.mark.skipif(len(CORES) < 2, reason="one core cannot be two nodes")
def test_ranks_run_where_they_were_placed_and_say_so(tmp_path: Path) -> None:
    env = os.environ | {"TRAINMARK_CACHE": str(tmp_path / "cache")}
    env.pop("OMP_NUM_THREADS", None)
    program = [sys.executable, "-c", ON_TWO_NODES, *RUN]
    done = subprocess.run(program, env=env, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found = record.read(tmp_path / "run").environment
    placed = found["placement"]
    half = len(CORES) // 2
    assert [one and one["threads"] for one in placed] == [half, half]
    assert [one and one["usable_cores"] for one in placed] == [half, len(CORES) - half]
    first, second = placed
    assert first is not None
    assert second is not None
    assert first["cores"].split(",")[0].split("-")[0] == str(CORES[0])
    assert first["cores"] != second["cores"]
    # The rank's device describes itself after it was placed: it has its own cores only.
    assert [one and one["usable_cores"] for one in found["devices"]] == [half, len(CORES) - half]  # type: ignore[typeddict-item]
