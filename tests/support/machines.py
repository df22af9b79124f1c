"""Machines for ``trainmark doctor``: files of a sound one below a folder, and readings."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from support.fakes import FakeVendor
from trainmark.launch.processes import CpuUse
from trainmark.machine import doctor, host
from trainmark.machine.doctor import render_sentence
from trainmark.machine.host import Condition, ExaminedMachine
from trainmark.plan.request import RunRequest
from trainmark.protocols import DeviceSample, MonitorFault, Occupant, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GIB = 2**30
FILES = {  # of every machine: its processes are in the root cgroup, without limits
    "proc/self/cgroup": "0::/\n",
    "sys/fs/cgroup/cgroup.procs": "",
}
PATCH = pytest.MonkeyPatch()  # undone after each test, see machine/conftest.py


def write_files(root: Path, files: dict[str, str]) -> None:
    """Write texts into files below ``root``, by path."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def write_vendor_package(folder: Path, code: str) -> str:
    """Install a package with a vendor for ``--device faulty``; return a PYTHONPATH that has it.

    Args:
        folder: below which the package is written.
        code: of the module, which defines the class ``Faulty``.
    """
    write_files(
        folder / "site",
        {
            "faulty_vendor.py": code,
            "faulty-1.0.dist-info/METADATA": "Name: faulty\nVersion: 1.0\n",
            "faulty-1.0.dist-info/entry_points.txt": (
                "[trainmark.devices]\nfaulty = faulty_vendor:Faulty\n"
            ),
        },
    )
    paths = [str(folder / "site"), os.environ.get("PYTHONPATH")]
    return os.pathsep.join(filter(None, paths))


def make_cpu_use(busy_s: float) -> Callable[[], CpuUse]:
    """Return a function that gives two readings ten seconds apart, ``busy_s`` of them busy.

    Seconds are of all cores together, as the kernel counts them. ``children_s`` are those of this
    process's children, here none.
    """
    readings = iter(
        [
            CpuUse(busy_s=0.0, total_s=0.0, children_s=0.0),
            CpuUse(busy_s=busy_s, total_s=10.0, children_s=0.0),
        ]
    )
    return lambda: next(readings)


def make_memory(available_gib: float) -> dict[str, Any]:
    """Return what ``make_machine`` takes for a machine with 64 GiB of memory."""
    return {"memory": SimpleNamespace(total=64 * GIB, available=int(available_gib * GIB))}


def make_machine(
    root: Path, files: dict[str, str] | None = None, **changes: Any
) -> ExaminedMachine:
    """Return a sound machine of four cores, with what a test changes.

    ``trainmark doctor`` examines it. ``FILES`` are the files of every machine, and ``PATCH`` sets
    readings until the test ends. A sound machine's cores are busy for 0.5 of 10 s, which is less
    than the allowed tenth; 32 of its 64 GiB of memory are free; a tool prints an empty JSON object.
    ``Card()`` is a vendor of two accelerators, for one rank each (``nproc``).

    Args:
        files: texts of files below ``root``, by path; they are added to those of a sound machine.
        changes: readings, which this process gets in place of its own until the test ends:
            ``affinity``; ``cpu_use``, see ``make_cpu_use``; ``free``: bytes of any disk; ``runs``:
            process ids of other runs, by run; ``tool``: instead of ``run_tool``; ``memory``, see
            ``make_memory``. ``data``: of the request. Others: fields of ``ExaminedMachine``.
    """
    write_files(root, FILES | (files or {}))
    readings: dict[str, Any] = {
        "affinity": {0, 1, 2, 3},
        "cpu_use": make_cpu_use(0.5),
        "free": 100 * GIB,
        "runs": {},
        "tool": lambda *_, **__: "{}\n",
        **make_memory(32),
    }
    readings |= {name: changes.pop(name) for name in readings.keys() & changes}
    PATCH.setattr(os, "sched_getaffinity", lambda _: readings["affinity"])
    PATCH.setattr(CpuUse, "read", readings["cpu_use"])
    PATCH.setattr(host, "sleep", lambda _: None)  # no wait between the two readings of the cores
    PATCH.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=readings["free"]))
    PATCH.setattr(host, "find_alive_runs", lambda: readings["runs"])
    PATCH.setattr(doctor, "run_tool", readings["tool"])
    PATCH.setattr(psutil, "virtual_memory", lambda: readings["memory"])
    # "-": no case, as no test needs one.
    request = RunRequest(case="-", out=root / "runs", data=changes.pop("data", None))
    sound: dict[str, Any] = {"request": request, "vendor": Card(), "nproc": 2, "root": root}
    return ExaminedMachine(**(sound | changes))


def translate_condition(condition: Condition) -> Condition:
    """Return a condition in English; check that its Chinese text is another one.

    A condition is what ``trainmark doctor`` reports of a machine: ``what`` it found, and the
    ``fix``, which may be empty.
    """
    texts = [render_sentence(text, "en") for text in (condition.what, condition.fix)]
    assert condition.fix == "" or render_sentence(condition.fix, "zh") != texts[1]
    # A plain text, such as an error's, is the same in both languages.
    assert isinstance(condition.what, str) or render_sentence(condition.what, "zh") != texts[0]
    return replace(condition, what=texts[0], fix=texts[1])


def read_single_condition(conditions: Iterator[Condition]) -> Condition:
    (condition,) = conditions
    return translate_condition(condition)


@dataclass
class Card(FakeVendor):
    """Two accelerators whose users and monitor a test chooses."""

    users: tuple[Occupant, ...] = ()  # other processes on them
    refusal: Refusal | None = None  # why cards of this vendor cannot be used
    refused: tuple[str, ...] = ()  # precisions
    reads: int | str | None = 2  # number of devices read, or a fault's kind; None: no monitor
    pci_vendor: int = 0x1FFF

    def unusable(self) -> Refusal | None:
        return self.refusal

    def occupants(self, nproc: int) -> list[Occupant]:
        return list(self.users)

    def refuse(self, recipe: Any, nproc: int) -> Refusal | None:
        refused = recipe.precision in self.refused
        return Refusal(f"no units for {recipe.precision}", "another one") if refused else None

    def monitor(self) -> Any:
        return None if self.reads is None else Reader(self.reads)


@dataclass
class Reader:
    """A monitor of so many devices, or one that fails."""

    answers: int | str  # number of devices, or the kind of the fault that each reading raises
    name: str = "card-smi 1.0"
    closed: bool = False

    def read(self) -> list[DeviceSample]:
        """Return an empty sample of each device; raise a fault if ``answers`` names its kind."""
        # ``answers``: the number of devices, or the kind of the fault.
        if isinstance(self.answers, str):
            raise MonitorFault(self.answers, "no answer")  # type: ignore[arg-type]
        return [DeviceSample(index=index) for index in range(self.answers)]

    def close(self) -> None:
        self.closed = True
