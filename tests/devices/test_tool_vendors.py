"""Six vendors on machines with fake driver files and tools that print recorded texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.vendor_machines import (
    add_pci_card,
    install_tool,
    machine,
    make_print_command,
    write_text_file,
)
from trainmark import devices
from trainmark.conformance.vendor_check import vendor_faults
from trainmark.devices import accelerator, torch_vendor
from trainmark.devices.accelerator import TorchBuild
from trainmark.devices.vendors import nvidia
from trainmark.devices.vendors.ascend import Ascend
from trainmark.devices.vendors.cambricon import Cambricon
from trainmark.devices.vendors.iluvatar import Iluvatar
from trainmark.devices.vendors.kunlunxin import Kunlunxin
from trainmark.devices.vendors.metax import MetaX
from trainmark.devices.vendors.mthreads import MThreads
from trainmark.devices.vendors.nvidia import driver as nvidia_driver
from trainmark.protocols import DeviceSample, MonitorFault
from trainmark.spec import RankMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.devices.torch_vendor import TorchVendor

__all__ = ["machine"]

RECORDED = Path(__file__).parent / "recorded"
PYTORCH = TorchBuild("2.13.0+cu130", cuda="13.0")
COREX = TorchBuild("2.10.0+corex.4.5.0", cuda="10.2")
MACA = TorchBuild("2.8.0+metax3.5.3.9", cuda="11.6")


class Case(NamedTuple):
    """A machine of a vendor with its expected facts."""

    kind: Callable[[], TorchVendor]
    file: str  # what the tool prints
    node: str  # file of a device, with its number in place of {}
    names: list[str]
    driver: str
    free_mib: int  # of the first device


CASES = {
    "ascend": Case(
        kind=Ascend,
        file="npu-smi/23.0.3.txt",
        node="dev/davinci{}",
        names=["910B2C"] * 4,
        driver="23.0.3",
        free_mib=12861,
    ),
    "cambricon": Case(
        kind=Cambricon,
        file="cnmon/5.10.13.txt",
        node="dev/cambricon_dev{}",
        names=["MLU370-X8"] * 2,
        driver="5.10.13",
        free_mib=23374,
    ),
    "iluvatar": Case(
        kind=Iluvatar,
        file="ixsmi/3.1.1.txt",
        node="dev/iluvatar{}",
        names=["Iluvatar BI-V100"],
        driver="3.1.0",
        free_mib=32511,
    ),
    "mthreads": Case(
        kind=MThreads,
        file="mthreads-gmi/driver-2.7.0-q.txt",
        node="dev/mtgpu.{}",
        names=["MTT S90"],
        driver="2.7.0",
        free_mib=24576,
    ),
    "metax": Case(
        kind=MetaX,
        file="mx-smi/2.2.8.txt",
        node="dev/dri/renderD{}",
        names=["MetaX N260"] * 2,
        driver="3.0.11",
        free_mib=64870,
    ),
    "kunlunxin": Case(
        kind=Kunlunxin,
        file="xpu-smi-kunlunxin/5-p800.txt",
        node="dev/xpu{}",
        names=["P800 OAM"] * 2,
        driver="5.0.21",
        free_mib=7864,
    ),
}
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "MACA_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
    "MLU_VISIBLE_DEVICES",
    "MUSA_VISIBLE_DEVICES",
)


@pytest.fixture
def bare_machine(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the root of a machine without devices and with a torch built by PyTorch.

    ``VARIABLES`` are the environment variables that hide devices of the vendors; ``PYTORCH`` is a
    build of torch by PyTorch itself, for no vendor of these tests. The driver of the first vendor
    below is looked for in this machine, too, so that a card of the real one is not found.
    """
    monkeypatch.setattr(nvidia_driver, "PROC", machine / "root/proc/driver/nvidia")
    monkeypatch.setattr(nvidia_driver, "DEVICE_NODES", machine / "root/dev")
    monkeypatch.setattr(nvidia_driver, "LIBRARY", "no-such-library.so")
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    install_vendor(monkeypatch, PYTORCH)
    return machine / "root"


def install_vendor(
    monkeypatch: pytest.MonkeyPatch, build: TorchBuild | None, *packages: str
) -> None:
    """Simulate that this build of torch and these packages are installed.

    Args:
        build: None: no torch.
        packages: names of packages by which vendors add their devices to torch.
    """
    for module in (nvidia, torch_vendor):  # the two that ask for the installed build
        monkeypatch.setattr(module, "read_torch_build", lambda: build)
    # Vendors only compare the result with None.
    monkeypatch.setattr(torch_vendor, "find_spec", lambda name: name if name in packages else None)


@pytest.fixture
def vendor(bare_machine: Path, case: Case, monkeypatch: pytest.MonkeyPatch) -> TorchVendor:
    """The vendor on a machine with its cards, driver, torch and tool.

    Tests run for each ``case``, of six vendors: its ``kind`` is the vendor's class, ``node`` the
    name of a device's file, ``names`` the devices' names, ``file`` the recorded output of the
    vendor's tool. ``COREX`` and ``MACA`` are the torch builds of Iluvatar and MetaX.
    """
    vendor = case.kind()
    # The number of the first device's file: render nodes begin with 128, and the recorded output of
    # Ascend's tool has the cards 12 to 15.
    first = {"metax": 128, "ascend": 12}.get(vendor.name, 0)
    for number in range(first, first + len(case.names)):
        write_text_file(bare_machine / case.node.format(number))
        # MetaX's vendor counts the render nodes that have its own number on the PCI bus.
        write_text_file(bare_machine / f"sys/class/drm/renderD{number}/device/vendor", "0x9999\n")
    # Files of the drivers of MetaX, Ascend, Cambricon and Kunlunxin.
    for file in ("mxcd", "davinci_manager", "cambricon_ctl", "xpuctrl"):
        write_text_file(bare_machine / "dev" / file)
    write_text_file(
        bare_machine / "usr/local/Ascend/driver/version.info",
        "Version=23.0.3\nascendhal_version=7\n",
    )
    write_text_file(bare_machine / "sys/module/kunlun/version", "5.0.21\n")
    install_tool(
        bare_machine.parent / "bin",
        vendor.commands[0].argv[0],
        make_print_command(RECORDED / case.file),
    )
    # Two vendors build their own torch; the others add a package to PyTorch's.
    builds = {"iluvatar": COREX, "metax": MACA}
    packages = [vendor.package] if vendor.package else []
    install_vendor(monkeypatch, builds.get(vendor.name, PYTORCH), *packages)
    return vendor


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    """Return the machine of a vendor with its expected facts; ``request.param`` is its name."""
    return CASES[request.param]


def test_device_of_unknown_number_does_not_get_the_name_of_another(
    vendor: TorchVendor, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``vendor`` is one of six on a machine with its devices, as many as ``case.names``. What its
    # monitor returned at first is replaced here, and so is the number that a device has there:
    # None.
    # A monitor may not know a device's number either: its sample then has the index None.
    other = DeviceSample(index=None, name="another device")
    monkeypatch.setattr(vendor, "_first_reading", torch_vendor.FirstReading({None: other}, ""))
    monkeypatch.setattr(vendor, "find_monitor_index", lambda _number: None)
    assert vendor.product_names() == ["unknown"] * len(case.names)


def test_devices_have_names_driver_and_memory(vendor: TorchVendor, case: Case) -> None:
    """``case`` has what the recorded output of the vendor's tool shows.

    ``case.names`` has the name of each device, ``case.free_mib`` the memory in MiB that is free on
    the first one.
    """
    assert vendor_faults(vendor) == []
    assert vendor.is_present()
    assert vendor.count() == len(case.names)
    assert vendor.product_names() == case.names
    assert vendor.driver_version() == case.driver
    assert vendor.unusable() is None
    # With a rank for each device, the number that the tool gives to the device of each rank.
    assert vendor.monitored(len(case.names)) == list(range(len(case.names)))
    assert vendor.rank_memory(1) == RankMemory(case.free_mib << 20)


def test_visible_devices_variable_selects_and_orders(
    vendor: TorchVendor, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list ends at the first number that no device has or that was listed before.

    Words that are not numbers hide all devices.

    ``vendor.visible_devices`` is the name of the vendor's environment variable that hides devices;
    ``case.names`` has a name for each device of the machine. 99 is the number of none.
    """
    assert vendor.visible_devices is not None
    last = len(case.names) - 1  # 0 if there is one device
    for value, visible in (
        (f"{last}", [last]),
        (f"{last},0", [last, 0] if last else [0]),
        ("0,99,0", [0]),
        ("", []),
        ("all", []),
    ):
        monkeypatch.setenv(vendor.visible_devices, value)
        assert vendor.list_visible() == visible
        assert vendor.monitored(8) == visible  # of eight ranks, as many as have a device
        assert vendor.count() == len(visible)
    refusal = vendor.unusable()
    assert refusal is not None
    assert vendor.visible_devices in refusal.why  # the last value hides all devices


def test_cuda_variable_counts_the_devices_that_kunlunxins_own_variable_leaves(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two devices of Kunlunxin: the files that its driver makes. Each case has the values of its own
    # variable and of the other one (None: not set), and which devices are left.
    for number in (0, 1):
        write_text_file(bare_machine / f"dev/xpu{number}")
    for xpu_variable, cuda, visible_devices in (
        ("1", None, [1]),
        ("1,0", "0", [1]),  # the first one of those that the first variable leaves
        (None, "2", []),  # there are only 0 and 1
    ):
        for name, value in (("XPU_VISIBLE_DEVICES", xpu_variable), ("CUDA_VISIBLE_DEVICES", cuda)):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        assert Kunlunxin().list_visible() == visible_devices


def test_missing_torch_of_the_vendor_is_named(
    vendor: TorchVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``vendor`` is one of six, on a machine with its devices and driver, which ``is_present``
    # finds. ``install_vendor`` simulates what is installed: ``PYTORCH`` is PyTorch's own build, and
    # no package of the vendor is beside it. ``unusable`` says why devices cannot be used.
    for build in (PYTORCH, None):  # without the vendor's package; without any torch
        install_vendor(monkeypatch, build)
        assert (vendor.is_present(), vendor.count()) == (True, 0)
        assert vendor.unusable() is not None


def test_devices_without_a_driver_are_named(bare_machine: Path, case: Case) -> None:
    # ``case.kind`` is the class of one of six vendors, ``bare_machine`` the root of a machine
    # without any device or driver. ``unusable`` says why devices cannot be used; None: there are
    # none, or they can.
    vendor = case.kind()
    # Processing accelerators (PCI class 0x1200): first one of another vendor, Intel (0x8086).
    add_pci_card(bare_machine, "0000:1a:00.0", vendor=0x8086, kind="0x120000")
    assert vendor.unusable() is None
    add_pci_card(bare_machine, "0000:1a:00.0", vendor=vendor.pci_vendor, kind="0x120000")
    refusal = vendor.unusable()
    assert refusal is not None
    assert vendor.nodes in refusal.why  # the pattern of the files that the driver would make
    assert (vendor.is_present(), vendor.count(), vendor.driver_version()) == (False, 0, None)


@pytest.mark.parametrize(
    ("script", "kind"), [("exit 3", "failed"), ("echo 'Some new form'", "unreadable")]
)
def test_tool_without_usable_output_is_a_fault(
    vendor: TorchVendor, case: Case, bare_machine: Path, script: str, kind: str
) -> None:
    # ``vendor`` is one of six; ``vendor.commands[0].argv[0]`` is the name of its tool, which is
    # replaced by this script in the folder of the machine's programs. Its devices are then still
    # counted, but have no name.
    install_tool(bare_machine.parent / "bin", vendor.commands[0].argv[0], script)
    monitor = vendor.monitor()
    assert monitor is not None
    with pytest.raises(MonitorFault) as caught:
        monitor.read()
    assert caught.value.kind == kind
    assert vendor.product_names() == ["unknown"] * len(case.names)


@pytest.mark.parametrize("case", ["metax"], indirect=True)
def test_memory_is_read_each_time_and_other_facts_once(
    vendor: TorchVendor, case: Case, bare_machine: Path
) -> None:
    calls = bare_machine / "calls"  # a line for each call of the tool
    # ``case`` has the expected facts of the machine: the recorded output of MetaX's tool
    # (``file``), names, driver, and the free memory of the first device in MiB.
    script = f"echo >> '{calls}'; {make_print_command(RECORDED / case.file)}"
    install_tool(bare_machine.parent / "bin", "mx-smi", script)
    for _ in range(2):
        chosen = devices.choose_vendor("metax")
        assert chosen.product_names() == case.names
        assert chosen.driver_version() == case.driver
    assert len(calls.read_text().splitlines()) == 1
    # Later 1000 MiB more of the memory are used: 1666 of 65536 in place of 666.
    install_tool(bare_machine.parent / "bin", "mx-smi", f"{script} | sed 's|666/65536|1666/65536|'")
    assert chosen.rank_memory(1) == RankMemory((case.free_mib - 1000) << 20)
    assert len(calls.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    # The version that torch itself states; that of the installed package, "" if there is none; the
    # version that counts, and the vendor that built it.
    ("stated", "installed", "expected"),
    [
        ("2.10.0", "2.10.0+corex.4.5.0", ("2.10.0+corex.4.5.0", "iluvatar")),
        ("2.8.0+metax3.5.3.9", "", ("2.8.0+metax3.5.3.9", "metax")),
        ("2.4.1+das.opt1.dtk2504", "2.4.1", ("2.4.1+das.opt1.dtk2504", "hygon")),
        ("2.13.0+cu130", "2.13.0", ("2.13.0+cu130", None)),
    ],
)
def test_vendor_of_the_installed_torch_is_recognized(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stated: str,
    installed: str,
    expected: tuple[str, str | None],
) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "version.py").write_text(f"__version__ = '{stated}'\ncuda = '10.2'\nhip = None\n")
    if installed:
        (tmp_path / f"torch-{installed}.dist-info").mkdir()

    class Spec:
        """What Python knows of the package ``torch`` before it is imported."""

        origin = str(folder / "__init__.py")

    monkeypatch.setattr(accelerator, "find_spec", lambda _: Spec)
    build = accelerator.read_torch_build()
    version, maker = expected
    assert build == TorchBuild(version, cuda="10.2")
    assert build.maker == maker
