"""Each check of the host finds the planted fault, and nothing just below its limit."""

from __future__ import annotations

import os

import psutil
import pytest

from support.machines import (
    GIB,
    Card,
    make_cpu_use,
    make_machine,
    make_memory,
    read_single_condition,
)
from trainmark.machine.doctor import examine, host

QUOTA = "sys/fs/cgroup/cpu.max"
MIB = 1 << 20


def make_cgroup(limit: int | str, used_gib: int) -> dict[str, str]:
    """Return the files of a cgroup.

    Args:
        limit: bytes of memory that its processes may use, or ``max``.
        used_gib: memory that they use, with 1 GiB of file cache, which counts as available.
    """
    return {
        "sys/fs/cgroup/memory.max": f"{limit}\n",
        "sys/fs/cgroup/memory.current": f"{used_gib * GIB}\n",
        "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {GIB}\n",
    }


def make_processor(cores: int) -> Card:
    """Return a fake CPU of so many cores, in place of the usual fake accelerators."""
    return Card(name="cpu", devices=cores)


@pytest.mark.parametrize(
    ("check", "files", "readings", "severity", "text"),
    [
        # 1 GiB is needed for each rank; less than a tenth of the memory may slow a run.
        (host.check_memory, {}, {}, "fine", "32.0 of 64.0 GiB"),
        (host.check_memory, {}, make_memory(2), "spoils", "2.0 of 64.0 GiB"),
        (host.check_memory, {}, make_memory(2 - 1e-6), "stops", "of 64.0 GiB"),
        (
            host.check_memory,
            make_cgroup(limit=16 * GIB, used_gib=15),
            {"nproc": 1},
            "fine",
            "2.0 of 16.0 GiB",
        ),
        (
            host.check_memory,
            make_cgroup(limit=16 * GIB, used_gib=16),
            {},
            "stops",
            "1.0 of 16.0 GiB",
        ),
        (  # up to 10% is fine
            host.check_load,
            {},
            {"cpu_use": make_cpu_use(0.9)},
            "fine",
            "programs used 9% of the cores",
        ),
        (
            host.check_load,
            {},
            {"cpu_use": make_cpu_use(1.1)},
            "spoils",
            "programs used 11% of the cores",
        ),
        (host.check_other_runs, {}, {}, "fine", "no other run"),
        (host.check_other_runs, {}, {"runs": {"r1": [7, 9]}}, "spoils", "another run (r1)"),
        (host.check_cores, {}, {"nproc": 4}, "fine", "4 ranks; 4 cores allowed by CPU affinity"),
        (host.check_cores, {}, {"nproc": 5}, "spoils", "5 ranks; 4 cores"),
        (
            host.check_cores,
            {QUOTA: "150000 100000\n"},
            {},
            "spoils",
            "cgroup CPU quota in cores: 1.5",
        ),
        # 64 MiB are needed for each rank of an accelerator, none for those of a CPU.
        (host.check_shared_memory, {}, {"free": 128 << 20}, "fine", "128 MiB free"),
        (
            host.check_shared_memory,
            {},
            {"free": (128 << 20) - 1},
            "stops",
            "127 MiB free in /dev/shm, 128 MiB needed",
        ),
        (
            host.check_shared_memory,
            {},
            {"free": 0, "vendor": make_processor(4)},
            "fine",
            "0 MiB needed",
        ),
    ],
)
def test_condition_changes_severity_exactly_at_its_limit(
    tmp_path, *, check, files, readings, severity, text
):
    """``files`` and ``readings`` change the sound machine of ``make_machine``, with two ranks.

    ``make_memory(2)`` makes 2 of 64 GiB available; of what a cgroup of ``make_cgroup`` uses, 1 GiB
    is file cache, which counts as available: 16 - 15 + 1 = 2 GiB of the first cgroup.
    ``make_cpu_use(0.9)`` has other programs use 0.9 of 10 seconds of the cores. ``QUOTA`` is the
    file with the CPU time of a cgroup: 150,000 us in each 100,000 us are 1.5 cores.
    ``make_processor(4)`` is a CPU of four cores in place of the fake accelerators.
    """
    condition = read_single_condition(check(make_machine(tmp_path, files, **readings)))
    assert condition.severity == severity
    assert text in condition.what
    assert bool(condition.fix) == (severity != "fine")


@pytest.mark.parametrize(
    ("parent", "fix"), [(1, "`kill {}`"), (2, "wait until the other run ends")]
)
def test_only_processes_without_a_launcher_should_be_ended(tmp_path, monkeypatch, parent, fix):
    """A process of a run whose launcher has ended is a child of process 1.

    ``parent``: id of the parent; 2 stands for a launcher that still runs. The run "r1" has one
    process, for which this test's own stands.
    """
    monkeypatch.setattr(psutil.Process, "ppid", lambda _: parent)
    condition = read_single_condition(
        host.check_other_runs(make_machine(tmp_path, runs={"r1": [os.getpid()]}))
    )
    assert (condition.severity, condition.fix) == ("spoils", fix.format(os.getpid()))


def test_a_file_that_is_missing_makes_the_check_unknown(tmp_path):
    # ``make_cgroup`` gives the machine three files, from which the memory of a group of processes
    # is read; one of them is then deleted.
    machine = make_machine(tmp_path, make_cgroup(limit=16 * GIB, used_gib=5))
    (tmp_path / "sys/fs/cgroup/memory.stat").unlink()
    (check,) = examine(machine, {"memory": host.check_memory}).checks
    assert (check.code, check.severity) == ("memory", "unknown")
    assert "FileNotFoundError" in check.what
    assert check.fix


@pytest.mark.parametrize(
    # 1 GiB is enough for a long run, 8 MiB for a short one.
    ("free", "severity"),
    [(GIB, "fine"), (GIB - 1, "spoils"), (8 * MIB, "spoils"), (8 * MIB - 1, "stops")],
)
def test_space_is_compared_with_what_a_run_needs(tmp_path, free, severity):
    # ``free``: bytes that are free on the disk of the folder for runs. One byte below either limit
    # changes the severity.
    assert (
        read_single_condition(host.check_out_folder(make_machine(tmp_path, free=free))).severity
        == severity
    )


def make_governors(**governors_and_drivers: tuple[str, str]) -> dict[str, str]:
    """Return the files with the frequency governor and its driver of each core, such as cpu0."""
    files = {}
    for core, (governor, driver) in governors_and_drivers.items():
        folder = f"sys/devices/system/cpu/{core}/cpufreq"
        files |= {f"{folder}/scaling_governor": governor + "\n"}
        files |= {f"{folder}/scaling_driver": driver + "\n"}
    return files


@pytest.mark.parametrize(
    ("files", "severity", "text"),
    [
        (
            make_governors(
                cpu0=("performance", "acpi-cpufreq"), cpu1=("performance", "acpi-cpufreq")
            ),
            "fine",
            "CPU frequency governor: performance (acpi-cpufreq)",
        ),
        # With this driver "powersave" raises the clock under load; with others it never does.
        (make_governors(cpu0=("powersave", "intel_pstate")), "fine", "powersave (intel_pstate)"),
        (
            make_governors(
                cpu0=("performance", "acpi-cpufreq"), cpu1=("powersave", "acpi-cpufreq")
            ),
            "spoils",
            "performance (acpi-cpufreq), powersave (acpi-cpufreq)",
        ),
    ],
)
def test_governor_that_keeps_the_lowest_clock_skews_results(tmp_path, files, severity, text):
    # ``make_governors`` returns the files in which the kernel names, for each core, the governor
    # that sets its clock, and the driver through which it does so.
    condition = read_single_condition(host.check_governor(make_machine(tmp_path, files)))
    assert condition.severity == severity
    assert text in condition.what


def test_a_machine_without_governors_has_no_condition(tmp_path):
    assert list(host.check_governor(make_machine(tmp_path))) == []
    assert list(host.check_numa(make_machine(tmp_path))) == []


@pytest.mark.parametrize(
    ("cores", "balancing", "severity", "text"),
    [
        (("0-3",), "1", "fine", "1 NUMA node"),
        (("0-1", "2-3"), "0", "fine", "2 NUMA nodes"),
        (("0-1", "2-3"), None, "fine", "2 NUMA nodes"),
        # A node without cores, such as an accelerator's memory.
        (("0-3", ""), "1", "fine", "1 NUMA node"),
        (("0-1", "2-3"), "1", "spoils", "2 NUMA nodes; automatic NUMA balancing is enabled"),
    ],
)
def test_numa_balancing_skews_results(tmp_path, cores, balancing, severity, text):
    """``cores``: of each NUMA node; ``balancing``: the kernel's switch, None if it has none.

    A NUMA node is memory with the cores near it. Switched on ("1"), the kernel moves memory between
    nodes while a run computes; with a single node it has nothing to move.
    """
    files = {
        f"sys/devices/system/node/node{node}/cpulist": f"{numbers}\n"
        for node, numbers in enumerate(cores)
    }
    if balancing is not None:
        files["proc/sys/kernel/numa_balancing"] = f"{balancing}\n"
    condition = read_single_condition(host.check_numa(make_machine(tmp_path, files)))
    assert condition.severity == severity
    assert condition.what.startswith(text)


def test_cores_are_counted_on_a_system_without_affinity(tmp_path, monkeypatch):
    """Python has no ``sched_getaffinity`` on macOS; all cores, here 7, are allowed there."""
    machine = make_machine(tmp_path, nproc=8)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    condition = read_single_condition(host.check_cores(machine))
    assert condition.severity == "spoils"
    assert condition.what.startswith("8 ranks; 7 cores allowed")
