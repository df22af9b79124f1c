"""Five vendors on machines with fake driver files and tools that print recorded texts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from trainmark import devices
from trainmark.check.vendor_check import vendor_faults
from trainmark.devices import accelerator, torch_vendor
from trainmark.devices.accelerator import TorchBuild
from trainmark.devices.vendors import nvidia
from trainmark.devices.vendors.ascend import Ascend
from trainmark.devices.vendors.cambricon import Cambricon
from trainmark.devices.vendors.iluvatar import Iluvatar
from trainmark.devices.vendors.metax import MetaX
from trainmark.devices.vendors.mthreads import MThreads
from trainmark.devices.vendors.nvidia import driver as nvidia_driver
from trainmark.protocols import MonitorFault
from trainmark.spec import RankMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.devices.torch_vendor import TorchVendor

RECORDED = Path(__file__).parent / "recorded"
PYTORCH = TorchBuild("2.13.0+cu130", "13.0")
COREX = TorchBuild("2.10.0+corex.4.5.0", "10.2")
MACA = TorchBuild("2.8.0+metax3.5.3.9", "11.6")


class Case(NamedTuple):
    """A machine of a vendor, and what must be told of it."""

    kind: Callable[[], TorchVendor]
    file: str  # what the tool prints
    node: str
    names: list[str]
    driver: str
    free_mib: int  # of the first device
    addresses: tuple[str, ...]


CASES = {
    "ascend": Case(
        Ascend, "npu-smi/23.0.3.txt", "dev/davinci{}", ["910B2C"] * 4, "23.0.3", 12861,
        ("0000:d9:00.0", "0000:98:00.0", "0000:b9:00.0", "0000:c9:00.0"),
    ),
    "cambricon": Case(
        Cambricon, "cnmon/5.10.13.txt", "dev/cambricon_dev{}", ["MLU370-X8"] * 2, "5.10.13", 23374,
        ("0000:39:00.0", "0000:3d:00.0"),
    ),
    "iluvatar": Case(
        Iluvatar, "ixsmi/3.1.1.txt", "dev/iluvatar{}", ["Iluvatar BI-V100"], "3.1.0", 32511,
        ("0000:98:00.0",),
    ),
    "mthreads": Case(
        MThreads, "mthreads-gmi/driver-2.7.0-q.txt", "dev/mtgpu.{}", ["MTT S90"], "2.7.0", 24576,
        ("0000:01:00.0",),
    ),
    "metax": Case(
        MetaX, "mx-smi/2.2.8.txt", "dev/dri/renderD{}", ["MetaX N260"] * 2, "3.0.11", 64870,
        ("0000:01:00.0", "0000:21:00.0"),
    ),
}  # fmt: skip
VARIABLES = ("CUDA_VISIBLE_DEVICES", "MACA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES",
             "MLU_VISIBLE_DEVICES", "MUSA_VISIBLE_DEVICES")  # fmt: skip


class Machine:
    """A file system with drivers' files, an installed torch, and a PATH of its own."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._monkeypatch = monkeypatch
        self.bin = root / "bin"
        self.bin.mkdir()
        monkeypatch.setattr(torch_vendor, "ROOT", root)
        monkeypatch.setattr(nvidia_driver, "PROC", root / "proc/driver/nvidia")
        monkeypatch.setattr(nvidia_driver, "DEVICE_NODES", root / "dev")
        monkeypatch.setattr(nvidia_driver, "LIBRARY", "no-such-library.so")
        monkeypatch.setenv("PATH", f"{self.bin}{os.pathsep}/usr/bin{os.pathsep}/bin")
        for variable in VARIABLES:
            monkeypatch.delenv(variable, raising=False)
        self.installed(PYTORCH)

    def installed(self, build: TorchBuild | None, *packages: str) -> None:
        for module in (nvidia, torch_vendor):
            self._monkeypatch.setattr(module, "torch_build", lambda: build)
        self._monkeypatch.setattr(
            torch_vendor, "find_spec", lambda name: object() if name in packages else None
        )

    def write(self, file: str, text: str = "") -> Path:
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def tool(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def prints(self, name: str, file: str) -> None:
        self.tool(name, f"cat '{RECORDED / file}'")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def build(machine: Machine, case: Case) -> TorchVendor:
    """Return the vendor on a machine with its cards, driver, torch and tool."""
    vendor = case.kind()
    first = 128 if vendor.name == "metax" else 12 if vendor.name == "ascend" else 0
    for number in range(first, first + len(case.names)):
        machine.write(case.node.format(number))
        machine.write(f"sys/class/drm/renderD{number}/device/vendor", "0x9999\n")
    machine.write("dev/mxcd")
    machine.write("dev/davinci_manager")
    machine.write("dev/cambricon_ctl")
    machine.write("usr/local/Ascend/driver/version.info", "Version=23.0.3\nascendhal_version=7\n")
    for place, address in enumerate(case.addresses):
        machine.write(f"sys/bus/pci/devices/{address}/numa_node", f"{place % 2}\n")
    machine.prints(case.file.split("/")[0], case.file)
    makers = {"iluvatar": COREX, "metax": MACA}
    machine.installed(makers.get(vendor.name, PYTORCH), vendor.package or "none")
    return vendor


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def read_fault(vendor: TorchVendor) -> MonitorFault:
    with pytest.raises(MonitorFault) as found:
        vendor.monitor().read()
    return found.value


def test_the_contract_of_a_vendor(machine: Machine, case: Case) -> None:
    assert vendor_faults(case.kind()) == []
    assert vendor_faults(build(machine, case)) == []


def test_devices_names_driver_and_memory(machine: Machine, case: Case) -> None:
    vendor = build(machine, case)
    assert vendor.here()
    assert vendor.count() == len(case.names)
    assert vendor.product_names() == case.names
    assert vendor.driver_version() == case.driver
    assert vendor.unusable() is None
    assert vendor.monitored(len(case.names)) == list(range(len(case.names)))
    assert vendor.rank_memory(1) == RankMemory(case.free_mib << 20)


def test_the_numa_node_is_that_of_the_address_which_the_tool_prints(
    machine: Machine, case: Case
) -> None:
    """Huawei's numbers are not in the order of the addresses, and its servers' VGA is Huawei's."""
    vendor = build(machine, case)
    machine.write("sys/bus/pci/devices/0000:00:01.0/vendor", f"{vendor.pci_vendor:#x}")
    machine.write("sys/bus/pci/devices/0000:00:01.0/class", "0x030000")
    found = [vendor.numa_node(rank) for rank in range(len(case.names) + 1)]
    assert found == [*(rank % 2 for rank in range(len(case.names))), None]


def test_the_variable_chooses_and_orders(
    machine: Machine, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = build(machine, case)
    assert vendor.visible_devices is not None
    last = len(case.names) - 1
    for value, visible in (
        (f"{last}", [last]),
        (f"{last},0", [last, 0][: len(case.names)]),
        ("0,99,0", [0]),
        ("", []),
        ("all", []),
    ):
        monkeypatch.setenv(vendor.visible_devices, value)
        assert vendor.visible() == visible
        assert vendor.monitored(8) == visible
        assert vendor.count() == len(visible)
    refusal = vendor.unusable()
    assert refusal is not None
    assert vendor.visible_devices in refusal.why


def test_without_the_vendors_torch(machine: Machine, case: Case) -> None:
    vendor = build(machine, case)
    machine.installed(PYTORCH)
    assert (vendor.here(), vendor.count()) == (True, 0)
    assert vendor.unusable() is not None
    machine.installed(None)
    assert vendor.count() == 0


def test_devices_on_the_bus_without_their_driver(machine: Machine, case: Case) -> None:
    vendor = case.kind()
    folder = "sys/bus/pci/devices/0000:1a:00.0"
    machine.write(f"{folder}/vendor", f"{vendor.pci_vendor:#x}\n")
    machine.write(f"{folder}/class", "0x120000\n")
    refusal = vendor.unusable()
    assert refusal is not None
    assert vendor.nodes in refusal.why
    assert (vendor.here(), vendor.count(), vendor.driver_version()) == (False, 0, None)
    machine.write(f"{folder}/vendor", "0x8086\n")
    assert vendor.unusable() is None


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("exit 3", "failed"),
        ("echo 'Some new form'", "unreadable"),
    ],
)
def test_a_tool_that_does_not_tell(machine: Machine, case: Case, script: str, kind: str) -> None:
    vendor = build(machine, case)
    machine.tool(vendor.commands[0].argv[0], script)
    assert read_fault(vendor).kind == kind
    assert vendor.product_names() == ["unknown"] * len(case.names)


def test_memory_is_read_anew_and_the_rest_once(machine: Machine) -> None:
    case = CASES["metax"]
    build(machine, case)
    script = f"echo >> '{machine.root}/asked'; cat '{RECORDED / case.file}'"
    machine.tool("mx-smi", script)
    for _ in range(2):
        vendor = devices.choose("metax")
        assert vendor.product_names() == case.names
        assert (vendor.driver_version(), vendor.numa_node(1)) == (case.driver, 1)
    assert len((machine.root / "asked").read_text().splitlines()) == 1
    machine.tool("mx-smi", script.replace("cat ", "sed 's|666/65536|1666/65536|' "))
    assert vendor.rank_memory(1) == RankMemory((case.free_mib - 1000) << 20)
    assert len((machine.root / "asked").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("own", "installed", "expected"),
    [
        ("2.10.0", "2.10.0+corex.4.5.0", ("2.10.0+corex.4.5.0", "iluvatar")),
        ("2.8.0+metax3.5.3.9", "", ("2.8.0+metax3.5.3.9", "metax")),
        ("2.4.1+das.opt1.dtk2504", "2.4.1", ("2.4.1+das.opt1.dtk2504", "hygon")),
        ("2.13.0+cu130", "2.13.0", ("2.13.0+cu130", None)),
    ],
)
def test_who_made_the_installed_torch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str,
    installed: str,
    expected: tuple[str, str | None],
) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "version.py").write_text(f"__version__ = '{own}'\ncuda = '10.2'\nhip = None\n")
    if installed:
        (tmp_path / f"torch-{installed}.dist-info").mkdir()

    class Spec:
        origin = str(folder / "__init__.py")

    monkeypatch.setattr(accelerator, "find_spec", lambda _: Spec)
    build = accelerator.torch_build()
    assert build == TorchBuild(expected[0], "10.2")
    assert build.maker == expected[1]
