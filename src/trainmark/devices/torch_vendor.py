"""The base class of vendors whose devices torch drives through ``torch.accelerator``.

A vendor's own file states its facts: torch type, package, device files of the driver, tool. This
module finds the devices by them, and asks the tool only once for what does not change. It does not
import torch.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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
PCI_COMPUTE = ("0x0302", "0x12", "0x0b")  # without the display controllers that only draw
# The driver's version in what a tool prints: `Driver Version: 4.1.0`, `Driver v5.10.31`.
_DRIVER_VERSION = re.compile(r"Driver(?: Version)?\s*:?\s*v?([0-9][\w.-]*)")


class FirstReading(NamedTuple):
    """What a vendor's monitor returned when it was first asked; empty if it gave nothing.

    Args:
        samples: the devices, by the monitor's number; None: the monitor did not report it.
        printed: the text that the tool printed.
    """

    samples: dict[int | None, DeviceSample]
    printed: str


class TorchVendor:
    """A vendor whose devices torch drives; see ``protocols.Vendor``. Subclasses give the facts.

    Args:
        tested: what it was tested on.
        nodes: pattern of the driver's device files below ``/``, one for each device.
        shared: further files of the driver below ``/``, which every process opens.
        hiding_variables: groups of environment variables that hide devices. The groups apply one
            after another, and each numbers the devices that the group before it left. Of the
            variables of one group, the first that is set applies. Empty: only ``visible_devices``.
        caseless_variables: those that take devices' identities in upper and in lower case.
        package: distribution that adds ``torch_type`` to torch; None: torch itself was built
            for it.
        build_field: if ``package`` is None, the field of ``TorchBuild`` that is set in a torch
            that was built for these devices, ``hip`` for example. None: every torch drives them.
        module: the kernel module, whose version is the driver's; several names, separated by
            spaces, if versions of the driver name it differently.
        pci_vendor: the vendor's id on the PCI bus.
        pci_classes: PCI classes of its devices, which are found by them if the driver's files are
            missing.
        commands: of the tool, at least one, all of the same program; a later one is used if the
            earlier ones' output cannot be read. A subclass that has its own ``monitor`` needs none.
        constants_command: prints what does not change, a device's name for example; run only at
            the first reading.
        folders: where the vendor installs the tool, if it is not on the PATH.
        numbers_follow_tool: whether a device's number is its place in what the tool prints. False
            for tools that list cards instead of chips, or inside a container list all devices of
            the machine.
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
    hiding_variables: tuple[tuple[str, ...], ...] = ()
    caseless_variables: tuple[str, ...] = ()
    package: str | None
    build_field: str | None = None
    module: str | None
    pci_vendor: int
    pci_classes: tuple[str, ...] = PCI_CLASSES
    commands: tuple[tool.Command, ...] = ()
    constants_command: tool.Command | None = None
    folders: tuple[str, ...] = ()
    numbers_follow_tool = True

    def monitor(self) -> Monitor | None:
        """Return the monitor, which runs the vendor's tool to read the devices.

        Raises:
            MonitorFault: the tool is not installed.
        """
        path = tool.find_tool(self.commands[0].argv[0], self.folders)
        commands = [command.with_path(path) for command in self.commands]
        constants_command = None
        if self.constants_command is not None:
            constants_command = self.constants_command.with_path(path)
        expected_count = None  # any number of devices
        if self.numbers_follow_tool:
            # A device's number is its place in what the tool prints. If the tool lists more or
            # fewer devices, it is not clear which is which: the monitor then refuses the reading.
            expected_count = len(self.list_device_files())
        return tool.ToolMonitor(
            *commands, expected_count=expected_count, constants_command=constants_command
        )

    def is_present(self) -> bool:
        """Tell whether a device of this vendor is in the machine, by its driver's files."""
        return bool(self.list_device_files())

    def list_device_files(self) -> list[Path]:
        """Return the driver's file of each device, in the order of their numbers."""
        paths = ROOT.glob(self.nodes.lstrip("/"))
        # By length first, so that device 10 comes after device 9.
        return sorted(paths, key=lambda path: (len(path.name), path.name))

    def is_driven_by_torch(self) -> bool:
        """Tell whether the installed torch drives these devices."""
        if self.package is not None:  # the package that adds these devices to torch
            return find_spec(self.package) is not None
        if self.build_field is None:  # every torch drives them
            return True
        build = read_torch_build()
        if build is None or build.maker not in (None, self.name):
            # There is no torch, or another vendor built it. NVIDIA's and AMD's have no ``maker``.
            return False
        # The field is set in a torch that was built for these devices, ``hip`` for example.
        return getattr(build, self.build_field) is not None

    def list_denied_files(self) -> list[Path]:
        """Return the driver's files that this user may not open.

        Empty if at least one device can be used in spite of them.
        """
        device_files = self.list_device_files()
        denied_shared_files = _list_closed_files([ROOT / name for name in self.shared])
        denied_device_files = _list_closed_files(device_files)
        # Every process needs the shared files, but the file of only one device.
        if denied_shared_files or len(denied_device_files) == len(device_files):
            return denied_shared_files + denied_device_files
        return []

    def _list_hiding_variables(self) -> list[str]:
        """Return the environment variables that hide devices now, in the order in which they apply.

        Of each group of ``hiding_variables``, the first variable that is set applies. A vendor
        without groups has at most one variable, ``visible_devices``.
        """
        groups = self.hiding_variables
        if not groups and self.visible_devices is not None:
            groups = ((self.visible_devices,),)
        hiding_names = []
        for group in groups:
            set_names = [name for name in group if name in os.environ]
            hiding_names += set_names[:1]
        return hiding_names

    def list_visible(self) -> list[int]:
        """Return the numbers of the devices that environment variables leave to ranks.

        They are in the order in which ranks use them.
        """
        # By number, the names that variables may use in place of the numbers; empty: no names.
        identities = self.list_identities()
        visible_numbers = list(range(len(self.list_device_files())))
        for name in self._list_hiding_variables():
            # A variable counts only the devices that the variables before it have left.
            selected_places = select_visible(
                os.environ[name],
                len(visible_numbers),
                [identities[number] for number in visible_numbers] if identities else [],
                ignore_case=name in self.caseless_variables,
            )
            visible_numbers = [visible_numbers[place] for place in selected_places]
        return visible_numbers

    def list_identities(self) -> list[str]:
        """Return the name that variables may use in place of each device's number; empty: none."""
        return []

    def count(self) -> int:
        """Return the number of devices that ranks can use."""
        usable = self.is_present() and self.is_driven_by_torch() and not self.list_denied_files()
        return len(self.list_visible()) if usable else 0

    @cached_property
    def _first_reading(self) -> FirstReading:
        """The first reading of the monitor; empty if there is no monitor, or if it fails."""
        monitor = None
        with suppress(MonitorFault):
            monitor = self.monitor()
        samples = _read_devices(monitor)
        # Only monitors that run a tool have ``printed``, the text that the tool printed.
        return FirstReading(samples, printed=getattr(monitor, "printed", ""))

    def find_monitor_index(self, number: int) -> int | None:
        """Return the monitor's number of a device; None if it is not known."""
        return number

    def _list_monitor_indices(self, nproc: int) -> list[int | None]:
        """Return the monitor's number of each rank's device; None for one that is not known."""
        return [self.find_monitor_index(number) for number in self.list_visible()[:nproc]]

    def product_names(self) -> list[str]:
        """Return the product name of each device that ranks can use.

        The name is ``unknown`` if the vendor's tool does not report it.
        """
        num_devices = self.count()  # 0 if torch cannot use the devices, though they are visible
        names = []
        for index in self._list_monitor_indices(num_devices):
            # ``samples`` may have the key None, for a device whose number the monitor does not
            # report. It is not looked up, because it may be another device than this one.
            sample = None if index is None else self._first_reading.samples.get(index)
            name = None if sample is None else sample.name
            names.append(name or "unknown")
        return names

    def rank_memory(self, nproc: int) -> RankMemory | None:
        """Return the least free memory among the ranks' devices now; None if it is not known.

        It is not known if there is no monitor, or if the monitor reports no device's total memory.
        """
        if not self._first_reading.samples:
            return None  # there is no monitor, or it failed and may take long to fail again
        # The first reading shows that the tool is installed, so ``monitor`` does not raise.
        samples = _read_devices(self.monitor())
        free_bytes = []
        for index in self._list_monitor_indices(nproc):
            sample = None if index is None else samples.get(index)
            if sample is not None and sample.memory_total_bytes:
                # Without a reading of the used memory, all of it counts as free.
                free_bytes.append(sample.memory_total_bytes - (sample.memory_used_bytes or 0))
        return RankMemory(max(0, min(free_bytes))) if free_bytes else None

    def refuse(self, recipe: Recipe, nproc: int) -> Refusal | None:
        """Refuse TF32, because torch does not report whether these devices use it."""
        del nproc
        if recipe.precision == "tf32":
            return Refusal(
                f"precision=tf32 is not supported on {self.name} devices: torch does not "
                "report whether they use TF32",
                "use precision=fp32 or bf16",
            )
        return None

    def unusable(self) -> Refusal | None:
        """Return why no device of this machine can be used.

        None if one can be used, or if the machine has none.
        """
        files = self.list_device_files()
        on_bus = list_pci_accelerators(self.pci_vendor, self.pci_classes)
        if not files and on_bus:
            return Refusal(
                f"{len(on_bus)} {self.name} device(s) found on the PCI bus, but no {self.nodes}",
                "load the vendor's driver; in a container, pass the device files through",
            )
        if not files or self.count():  # no such device is here, or one can be used
            return None
        presence = f"{len(files)} {self.name} device(s) found on this machine, but"
        if not self.is_driven_by_torch():
            if self.package:
                reason = f"the package {self.package} is not installed"
            else:
                reason = "the installed torch is not built for them"
            return Refusal(
                f"{presence} {reason}",
                "install the vendor's torch, then run `make clean` and `make install "
                "TORCH=system PYTHON=...`, where PYTHON is the Python with this torch",
            )
        denied_files = self.list_denied_files()
        if denied_files:
            return Refusal(
                f"{presence} this user has no permission to open "
                f"{', '.join(str(file) for file in denied_files)}",
                "ask to be added to the group that owns the file, and log in again",
            )
        # The devices are here, may be opened, and torch drives them. If ``count`` is still 0,
        # variables hide them all, so ``names`` is not empty.
        names = self._list_hiding_variables()
        settings = " and ".join(f"{name}={os.environ[name]!r}" for name in names)
        return Refusal(
            f"{settings} {'hide' if len(names) > 1 else 'hides'} all {self.name} "
            f"devices of this machine ({len(files)})",
            f"unset {' and '.join(names)}, or use device numbers starting from 0",
        )

    def occupants(self, nproc: int) -> list[Occupant]:
        """Return an empty list: processes on the devices are not looked for.

        The vendors' tools differ in which processes they show, and to whom.
        """
        del nproc
        return []

    def driver_version(self) -> str | None:
        """Return the version of the kernel module, or else the one that the vendor's tool prints.

        None if neither is known.
        """
        # `module` has several names, separated by spaces, if versions of the driver differ in it.
        for name in (self.module or "").split():
            with suppress(OSError):  # modules of the kernel itself have no version of their own
                version = (ROOT / "sys/module" / name / "version").read_text().strip()
                if version:
                    return version
        if not self.is_present():
            return None
        match = _DRIVER_VERSION.search(self._first_reading.printed)
        return match[1] if match else None

    def collective_library(self) -> str:
        """Return the name of the collective backend, with its library's version if torch has it."""
        # The condition: torch itself, without a package that extends it, drives these devices under
        # its type ``cuda``. Such a torch was built with NCCL or with a vendor's library in NCCL's
        # place, and reports the version of the one that it has.
        if self.package is None and self.torch_type == "cuda":
            from torch.cuda import nccl

            return f"{self.collective_backend} " + ".".join(str(part) for part in nccl.version())
        return self.collective_backend

    def monitored(self, nproc: int) -> list[int]:
        """Return the monitor's number of each device that a rank uses, in the order of the ranks.

        Empty if the number of any of these devices is not known.

        Args:
            nproc: number of ranks on this machine.
        """
        indices = self._list_monitor_indices(nproc)
        known_indices = [index for index in indices if index is not None]
        return known_indices if len(known_indices) == len(indices) else []

    def open(self, local_rank: int, ranks_here: int) -> Accelerator:
        """Return the device with the rank's local number."""
        del ranks_here
        return Accelerator(
            local_rank, vendor=self.name, torch_type=self.torch_type, modules=self.list_modules()
        )

    def list_modules(self) -> Sequence[str]:
        """Return what a rank imports after torch so that torch knows the devices."""
        return () if self.package is None else (self.package,)


def _list_closed_files(files: list[Path]) -> list[Path]:
    """Return the files that exist and that this user may not both read and write."""
    return [file for file in files if file.exists() and not os.access(file, os.R_OK | os.W_OK)]


def _read_devices(monitor: Monitor | None) -> dict[int | None, DeviceSample]:
    """Return a reading of each device by the monitor's number, and close the monitor.

    The result is empty if there is no monitor or it gives no reading. The key None is a device
    whose number the monitor does not report.
    """
    if monitor is None:
        return {}
    try:
        return {sample.index: sample for sample in monitor.read()}
    except MonitorFault:
        return {}
    finally:
        monitor.close()


def list_pci_accelerators(vendor: int, classes: tuple[str, ...] = PCI_CLASSES) -> list[Path]:
    """Return the folders of a vendor's accelerators on the PCI bus, in the order of addresses.

    Args:
        vendor: its id on the PCI bus.
        classes: PCI classes of its accelerators, or the beginnings of them.
    """
    accelerators = []
    for folder in sorted((ROOT / "sys/bus/pci/devices").glob("*")):
        # Leave out a device that was removed meanwhile or whose class or vendor cannot be read.
        with suppress(OSError, ValueError):
            pci_class = (folder / "class").read_text().strip()
            folder_vendor = int((folder / "vendor").read_text(), 16)
            if folder_vendor == vendor and pci_class.startswith(classes):
                accelerators.append(folder)
    return accelerators


def select_visible(
    value: str, count: int, identities: Sequence[str] = (), *, ignore_case: bool = False
) -> list[int]:
    """Return the numbers of the devices that a variable such as CUDA_VISIBLE_DEVICES allows.

    As in the drivers, the list ends before the first entry that names no device, or a device that
    an earlier entry has named.

    Args:
        value: of the variable: numbers or identities of devices, separated by commas.
        count: number of devices; they are numbered from 0.
        identities: a further name of each device, by its number; empty: only numbers are allowed.
        ignore_case: accept identities in upper and in lower case.
    """
    if ignore_case:
        value = value.lower()
        identities = [identity.lower() for identity in identities]
    numbers: list[int] = []
    for item in value.split(","):
        name = item.strip()
        number = None
        if name in identities:
            number = identities.index(name)
        elif re.fullmatch("[0-9]{1,9}", name):
            number = int(name)
        if number is None or number >= count or number in numbers:
            break
        numbers.append(number)
    return numbers
