"""Which cores ranks are pinned to, on machines of many shapes, and what limits processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fakes import FakeVendor
from machines import write_files
from trainmark.devices import cores as host
from trainmark.devices.cores import compact, divided, topology

if TYPE_CHECKING:
    from collections.abc import Callable

TWO_SOCKETS = [[(core,) for core in range(8)], [(core,) for core in range(8, 16)]]
# Two nodes of two physical cores with two threads each, numbered as Linux does on x86.
SMT = [[(0, 4), (1, 5)], [(2, 6), (3, 7)]]


@pytest.mark.parametrize(
    ("nodes", "ranks", "shares"),
    [(TWO_SOCKETS, 2, ["0-7", "8-15"]), (TWO_SOCKETS, 4, ["0-3", "4-7", "8-11", "12-15"]),
     (TWO_SOCKETS, 3, ["0-4", "5-9", "10-15"]), (TWO_SOCKETS, 17, ["0-15"] * 17),
     (TWO_SOCKETS[:1], 2, ["0-15"] * 2), ([], 2, ["0-15"] * 2),
     (SMT, 3, ["0,4", "1,5", "2-3,6-7"])],
)  # fmt: skip
def test_ranks_share_the_physical_cores_in_the_order_of_the_nodes(
    nodes: list[Any], ranks: int, shares: list[str]
) -> None:
    allowed = range(8 if nodes is SMT else 16)
    assert [compact(one) for one in divided(nodes, allowed, ranks)] == shares


def test_a_core_that_is_not_allowed_is_in_no_share() -> None:
    assert divided(SMT, {1, 2, 3, 5, 6}, 3) == [[1, 5], [2, 6], [3]]
    assert divided(SMT, {0, 1}, 2) == [[0, 1], [0, 1]]  # all of one node


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Path]:
    def make(nodes: dict[int, str], siblings: dict[int, str]) -> Path:
        system = tmp_path / "sys" / "devices" / "system"
        for node, listed in nodes.items():
            (system / f"node/node{node}").mkdir(parents=True)
            (system / f"node/node{node}/cpulist").write_text(f"{listed}\n")
        for core, listed in siblings.items():
            (system / f"cpu/cpu{core}/topology").mkdir(parents=True)
            (system / f"cpu/cpu{core}/topology/thread_siblings_list").write_text(f"{listed}\n")
        return tmp_path

    return make


def test_the_topology_is_read_from_the_kernels_files(machine: Callable[..., Path]) -> None:
    pairs = {core: f"{core % 4},{core % 4 + 4}" for core in range(8)}
    root = machine({0: "0-1,4-5", 10: "", 2: "2-3,6-7"}, pairs)
    assert topology(root) == [[(0, 4), (1, 5)], [(2, 6), (3, 7)], []]


def test_only_ranks_on_the_processor_are_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "topology", lambda: TWO_SOCKETS)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert host.placed(FakeVendor("cpu", devices=16), 2) == [[*range(8)], [*range(8, 16)]]
    assert host.placed(FakeVendor(), 2) == [[*range(16)]] * 2


def test_a_rank_takes_what_it_is_told_and_tells_what_is_in_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: dict[int, Any] = {0: {0, 1, 2, 3}}
    monkeypatch.setattr(os, "sched_getaffinity", taken.get, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", taken.__setitem__, raising=False)
    monkeypatch.setattr(host, "usable_cores", lambda: 7)
    assert host.take("1-2") == {"cores": "1-2", "usable_cores": 7}
    assert set(taken[0]) == {1, 2}
    assert host.take(None) is None


GROUP, TOP = "proc/self/cgroup", "sys/fs/cgroup"
NO_LIMIT_V1 = f"{(1 << 63) - 4096}\n"
STEP = "system.slice/slurmstepd.scope/job_7/step_0/user/task_0"
MIB = 1 << 20

MACHINES = {
    "none": ({}, [], None),
    "middle": (
        {GROUP: f"0::/{STEP}\n",
         f"{TOP}/{STEP}/memory.max": "max\n", f"{TOP}/{STEP}/cpu.max": "max 100000\n",
         f"{TOP}/{STEP}/../../memory.max": f"{512 * MIB}\n",
         f"{TOP}/{STEP}/../../cpu.max": "100000 100000\n",
         f"{TOP}/{STEP}/../../../memory.max": f"{900 * MIB}\n",
         f"{TOP}/{STEP}/../../../cpu.max": "400000 100000\n",
         f"{TOP}/other.slice/memory.max": f"{MIB}\n"},
        [(f"{Path(STEP).parent.parent}", 512), (f"{Path(STEP).parent.parent.parent}", 900)], 1.0,
    ),
    "v1": (
        {GROUP: "4:memory:/slurm/job_7\n3:cpu,cpuacct:/slurm\n",
         f"{TOP}/memory/memory.limit_in_bytes": NO_LIMIT_V1,
         f"{TOP}/memory/slurm/job_7/memory.limit_in_bytes": f"{64 * MIB}\n",
         f"{TOP}/cpu/cpu.cfs_quota_us": "-1\n",
         f"{TOP}/cpu/cpu.cfs_period_us": "100000\n",
         f"{TOP}/cpu/slurm/cpu.cfs_quota_us": "250000\n",
         f"{TOP}/cpu/slurm/cpu.cfs_period_us": "100000\n"},
        [("memory/slurm/job_7", 64)], 2.5,
    ),
    "unlimited": (
        {GROUP: "0::/a\n", f"{TOP}/a/memory.max": "max\n",
         f"{TOP}/a/cpu.max": "max 100000\n"}, [], None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "limits", "quota"), MACHINES.values(), ids=MACHINES)
def test_every_limit_above_is_found(
    tmp_path: Path, files: dict[str, str], limits: list[tuple[str, int]], quota: float | None
) -> None:
    (tmp_path / TOP / STEP).mkdir(parents=True)
    write_files(tmp_path, files)
    found = host.memory_limits(tmp_path)
    assert found == {tmp_path / TOP / folder: most * MIB for folder, most in limits}
    assert list(found) == [tmp_path / TOP / folder for folder, _ in limits]
    assert host.core_quota(tmp_path) == quota


@pytest.mark.parametrize(
    ("files", "used"),
    [({"memory.current": "900\n", "memory.stat": "anon 1\ninactive_file 200\n"}, 700),
     ({"memory.usage_in_bytes": "900\n",
       "memory.stat": "inactive_file 1\ntotal_inactive_file 300\n"}, 600)],
)  # fmt: skip
def test_files_that_were_read_are_not_used_memory(
    tmp_path: Path, files: dict[str, str], used: int
) -> None:
    write_files(tmp_path, files)
    assert host.used_bytes(tmp_path) == used
