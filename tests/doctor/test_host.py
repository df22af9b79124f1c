"""Each check of the host finds the planted fault, and nothing in its sound neighbour."""

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machines import CLOCK, CPU, GIB, Card, cpu_use, machine, only
from trainmark.doctor import host
from trainmark.doctor.examination import examine
from trainmark.launch.processes import CpuUse

NODES = "sys/devices/system/node"
QUOTA = "sys/fs/cgroup/cpu.max"
CARD = {"sys/class/infiniband/mlx5_0/node_type": "1: CA\n"}


def meminfo(available_kib: int, swap_free_kib: int = 8 << 20) -> dict[str, str]:
    return {
        "proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {available_kib} kB\n"
        f"SwapTotal: {8 << 20} kB\nSwapFree: {swap_free_kib} kB\n"
    }


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
        (host.memory, meminfo(2 << 20), {}, "spoils", "2.0 of 64.0 GiB"),
        (host.memory, meminfo((2 << 20) - 1), {}, "stops", "of 64.0 GiB"),
        (host.memory, meminfo(7 << 20), {}, "fine", "7.0 of 64.0 GiB"),
        (host.memory, cgroup("max", 60), {}, "fine", "32.0 of 64.0 GiB"),
        (host.memory, cgroup(16 * GIB, 5), {}, "fine", "12.0 of 16.0 GiB"),
        (host.memory, cgroup(16 * GIB, 15), {"nproc": 1}, "fine", "2.0 of 16.0 GiB"),
        (host.memory, cgroup(16 * GIB, 16), {"nproc": 1}, "spoils", "1.0 of 16.0 GiB"),
        (host.memory, cgroup(16 * GIB, 16), {}, "stops", "1.0 of 16.0 GiB"),
        (host.memory, cgroup(128 * GIB, 16), {}, "fine", "32.0 of 64.0 GiB"),
        (host.swap, {}, {}, "fine", "0.0 of 8.0 GiB in use, swappiness 60"),
        (host.swap, meminfo(9 << 20, (8 << 20) - (64 << 10)), {}, "fine", "0.1 of 8.0 GiB"),
        (host.swap, meminfo(9 << 20, (8 << 20) - (65 << 10)), {}, "spoils", "0.1 of 8.0 GiB"),
        (host.load, {}, {"cpu_use": cpu_use(0.9)}, "fine", "others use 9% of the cores"),
        (host.load, {}, {"cpu_use": cpu_use(1.1)}, "spoils", "load averages 0.10 0.20 0.30"),
        (host.strays, {}, {}, "fine", "no process"),
        (host.strays, {}, {"runs": lambda: {"r1": [7, 9]}}, "spoils", "run r1 has"),
        (host.cores, {}, {"nproc": 4}, "fine", "4 rank(s), 4 cores by affinity"),
        (host.cores, {}, {"nproc": 5}, "spoils", "5 rank(s), 4 cores"),
        (host.cores, {QUOTA: "max 100000\n"}, {}, "fine", "quota of the cgroup None"),
        (host.cores, {QUOTA: "200000 100000\n"}, {}, "fine", "cgroup 2.0"),
        (host.cores, {QUOTA: "150000 100000\n"}, {}, "spoils", "cgroup 1.5"),
        (host.numa, {}, {}, "fine", "2 node(s), of the devices [0, 0]"),
        (host.numa, {}, {"affinity": frozenset({3, 4})}, "fine", "2 node(s)"),
        (host.numa, {}, {"affinity": frozenset({4})}, "spoils", "rank 0 on node 0 with cores 0-3"),
        (host.numa, {}, {"vendor": Card(node=None)}, "unknown", "2 node(s)"),
        (host.numa, {}, {"vendor": None}, "fine", "none told"),
        (host.governor, {}, {}, "fine", "performance on 4 cores"),
        (host.governor, {f"{CPU}/cpu3/cpufreq/scaling_governor": "powersave\n"}, {}, "spoils",
         "performance on 3 cores, powersave on 1 cores"),
        (host.governor, {f"{CPU}/cpu4/cpufreq/scaling_governor": "powersave\n"}, {}, "fine",
         "performance on 4 cores"),
        (host.governor, {}, {"affinity": frozenset({9})}, "unknown", "sets no clocks"),
        (host.turbo, {f"{CPU}/intel_pstate/no_turbo": "1\n", f"{CPU}/smt/active": "1\n"}, {},
         "fine", "intel_pstate/no_turbo 1, smt/active 1"),
        (host.turbo, {}, {}, "fine", "not told"),
        (host.shared_memory, {}, {"free_bytes": lambda _: 128 << 20}, "fine", "128 MiB free"),
        (host.shared_memory, {}, {"free_bytes": lambda _: (128 << 20) - 1}, "stops",
         "127 MiB free in /dev/shm, 128 MiB needed"),
        (host.shared_memory, {}, {"free_bytes": lambda _: 0, "nproc": 1}, "fine", "0 MiB needed"),
        (host.shared_memory, {}, {"free_bytes": lambda _: 0, "vendor": processor(4)}, "fine",
         "0 MiB needed"),
        (host.open_files, {}, {"limit": lambda _: (288, 4096)}, "fine", "288 for each process"),
        (host.open_files, {}, {"limit": lambda _: (287, 4096)}, "stops", "287 for each process"),
        (host.open_files, {}, {"limit": lambda _: (resource.RLIM_INFINITY, -1)}, "fine",
         "unlimited"),
        (host.locked_memory, {}, {"limit": lambda _: (65_536, 65_536)}, "fine",
         "65,536 bytes, InfiniBand: none"),
        (host.locked_memory, CARD, {"limit": lambda _: (65_536, 65_536)}, "spoils",
         "65,536 bytes, InfiniBand: mlx5_0"),
        (host.locked_memory, CARD, {"limit": lambda _: (65_536, 65_536), "nproc": 1}, "fine",
         "mlx5_0"),
        (host.locked_memory, CARD, {"limit": lambda _: (resource.RLIM_INFINITY, 0)}, "fine",
         "unlimited bytes, InfiniBand: mlx5_0"),
        (host.clock_source, {}, {}, "fine", "tsc, of tsc hpet acpi_pm"),
        (host.clock_source, {f"{CLOCK}/current_clocksource": "hpet\n"}, {}, "spoils", "hpet"),
        (host.container, {}, {}, "fine", "none"),
        (host.container, {".dockerenv": ""}, {}, "fine", "docker"),
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
    files = only(host.open_files(machine(tmp_path, nproc=8, limit=lambda _: (100, 4096))))
    assert "ulimit -n 384" in files.remedy
    stray = only(host.strays(machine(tmp_path, runs=lambda: {"r1": [7, 9]})))
    assert "kill 7 9" in stray.remedy


def test_every_run_that_is_alive_is_named(tmp_path):
    found = list(host.strays(machine(tmp_path, runs=lambda: {"b": [2], "a": [1]})))
    assert [one.what.split()[1] for one in found] == ["a", "b"]


@pytest.mark.parametrize(
    ("check", "file"),
    [
        (host.memory, "proc/meminfo"),
        (host.swap, "proc/sys/vm/swappiness"),
        (host.load, "proc/loadavg"),
        (host.clock_source, f"{CLOCK}/current_clocksource"),
        (host.numa, f"{NODES}/node0/cpulist"),
    ],
)
def test_a_file_that_is_missing_makes_the_check_unknown(tmp_path, check, file):
    subject = machine(tmp_path)
    (tmp_path / file).unlink()
    ((group, found),) = examine(subject, [check]).conditions
    assert (group, found.code, found.severity) == ("host", check.__name__, "unknown")
    assert "FileNotFoundError" in found.what
    assert found.remedy


@pytest.mark.parametrize("text", ["", "MemTotal: lots kB\n", "nonsense"])
def test_unreadable_memory_is_unknown(tmp_path, text):
    subject = machine(tmp_path, {"proc/meminfo": text})
    severities = [one.severity for _, one in examine(subject, [host.memory, host.swap]).conditions]
    assert severities == ["unknown", "unknown"]


def test_counters_that_stand_still_are_unknown(tmp_path):
    still = CpuUse(1.0, 2.0, 0.0)
    found = examine(machine(tmp_path, cpu_use=lambda: still), [host.load]).conditions
    assert found[0][1].severity == "unknown"


SIZES = st.dictionaries(
    st.text(st.characters(categories=["L", "N"], include_characters="_()"), min_size=1),
    st.integers(0, 2**50),
)


@given(SIZES)
def test_memory_is_read_as_the_kernel_writes_it(sizes):
    text = "".join(f"{name}:{value:>12} kB\n" for name, value in sizes.items())
    assert host.meminfo_bytes(text) == {name: value * 1024 for name, value in sizes.items()}


@given(st.text())
def test_any_text_is_read_as_memory_without_an_error(text):
    assert all(value >= 0 for value in host.meminfo_bytes(text).values())


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=4))
def test_any_text_of_a_governor_is_told(tmp_path_factory, texts):
    root = tmp_path_factory.mktemp("cpufreq")
    files = {f"{CPU}/cpu{i}/cpufreq/scaling_governor": text for i, text in enumerate(texts)}
    subject = machine(root, files)
    found = only(host.governor(subject))
    sound = all(text.strip() == "performance" for text in texts)
    assert found.severity == ("fine" if sound else "spoils")


def test_memory_is_judged_by_the_ranks(tmp_path):
    subject = machine(tmp_path, meminfo(16 << 20), nproc=17)
    assert only(host.memory(subject)).severity == "stops"
