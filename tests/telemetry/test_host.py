"""Readings of the host: counters that wrap, files that only root may read, output of tools."""

from __future__ import annotations

import stat
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from trainmark.protocols import MonitorFault
from trainmark.telemetry.host import HostReader, PackageEnergy

if TYPE_CHECKING:
    from pathlib import Path

    from support.fakes import FakeClock

RANGE_UJ = 262_143_328_850  # of a common processor


def write_zone(root: Path, number: str, name: str, energy_uj: int) -> Path:
    """Write a zone of RAPL, energy that is counted, as Linux shows it; return the counter's file.

    Args:
        number: of the zone; "0:1" is a part of zone 0.
        name: what the zone counts, such as "package-0", a processor, or "dram", its memory.
        energy_uj: what the counter shows, in microjoules.
    """
    # ``RANGE_UJ``: microjoules after which the counter starts anew.
    folder = root / "sys/class/powercap" / f"intel-rapl:{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(name + "\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    return folder / "energy_uj"


def test_only_the_energy_of_packages_is_summed(tmp_path: Path) -> None:
    first, second = (
        write_zone(tmp_path, str(number), f"package-{number}", energy_uj=1_000_000)
        for number in (0, 1)
    )
    # Zones whose energy must not be added: parts of package 0, and the whole machine (psys).
    other_zones = [
        write_zone(tmp_path, *zone_and_name, 5)
        for zone_and_name in (("0:0", "core"), ("0:1", "dram"), ("2", "psys"))
    ]
    energy = PackageEnergy(root=tmp_path)
    assert energy.read() == {"energy_j": 0.0}  # counted from the first reading
    first.write_text("4000000\n")
    second.write_text("1500000\n")
    for counter in other_zones:
        counter.write_text("99000000\n")
    assert energy.read() == {"energy_j": 3.5}  # 3 J and 0.5 J of the packages


def test_gap_in_which_a_counter_could_wrap_gives_no_energy(
    tmp_path: Path, clock: FakeClock
) -> None:
    counter = write_zone(tmp_path, "0", "package-0", energy_uj=0)
    energy = PackageEnergy(root=tmp_path, clock=clock)
    energy.read()
    # The counter starts anew after its range, 262.1 kJ. A package is taken to draw at most 2,000 W,
    # in 131 s 262.0 kJ.
    clock.advance(131 * 10**9)
    counter.write_text("5000000\n")  # microjoules
    assert energy.read() == {"energy_j": 5.0}
    clock.advance(132 * 10**9)  # up to 264 kJ, more than the range
    counter.write_text("6000000\n")
    with pytest.raises(MonitorFault) as fault:
        energy.read()
    assert fault.value.kind == "failed"
    assert not energy.is_readable  # so it is not asked again


def test_cpu_use_needs_a_long_enough_interval(tmp_path: Path, clock: FakeClock) -> None:
    machine = HostReader(root=tmp_path, clock=clock)
    assert machine.sources == ["psutil"]
    readings = []
    # Milliseconds since the last reading. The use of the CPU is read only if 100 ms have passed
    # since it was last read.
    for after_ms in (50, 60, 99, 1):
        clock.advance(after_ms * 10**6)
        # ``nullcontext``: errors of a source are raised, not reported.
        readings.append(set(machine.read(lambda _: nullcontext())))
    # Readings are at 50, 110, 209 and 210 ms. The use is read at 110 ms, and 100 ms later.
    memory, cpu = "memory_used_bytes", "utilization_percent"
    assert readings == [{memory}, {memory, cpu}, {memory}, {memory, cpu}]


# What ipmitool prints, by https://github.com/ipmitool/ipmitool, lib/ipmi_dcmi.c, 2026-11-22; not
# recorded: the numbers are made up.
DCMI = """
    Instantaneous power reading:                  1206 Watts
    Minimum during sampling period:                210 Watts
    Maximum during sampling period:               1310 Watts
    Average power reading over sample period:     1105 Watts
    IPMI timestamp:                           Sun Nov 22 08:00:00 2026
    Sampling period:                          00000005 Seconds.
    Power reading state is:                   activated
"""


@pytest.fixture
def ipmitool_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an ipmitool on the path that prints a file when asked for the power; return the file."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ipmitool").write_text(
        f'#!/bin/sh\n[ "$*" = "dcmi power reading" ] && cat {folder}/output.txt\n'
    )
    (folder / "ipmitool").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder / "output.txt"


def test_each_power_reading_of_the_controller_is_reported_once(
    ipmitool_output: Path, tmp_path: Path
) -> None:
    ipmitool_output.write_text(DCMI)  # an answer with 1,206 W
    write_zone(tmp_path, "0", "package-0", energy_uj=7)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/ipmi0").touch()  # the file of a controller, by which ipmitool reaches it
    machine = HostReader(root=tmp_path)
    # ``rapl`` counts the energy of the processor, ``ipmi`` is the machine's controller.
    assert machine.sources == ["psutil", "rapl", "ipmi"]
    machine.ask_controller()  # runs ipmitool, which takes long, so not with each reading
    # ``nullcontext``: errors of a source are raised, not reported.
    readings = [machine.read(lambda _: nullcontext()) for _ in range(2)]
    assert [reading.get("power_w") for reading in readings] == [1206.0, None]
    # The energy since the first reading; the counter stands still.
    assert [reading["energy_j"] for reading in readings] == [0.0, 0.0]
