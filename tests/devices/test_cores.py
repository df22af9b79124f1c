"""Which cores ranks are pinned to, on machines of many shapes, and what limits processes."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeVendor
from machines import write_files
from trainmark.devices import cores as host
from trainmark.devices.cores import Placement, compact, placement, topology
from trainmark.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TWO_SOCKETS = {0: [(core,) for core in range(8)], 1: [(core,) for core in range(8, 16)]}
# Two nodes of two physical cores with two threads each, numbered as Linux does on x86.
SMT = {0: [(0, 4), (1, 5)], 1: [(2, 6), (3, 7)]}


def cores(found: Sequence[Placement]) -> list[str]:
    return [compact(one.cores) for one in found]


def whys(found: Sequence[Placement]) -> list[str | None]:
    return [one.why_not for one in found]


def nodes(found: Sequence[Placement]) -> list[tuple[int, ...]]:
    return [one.numa_nodes for one in found]


def test_eight_devices_on_two_sockets_share_the_cores_of_their_own() -> None:
    found = placement(TWO_SOCKETS, range(16), [0] * 4 + [1] * 4, ranks=8, usable=16)
    assert cores(found) == ["0-1", "2-3", "4-5", "6-7", "8-9", "10-11", "12-13", "14-15"]
    assert nodes(found) == [(0,)] * 4 + [(1,)] * 4
    assert {one.threads for one in found} == {2}
    assert set(whys(found)) == {None}


def test_threads_of_a_physical_core_stay_together() -> None:
    found = placement(SMT, range(8), [0, 0, 1], ranks=3, usable=8)
    assert cores(found) == ["0,4", "1,5", "2-3,6-7"]
    assert [one.threads for one in found] == [2, 2, 2]  # the same for all, so that none waits


@pytest.mark.parametrize(
    ("ranks", "shares"),
    [(2, ["0-7", "8-15"]), (4, ["0-3", "4-7", "8-11", "12-15"]),
     (3, ["0-4", "5-9", "10-15"])],
)  # fmt: skip
def test_ranks_on_the_processor_are_spread_over_the_nodes(ranks: int, shares: list[str]) -> None:
    found = placement(TWO_SOCKETS, range(16), None, ranks=ranks, usable=16)
    assert cores(found) == shares
    assert len({one.threads for one in found}) == 1


@given(
    sizes=st.lists(st.integers(0, 6), max_size=4),
    smt=st.integers(1, 3),
    left_out=st.sets(st.integers(0, 71)),
    devices=st.integers(1, 9) | st.lists(st.none() | st.integers(0, 5), min_size=1, max_size=9),
    quota=st.integers(1, 100),
)
def test_no_core_is_given_twice_and_each_is_allowed(
    sizes: list[int], smt: int, left_out: set[int], devices: int | list[int | None], quota: int
) -> None:
    total = sum(sizes)
    machine: dict[int, list[tuple[int, ...]]] = {}
    for node, size in enumerate(sizes):
        first = sum(sizes[:node])
        physical = range(first, first + size)
        machine[node] = [tuple(core + total * thread for thread in range(smt)) for core in physical]
    allowed = set(range(max(1, total * smt))) - left_out or {0}
    near, ranks = (None, devices) if isinstance(devices, int) else (devices, len(devices))
    usable = min(quota, len(allowed))
    found = placement(machine, allowed, near, ranks=ranks, usable=usable)
    assert len(found) == ranks
    pinned = [one for one in found if one.why_not is None]
    assert len(pinned) in (0, ranks)
    for first_one, other in combinations(pinned, 2):
        assert not set(first_one.cores) & set(other.cores)
    for one in found:
        assert set(one.cores) <= allowed
        assert one.cores
        assert 1 <= one.threads <= max(1, usable // ranks)
    for one in pinned:
        assert one.threads <= len(one.cores)
        whole = [set(group) & allowed for its in machine.values() for group in its]
        assert all(group <= set(one.cores) or not group & set(one.cores) for group in whole)


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
    assert list(topology(root).items()) == [
        (0, [(0, 4), (1, 5)]),
        (2, [(2, 6), (3, 7)]),
        (10, []),
    ]


class Near(FakeVendor):
    """Devices 0 and 1, one on each node."""

    def numa_node(self, local_rank: int) -> int | None:
        return local_rank


@pytest.fixture
def two_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "topology", lambda _: TWO_SOCKETS)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None, raising=False)
    monkeypatch.setattr(host, "usable_cores", lambda *_: 16)


@pytest.mark.usefixtures("two_sockets")
def test_a_vendor_that_tells_the_node_of_its_devices_is_asked() -> None:
    assert cores(host.placements(Near(), 2, {})) == ["0-7", "8-15"]
    assert whys(host.placements(FakeVendor(), 2, {})) == ["unknown_node"] * 2
    processor = FakeVendor("cpu", devices=16)
    assert cores(host.placements(processor, 2, {"TRAINMARK_PIN": "1"})) == ["0-7", "8-15"]


@pytest.mark.usefixtures("two_sockets")
def test_the_user_can_switch_it_off() -> None:
    found = host.placements(Near(), 2, {"TRAINMARK_PIN": "0"})
    assert (whys(found), nodes(found)) == (["off", "off"], [(0,), (1,)])
    with pytest.raises(UsageError):
        host.placements(Near(), 2, {"TRAINMARK_PIN": "no"})


def test_a_rank_takes_what_it_is_told_and_tells_what_is_in_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: dict[int, Any] = {0: {0, 1, 2, 3}}
    monkeypatch.setattr(os, "sched_getaffinity", taken.get, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", taken.__setitem__, raising=False)
    other = Placement(numa_nodes=(0,), cores=(3,), threads=1)
    told = host.to_variable([other, Placement(numa_nodes=(1,), cores=(1, 2), threads=2)])
    monkeypatch.setattr(host, "usable_cores", lambda: 7)
    assert host.take(told, 1) == {
        "numa_nodes": [1], "cores": "1-2", "threads": 2, "why_not": None, "usable_cores": 7,
    }  # fmt: skip
    assert set(taken[0]) == {1, 2}
    stay = host.to_variable([Placement(numa_nodes=(), cores=(0, 9), threads=2, why_not="one_node")])
    assert host.take(stay, 0) == {
        "numa_nodes": [], "cores": "1-2", "threads": 2, "why_not": "one_node",
        "usable_cores": 7,
    }  # fmt: skip
    assert host.take(None, 0) is None


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
