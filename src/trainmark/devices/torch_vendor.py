"""What vendors have in common whose devices torch drives through ``torch.accelerator``.

A vendor's file says the facts: torch type, package, driver's files, tool. Owns detection from
them, and asks the tool once for what does not change. Does not import torch.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.devices import tool
from trainmark.devices.accelerator import Accelerator, read_torch_build
from trainmark.protocols import MonitorFault, Refusal
from trainmark.protocols.tested import NOT_STATED
from trainmark.spec import RankMemory, Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.protocols import DeviceSample, Monitor, Occupant
    from trainmark.recipe import Recipe

ROOT = Path("/")
# Base classes of https://pci-ids.ucw.cz/read/PD, 2026-11-22: display controllers (03), processing
# accelerators (12), and co-processors (0b).
PCI_CLASSES = ("0x03", "0x12", "0x0b")
PCI_COMPUTE = ("0x0302", "0x12", "0x0b")  # without the display controllers that are there to draw
_DRIVER = re.compile(r"Driver(?: Version)?\s*:?\s*v?([0-9][\w.-]*)")


class TorchVendor:
    """A vendor whose devices torch drives; see ``protocols.Vendor``. Subclasses give the facts.

    Args:
        tested: what it was tested on.
        nodes: pattern of the driver's device files below ``/``, one for each device.
        shared: the driver's files below ``/`` that every process opens besides.
        narrowed_by: variables that hide devices, one after another, each numbering what the last
            left; of several in one place the first that is set. Empty: ``visible_devices`` alone.
        package: distribution that adds ``torch_type`` to torch; None: torch itself was built
            for it.
        built: then, the field of ``TorchBuild`` that says so, ``hip`` for example.
        module: the kernel module, whose version is the driver's; several names: of its versions.
        pci_vendor: the vendor's id on the PCI bus.
        pci_classes: of its devices on the PCI bus, where they are found without the driver's files.
        commands: of the tool; a later one is used if the earlier ones' output cannot be read.
        once: tells what does not change, a device's name for example; run at the first reading.
        folders: where the vendor installs the tool, if it is not on the PATH.
        in_tools_order: a device's number is its place in what the tool prints: tools number cards,
            chips, or those of the machine in a container.
    """

    name: str
    tested: Text = NOT_STATED
    torch_type: str
    collective_backend: str
    visible_devices: str | None
    recorded_variables: tuple[str, ...]
    counts_cores = False
    nodes: str
    shared: tuple[str, ...] = ()
    narrowed_by: tuple[tuple[str, ...], ...] = ()
    package: str | None
    built: str | None = None
    module: str | None
    pci_vendor: int
    pci_classes: tuple[str, ...] = PCI_CLASSES
    commands: tuple[tool.Command, ...] = ()
    once: tool.Command | None = None
    folders: tuple[str, ...] = ()
    in_tools_order = True

    def monitor(self) -> Monitor | None:
        """Return what runs the tool; see ``Vendor.monitor``."""
        path = tool.find_tool(self.commands[0].argv[0], self.folders)
        commands = [
            tool_command._replace(argv=(path, *tool_command.argv[1:]))
            for tool_command in self.commands
        ]
        once = self.once and self.once._replace(argv=(path, *self.once.argv[1:]))
        count = len(self.device_files()) if self.in_tools_order else None
        return tool.ToolMonitor(*commands, count=count, once=once)

    def here(self) -> bool:
        """Tell whether a device of this vendor is in the machine, by its driver's files."""
        return bool(self.device_files())

    def device_files(self) -> list[Path]:
        """Return the driver's file of each device, in the order of their numbers."""
        paths = ROOT.glob(self.nodes.lstrip("/"))
        return sorted(paths, key=lambda path: (len(path.name), path.name))

    def drives(self) -> bool:
        """Tell whether the installed torch drives these devices."""
        if self.package is not None:
            return find_spec(self.package) is not None
        if self.built is None:
            return True
        build = read_torch_build()
        ours = build is not None and build.maker in (None, self.name)
        return ours and getattr(build, self.built) is not None

    def denied(self) -> list[Path]:
        """Return what this user may not open, if that leaves no device to use."""

        def closed(files: list[Path]) -> list[Path]:
            return [x for x in files if x.exists() and not os.access(x, os.R_OK | os.W_OK)]

        files = self.device_files()
        shared, closed_own = closed([ROOT / name for name in self.shared]), closed(files)
        return shared + closed_own if shared or len(closed_own) == len(files) else []

    def visible(self) -> list[int]:
        """Return the numbers of the devices that the environment leaves to ranks, in its order."""
        visible_numbers = list(range(len(self.device_files())))
        for names in self.narrowed_by or ((self.visible_devices or "",),):
            chosen = next((os.environ[name] for name in names if name in os.environ), None)
            visible_numbers = [
                visible_numbers[place]
                for place in select_named(chosen, len(visible_numbers), self.identities())
            ]
        return visible_numbers

    def identities(self) -> list[str]:
        """Return what variables may call each device in place of its number."""
        return []

    def count(self) -> int:
        """Return the devices ranks can use."""
        usable = self.here() and self.drives() and not self.denied()
        return len(self.visible()) if usable else 0

    @cached_property
    def _first(self) -> tuple[dict[int | None, DeviceSample], str]:
        """The first reading by the monitor's number, and what the tool printed."""
        monitor = None
        with suppress(MonitorFault):
            monitor = self.monitor()
        first_reading = _read_devices(monitor)
        return first_reading, getattr(monitor, "printed", "")

    def monitor_index(self, number: int) -> int | None:
        """Return the monitor's number of a device; None where it is not known."""
        return number

    def _indices(self, nproc: int) -> list[int | None]:
        return [self.monitor_index(number) for number in self.visible()[:nproc]]

    def product_names(self) -> list[str]:
        """Return the product name of each visible device, ``unknown`` where no tool tells it."""
        if not self.count():
            return []
        samples, _ = self._first
        readings = [samples.get(index) for index in self._indices(len(self.visible()))]
        return [(sample.name if sample else None) or "unknown" for sample in readings]

    def rank_memory(self, nproc: int) -> RankMemory | None:
        """Return the least free memory among the ranks' devices now; None without a monitor."""
        samples, _ = self._first  # a tool that gave nothing is not waited for again
        now = _read_devices(self.monitor()) if samples else {}
        free = [
            sample.memory_total_bytes - (sample.memory_used_bytes or 0)
            for index in self._indices(nproc)
            if (sample := now.get(index)) and sample.memory_total_bytes
        ]
        return RankMemory(max(0, min(free))) if free else None

    def refuse(self, recipe: Recipe, nproc: int) -> Refusal | None:
        """Refuse TF32, which nobody has tried on these devices."""
        del nproc
        if recipe.precision == "tf32":
            return Refusal(
                f"precision=tf32 is not supported on {self.name} devices: torch does not "
                "report whether they use it",
                "use precision=fp32 or bf16",
            )
        return None

    def unusable(self) -> Refusal | None:
        """Return why no device that is here can be used; see ``protocols.Diagnoses``."""
        files = self.device_files()
        on_bus = list_pci_accelerators(self.pci_vendor, self.pci_classes)
        if not files and on_bus:
            return Refusal(
                f"{len(on_bus)} {self.name} device(s) on the PCI bus, but no {self.nodes}",
                "load the vendor's driver; in a container, pass the device files through",
            )
        if not files or self.count():
            return None
        here = f"{len(files)} {self.name} device(s) on this machine, but"
        if not self.drives():
            missing = f"the package {self.package} is not installed"
            torch = missing if self.package else "the installed torch is not built for them"
            return Refusal(
                f"{here} {torch}",
                "install the vendor's torch, then run `make clean` and `make install "
                "TORCH=system PYTHON=...` with the Python that has it",
            )
        if denied := self.denied():
            return Refusal(
                f"{here} this user may not open {', '.join(str(file) for file in denied)}",
                "ask to be added to the group that owns the file, and log in again",
            )
        return Refusal(
            f"{self.visible_devices}={os.environ.get(self.visible_devices or '')!r} matches "
            f"none of the {len(files)} {self.name} devices on this machine",
            f"unset {self.visible_devices}, or set it to device numbers starting from 0",
        )

    def occupants(self, nproc: int) -> list[Occupant]:
        """Return nothing: the vendors' tools differ in which processes they show, and to whom."""
        del nproc
        return []

    def driver_version(self) -> str | None:
        """Return the version of the kernel module, or the one that the tool prints."""
        for name in (self.module or "").split():
            with suppress(OSError):  # modules of the kernel itself have no version of their own
                if version := (ROOT / "sys/module" / name / "version").read_text().strip():
                    return version
        match = _DRIVER.search(self._first[1]) if self.here() else None
        return match[1] if match else None

    def collective_library(self) -> str:
        """Return the backend, with the version of the library where torch tells it."""
        if self.package is None and self.torch_type == "cuda":
            from torch.cuda import nccl

            return f"{self.collective_backend} " + ".".join(str(part) for part in nccl.version())
        return self.collective_backend

    def monitored(self, nproc: int) -> list[int]:
        """Return the monitor's numbers of the ranks' devices; see ``Vendor.monitored``."""
        indices = self._indices(nproc)
        known = [index for index in indices if index is not None]
        return known if len(known) == len(indices) else []

    def open(self, local_rank: int, ranks_here: int) -> Accelerator:
        """Return the device with the rank's local number."""
        del ranks_here
        return Accelerator(
            local_rank, vendor=self.name, torch_type=self.torch_type, modules=self.modules()
        )

    def modules(self) -> Sequence[str]:
        """Return what a rank imports after torch so that torch knows the devices."""
        return () if self.package is None else (self.package,)


def _read_devices(monitor: Monitor | None) -> dict[int | None, DeviceSample]:
    """Return the devices by the monitor's number; nothing if it tells nothing."""
    if monitor is None:
        return {}
    try:
        return {sample.index: sample for sample in monitor.read()}
    except MonitorFault:
        return {}
    finally:
        monitor.close()


def list_pci_accelerators(vendor: int, classes: tuple[str, ...] = PCI_CLASSES) -> list[Path]:
    """Return the folders of a vendor's accelerators on the PCI bus, in the order of addresses."""
    accelerators = []
    for folder in sorted((ROOT / "sys/bus/pci/devices").glob("*")):
        with suppress(OSError, ValueError):  # removed meanwhile, or it does not tell what it is
            kind = (folder / "class").read_text().strip()
            if int((folder / "vendor").read_text(), 16) == vendor and kind.startswith(classes):
                accelerators.append(folder)
    return accelerators


def select_named(chosen: str | None, count: int, identities: Sequence[str] = ()) -> list[int]:
    """Return the devices of 0 to ``count`` - 1 that a variable's value leaves, in its order."""
    if chosen is None:
        return list(range(count))
    numbers: list[int] = []
    for item in map(str.strip, chosen.split(",")):
        number = int(item) if re.fullmatch("[0-9]{1,9}", item) else count
        number = identities.index(item) if item in identities else number
        if number >= count or number in numbers:
            break  # as the drivers do: the list ends at the first that names nothing
        numbers.append(number)
    return numbers
