"""The limits of cgroups are found wherever a machine shows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from machines import write_files
from trainmark.devices import cgroup
from trainmark.devices.vendors import cpu

GROUP, MOUNTS, TOP = "proc/self/cgroup", "proc/self/mountinfo", "sys/fs/cgroup"
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V1_CPU = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
HYBRID_V2 = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
SYSTEMD = "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
NO_LIMIT_V1 = f"{(1 << 63) - 4096}\n"
STEP = "system.slice/slurmstepd.scope/job_7/step_0/user/task_0"
MIB = 1 << 20

MACHINES = {
    "none": ({}, [], None),
    "namespace": (
        {GROUP: "0::/\n", MOUNTS: V2,
         f"{TOP}/memory.max": f"{512 * MIB}\n", f"{TOP}/cpu.max": "150000 100000\n"},
        [(".", 512)], 1.5,
    ),
    "middle": (
        {GROUP: f"0::/{STEP}\n", MOUNTS: V2,
         f"{TOP}/{STEP}/memory.max": "max\n", f"{TOP}/{STEP}/cpu.max": "max 100000\n",
         f"{TOP}/{STEP}/../../memory.max": f"{512 * MIB}\n",
         f"{TOP}/{STEP}/../../cpu.max": "100000 100000\n",
         f"{TOP}/{STEP}/../../../memory.max": f"{900 * MIB}\n",
         f"{TOP}/{STEP}/../../../cpu.max": "400000 100000\n",
         f"{TOP}/other.slice/memory.max": f"{MIB}\n"},
        [(f"{Path(STEP).parent.parent}", 512), (f"{Path(STEP).parent.parent.parent}", 900)], 1.0,
    ),
    "higher_below": (  # the lower limit is the one above
        {GROUP: "0::/a/b\n", MOUNTS: V2, f"{TOP}/a/b/memory.max": f"{8 * MIB}\n",
         f"{TOP}/a/memory.max": f"{4 * MIB}\n", f"{TOP}/a/b/cpu.max": "800000 100000\n",
         f"{TOP}/a/cpu.max": "200000 100000\n"},
        [("a/b", 8), ("a", 4)], 2.0,
    ),
    "v1": (
        {GROUP: "4:memory:/slurm/job_7\n3:cpu,cpuacct:/slurm\n", MOUNTS: V1_MEMORY + V1_CPU,
         f"{TOP}/memory/memory.limit_in_bytes": NO_LIMIT_V1,
         f"{TOP}/memory/slurm/job_7/memory.limit_in_bytes": f"{64 * MIB}\n",
         f"{TOP}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
         f"{TOP}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
         f"{TOP}/cpu,cpuacct/slurm/cpu.cfs_quota_us": "250000\n",
         f"{TOP}/cpu,cpuacct/slurm/cpu.cfs_period_us": "100000\n"},
        [("memory/slurm/job_7", 64)], 2.5,
    ),
    "container_v1": (  # without a namespace: the mount shows the container's own cgroup
        {GROUP: "4:memory:/docker/c1/inner\n3:cpu,cpuacct:/docker/c1\n",
         MOUNTS: (V1_MEMORY + V1_CPU).replace(" / ", " /docker/c1 "),
         f"{TOP}/memory/memory.limit_in_bytes": f"{64 * MIB}\n",
         f"{TOP}/memory/inner/memory.limit_in_bytes": f"{32 * MIB}\n",
         f"{TOP}/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
         f"{TOP}/cpu,cpuacct/cpu.cfs_period_us": "100000\n"},
        [("memory/inner", 32), ("memory", 64)], 0.5,
    ),
    "hybrid": (
        {GROUP: "4:memory:/job\n1:name=systemd:/s\n0::/s\n",
         MOUNTS: SYSTEMD + HYBRID_V2 + V1_MEMORY, f"{TOP}/unified/s/cpu.max": "300000 100000\n",
         f"{TOP}/memory/job/memory.limit_in_bytes": f"{2 * MIB}\n",
         f"{TOP}/systemd/s/memory.max": "1\n"},
        [("memory/job", 2)], 3.0,
    ),
    "outside": (  # in a cgroup above the one that is shown: its own limits are not seen
        {GROUP: "0::/../job\n", MOUNTS: V2, f"{TOP}/memory.max": f"{MIB}\n",
         "sys/fs/job/memory.max": "1\n"}, [(".", 1)], None,
    ),
    "elsewhere": (
        {GROUP: "0::/user\n", MOUNTS: V2.replace(" / ", " /docker/c1 "),
         f"{TOP}/memory.max": f"{MIB}\n", f"{TOP}/user/memory.max": "1\n"}, [(".", 1)], None,
    ),
    "unlimited": (
        {GROUP: "0::/a\n", MOUNTS: V2, f"{TOP}/a/memory.max": "max\n",
         f"{TOP}/a/cpu.max": "max 100000\n"}, [], None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "limits", "quota"), MACHINES.values(), ids=MACHINES)
def test_every_limit_above_is_found(
    tmp_path: Path, files: dict[str, str], limits: list[tuple[str, int]], quota: float | None
) -> None:
    (tmp_path / TOP / STEP).mkdir(parents=True)
    write_files(tmp_path, files)
    found = cgroup.memory_limits(tmp_path)
    assert found == {tmp_path / TOP / folder: most * MIB for folder, most in limits}
    assert list(found) == [tmp_path / TOP / folder for folder, _ in limits]
    assert cgroup.core_quota(tmp_path) == quota


def test_the_processor_has_what_the_lowest_limit_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)}, raising=False)
    assert cpu.usable_cores(tmp_path) == 8
    whole = cpu.total_memory_bytes(tmp_path)
    write_files(tmp_path, MACHINES["middle"][0] | {f"{TOP}/{STEP}/x": ""})
    assert (cpu.usable_cores(tmp_path), cpu.total_memory_bytes(tmp_path)) == (1, 512 * MIB)
    write_files(tmp_path, {f"{TOP}/{STEP}/../../cpu.max": "250000 100000\n"})
    assert cpu.usable_cores(tmp_path) == 2
    assert whole > 512 * MIB


@pytest.mark.parametrize(
    ("file", "text"),
    [("memory.max", "5x\n"), ("memory.max", "1 2\n"), ("cpu.max", "100000\n"), ("cpu.max", "")],
)
def test_a_limit_that_cannot_be_read_is_left_out(tmp_path: Path, file: str, text: str) -> None:
    write_files(tmp_path, MACHINES["higher_below"][0])
    (tmp_path / TOP / "a/b" / file).write_text(text)
    assert cgroup.core_quota(tmp_path) == 2.0
    assert cgroup.memory_limits(tmp_path)[tmp_path / TOP / "a"] == 4 * MIB


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
    assert cgroup.used_bytes(tmp_path) == used
    write_files(tmp_path, {"memory.stat": "anon 1\n"})
    with pytest.raises(ValueError, match=r"no .*inactive_file"):
        cgroup.used_bytes(tmp_path)
