"""Each check of the host finds the planted fault, and nothing in its sound neighbour."""

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machines import CPU, GIB, Card, cpu_use, machine, memory, only
from trainmark.check.doctor import host
from trainmark.check.doctor.examination import examine
from trainmark.launch.processes import CpuUse

NODES = "sys/devices/system/node"
QUOTA = "sys/fs/cgroup/cpu.max"
MIB = 1 << 20


def cgroup(most: int | str, used_gib: int) -> dict[str, str]:
    """Return the files of a cgroup, a GiB of whose memory holds files."""
    return {
        "sys/fs/cgroup/memory.max": f"{most}\n",
        "sys/fs/cgroup/memory.current": f"{used_gib * GIB}\n",
        "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {GIB}\n",
    }


def processor(cores: int) -> Card:
    return Card(name="cpu", devices=cores)


@pytest.mark.parametrize(
    ("check", "files", "readings", "severity", "numbers"),
    [
        (host.memory, {}, {}, "fine", "32.0 of 64.0 GiB"),
        (host.memory, {}, memory(2), "spoils", "2.0 of 64.0 GiB"),
        (host.memory, {}, memory(2 - 1e-6), "stops", "of 64.0 GiB"),
        (host.memory, {}, memory(7), "fine", "7.0 of 64.0 GiB"),
        (host.memory, cgroup("max", 60), {}, "fine", "32.0 of 64.0 GiB"),
        (host.memory, cgroup(16 * GIB, 5), {}, "fine", "12.0 of 16.0 GiB"),
        (host.memory, cgroup(16 * GIB, 15), {"nproc": 1}, "fine", "2.0 of 16.0 GiB"),
        (host.memory, cgroup(16 * GIB, 16), {"nproc": 1}, "spoils", "1.0 of 16.0 GiB"),
        (host.memory, cgroup(16 * GIB, 16), {}, "stops", "1.0 of 16.0 GiB"),
        (host.memory, cgroup(128 * GIB, 16), {}, "fine", "32.0 of 64.0 GiB"),
        (host.swap, {}, {}, "fine", "0.0 of 8.0 GiB in use"),
        (host.swap, {}, memory(9, 64 * MIB), "fine", "0.1 of 8.0 GiB"),
        (host.swap, {}, memory(9, 65 * MIB), "spoils", "0.1 of 8.0 GiB"),
        (host.load, {}, {"cpu_use": cpu_use(0.9)}, "fine", "others use 9% of the cores"),
        (host.load, {}, {"cpu_use": cpu_use(1.1)}, "spoils", "others use 11% of the cores"),
        (host.strays, {}, {}, "fine", "no process"),
        (host.strays, {}, {"runs": {"r1": [7, 9]}}, "spoils", "run r1 has"),
        (host.cores, {}, {"nproc": 4}, "fine", "4 rank(s), 4 cores by affinity"),
        (host.cores, {}, {"nproc": 5}, "spoils", "5 rank(s), 4 cores"),
        (host.cores, {QUOTA: "max 100000\n"}, {}, "fine", "cgroup quota none"),
        (host.cores, {QUOTA: "200000 100000\n"}, {}, "fine", "cgroup quota 2.0"),
        (host.cores, {QUOTA: "150000 100000\n"}, {}, "spoils", "cgroup quota 1.5"),
        (host.numa, {}, {}, "fine", "2 node(s), of the devices: 0, 0"),
        (host.numa, {}, {"affinity": {3, 4}}, "fine", "2 node(s)"),
        (host.numa, {}, {"affinity": {4}}, "spoils", "rank 0 on node 0 with cores 0-3"),
        (host.numa, {}, {"vendor": Card(node=None)}, "unknown", "2 node(s)"),
        (host.numa, {}, {"vendor": None}, "fine", "none told"),
        (host.governor, {}, {}, "fine", "performance on 4 cores"),
        (host.governor, {f"{CPU}/cpu3/cpufreq/scaling_governor": "powersave\n"}, {}, "spoils",
         "performance on 3 cores, powersave on 1 cores"),
        (host.governor, {f"{CPU}/cpu4/cpufreq/scaling_governor": "powersave\n"}, {}, "fine",
         "performance on 4 cores"),
        (host.governor, {}, {"affinity": {9}}, "unknown", "sets no clocks"),
        (host.shared_memory, {}, {"free": 128 << 20}, "fine", "128 MiB free"),
        (host.shared_memory, {}, {"free": (128 << 20) - 1}, "stops",
         "127 MiB free in /dev/shm, 128 MiB needed"),
        (host.shared_memory, {}, {"free": 0, "nproc": 1}, "fine", "0 MiB needed"),
        (host.shared_memory, {}, {"free": 0, "vendor": processor(4)}, "fine",
         "0 MiB needed"),
        (host.open_files, {}, {"limit": (288, 4096)}, "fine", "288 for each process"),
        (host.open_files, {}, {"limit": (287, 4096)}, "stops", "287 for each process"),
        (host.open_files, {}, {"limit": (resource.RLIM_INFINITY, -1)}, "fine",
         "unlimited"),
    ],
)  # fmt: skip
def test_a_fault_is_found_and_its_neighbour_is_not(
    tmp_path, *, check, files, readings, severity, numbers
):
    found = only(check(machine(tmp_path, files, **readings)))
    assert found.severity == severity
    assert numbers in found.what
    assert bool(found.remedy) == (severity != "fine")


def test_the_remedy_names_what_can_be_done(tmp_path):
    few = only(host.cores(machine(tmp_path, nproc=9)))
    assert "--nproc 4" in few.remedy
    files = only(host.open_files(machine(tmp_path, nproc=8, limit=(100, 4096))))
    assert "ulimit -n 384" in files.remedy
    stray = only(host.strays(machine(tmp_path, runs={"r1": [7, 9]})))
    assert "kill 7 9" in stray.remedy


def test_every_run_that_is_alive_is_named(tmp_path):
    found = list(host.strays(machine(tmp_path, runs={"b": [2], "a": [1]})))
    assert [one.what.split()[1] for one in found] == ["a", "b"]


@pytest.mark.parametrize(
    ("check", "file"),
    [
        (host.memory, "sys/fs/cgroup/memory.stat"),
        (host.numa, f"{NODES}/node0/cpulist"),
    ],
)
def test_a_file_that_is_missing_makes_the_check_unknown(tmp_path, check, file):
    subject = machine(tmp_path, cgroup(16 * GIB, 5))
    (tmp_path / file).unlink()
    (found,) = examine(subject, [check]).checks
    assert (found.group, found.code, found.severity) == ("host", check.__name__, "unknown")
    assert "FileNotFoundError" in found.what
    assert found.remedy


def test_counters_that_stand_still_are_unknown(tmp_path):
    still = CpuUse(1.0, 2.0, 0.0)
    found = examine(machine(tmp_path, cpu_use=lambda: still), [host.load]).checks
    assert found[0].severity == "unknown"


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=4))
def test_any_text_of_a_governor_is_told(tmp_path_factory, texts):
    root = tmp_path_factory.mktemp("cpufreq")
    files = {f"{CPU}/cpu{i}/cpufreq/scaling_governor": text for i, text in enumerate(texts)}
    subject = machine(root, files)
    found = only(host.governor(subject))
    sound = all(text.strip() == "performance" for text in texts)
    assert found.severity == ("fine" if sound else "spoils")


@pytest.mark.parametrize(
    ("variables", "readings", "severity", "said"),
    [
        ({}, {}, "fine", "2 thread(s) for each rank, 2 core(s)"),
        ({"OMP_NUM_THREADS": "2"}, {}, "fine", "2 thread(s)"),
        ({"OMP_NUM_THREADS": "3"}, {}, "spoils", "3 thread(s) for each rank, 2 core(s)"),
        ({"OMP_NUM_THREADS": "4"}, {"nproc": 1}, "fine", "4 thread(s) for each rank, 4 core(s)"),
        ({"OMP_NUM_THREADS": "1000"}, {"nproc": 1}, "spoils", "1000 thread(s)"),
        ({"OMP_NUM_THREADS": "4"}, {"vendor": Card(torch_type="x")}, "fine", "4 core(s)"),
        ({"OMP_NUM_THREADS": "5"}, {"vendor": Card(torch_type="x")}, "spoils", "4 core(s)"),
        ({"OMP_NUM_THREADS": "0"}, {}, "stops", "OMP_NUM_THREADS=0"),
        ({"OMP_NUM_THREADS": "abc"}, {}, "stops", "OMP_NUM_THREADS=abc"),
        ({"TRAINMARK_PIN": "2"}, {}, "stops", "TRAINMARK_PIN=2"),
    ],
)
def test_threads_are_compared_with_the_cores_that_run_them(
    tmp_path, monkeypatch, *, variables, readings, severity, said
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = only(host.threads(machine(tmp_path, **readings)))
    assert found.severity == severity
    assert said in found.what
    assert bool(found.remedy) == (severity != "fine")


def test_a_quota_bounds_the_threads_of_all_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    subject = machine(tmp_path, {QUOTA: "200000 100000\n"})
    assert "2 thread(s) for each rank, 1 core(s)" in only(host.threads(subject)).what
    assert list(host.threads(machine(tmp_path, vendor=None))) == []


def test_memory_is_judged_by_the_ranks(tmp_path):
    subject = machine(tmp_path, nproc=17, **memory(16))
    assert only(host.memory(subject)).severity == "stops"
