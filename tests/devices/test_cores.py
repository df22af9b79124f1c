"""Limits of cores and memory of processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.machines import write_files
from trainmark.affinity import count_allowed_cores
from trainmark.devices import cores as host

GROUP, TOP = "proc/self/cgroup", "sys/fs/cgroup"
NO_LIMIT_V1 = f"{(1 << 63) - 4096}\n"  # how version 1 of cgroups writes that there is none
STEP = "system.slice/slurmstepd.scope/job_7/step_0/user/task_0"  # the group of a step of Slurm
MIB = 1 << 20

# Files of a machine; groups with a limit of memory, the innermost first, in MiB; number of cores.
MACHINES = {
    "none": ({}, [], None),
    # The process's own group has no limits, but two of those above it have; others do not count.
    "middle": (
        {
            GROUP: f"0::/{STEP}\n",
            f"{TOP}/{STEP}/memory.max": "max\n",
            f"{TOP}/{STEP}/cpu.max": "max 100000\n",
            f"{TOP}/{STEP}/../../memory.max": f"{512 * MIB}\n",
            f"{TOP}/{STEP}/../../cpu.max": "100000 100000\n",
            f"{TOP}/{STEP}/../../../memory.max": f"{900 * MIB}\n",
            f"{TOP}/{STEP}/../../../cpu.max": "400000 100000\n",
            f"{TOP}/other.slice/memory.max": f"{MIB}\n",
        },
        [(f"{Path(STEP).parent.parent}", 512), (f"{Path(STEP).parent.parent.parent}", 900)],
        1.0,
    ),
    "v1": (
        {
            GROUP: "4:memory:/slurm/job_7\n3:cpu,cpuacct:/slurm\n",
            f"{TOP}/memory/memory.limit_in_bytes": NO_LIMIT_V1,
            f"{TOP}/memory/slurm/job_7/memory.limit_in_bytes": f"{64 * MIB}\n",
            f"{TOP}/cpu/cpu.cfs_quota_us": "-1\n",
            f"{TOP}/cpu/cpu.cfs_period_us": "100000\n",
            f"{TOP}/cpu/slurm/cpu.cfs_quota_us": "250000\n",
            f"{TOP}/cpu/slurm/cpu.cfs_period_us": "100000\n",
        },
        [("memory/slurm/job_7", 64)],
        2.5,
    ),
    "unlimited": (
        {GROUP: "0::/a\n", f"{TOP}/a/memory.max": "max\n", f"{TOP}/a/cpu.max": "max 100000\n"},
        [],
        None,
    ),
}


@pytest.mark.parametrize(("files", "limits", "quota"), MACHINES.values(), ids=MACHINES)
def test_memory_limits_of_all_parent_groups_are_read(
    tmp_path: Path, files: dict[str, str], limits: list[tuple[str, int]], quota: float | None
) -> None:
    """Limits of cores are read from all parent groups, too.

    ``MACHINES`` has four machines: without limits, with limits of outer groups alone, with version
    1 of control groups, and with files that say "max", no limit. A quota of "250000 100000" is 2.5
    cores: 250 ms in each 100 ms.

    Args:
        files: content of the machine's files, by their names below its root, ``tmp_path``.
        limits: the control groups with a limit of memory, the innermost first: the group's folder
            below ``TOP``, and the limit in MiB.
        quota: number of cores, the smallest quota of all groups; None: no group has one.
    """
    # ``TOP`` is sys/fs/cgroup, where Linux has the files of control groups; ``STEP`` is the
    # path below it of a group as Slurm makes one for a step of a job.
    # The folder of the process's own group, ``STEP``, must exist: names in ``files`` may lead from
    # it to a parent by ``..``.
    (tmp_path / TOP / STEP).mkdir(parents=True)
    write_files(tmp_path, files)
    memory_limits = host.read_memory_limits(tmp_path)
    assert memory_limits == {
        tmp_path / TOP / folder: limit_mib * MIB for folder, limit_mib in limits
    }
    assert list(memory_limits) == [tmp_path / TOP / folder for folder, _ in limits]  # the order
    assert host.read_core_quota(tmp_path) == quota


@pytest.mark.parametrize(
    ("files", "used"),
    [
        # Version 2 of cgroups, and version 1, whose totals include the groups below.
        ({"memory.current": "900\n", "memory.stat": "anon 1\ninactive_file 200\n"}, 700),
        (
            {
                "memory.usage_in_bytes": "900\n",
                "memory.stat": "inactive_file 1\ntotal_inactive_file 300\n",
            },
            600,
        ),
    ],
)
def test_file_cache_is_not_counted_as_used_memory(
    tmp_path: Path, files: dict[str, str], used: int
) -> None:
    # Used are all bytes of the group but those of files that the kernel may drop ("inactive_file"):
    # 900 - 200 and 900 - 300. ``files`` are those of the group's folder, ``tmp_path``.
    write_files(tmp_path, files)
    assert host.read_used_bytes(tmp_path) == used


def test_without_affinity_all_cores_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has no ``sched_getaffinity`` on macOS."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert count_allowed_cores() == 7
