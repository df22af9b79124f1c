"""Devices as seen by planning."""

from __future__ import annotations

import re
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from trainmark import devices
from trainmark.devices.accelerator import Accelerator
from trainmark.devices.rates import measure_matmul_rate
from trainmark.devices.vendors import cpu
from trainmark.devices.vendors.cpu import Cpu
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.protocols.tested import NOT_STATED, REAL_RUNS
from trainmark.recipe import Recipe

if TYPE_CHECKING:
    from support.fakes import SyncDevice


def test_cpu_refuses_unsupported_precision() -> None:
    # ``refuse`` returns why a recipe cannot run with so many ranks, None if it can. A CPU has no
    # TF32, and here no fp8; it is one product, whatever its number of cores.
    vendor = cpu.Cpu()
    # Ranks may share cores: any number of them is accepted here.
    assert vendor.refuse(Recipe(precision="bf16"), nproc=99) is None
    assert vendor.refuse(Recipe(precision="tf32"), nproc=1) is not None
    assert vendor.refuse(Recipe(precision="fp8"), nproc=1) is not None
    assert len(vendor.product_names()) == 1


@pytest.mark.parametrize(
    ("line", "has_units"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_fp16", True),
        ("flags\t\t: fpu amx_fp16", True),
        ("Features\t: fp asimd fphp asimdhp", True),
        ("flags\t\t: fpu avx2 avx512f avx512_bf16", False),
        ("bugs\t\t: avx512_fp16", False),  # not a line of flags
    ],
)
def test_cpu_refuses_fp16_if_it_is_emulated(
    monkeypatch: pytest.MonkeyPatch, line: str, has_units: bool
) -> None:
    # The file /proc/cpuinfo, of which ``line`` lists what the processor can do: avx512_fp16,
    # amx_fp16 and (on Arm) asimdhp are units that compute in fp16. Without them fp16 is refused.
    text = f"processor\t: 0\n{line}\nmodel name\t: X\n"
    monkeypatch.setattr(cpu.Path, "read_text", lambda _: text)
    assert cpu.has_fp16_units() is has_units
    assert (cpu.Cpu().refuse(Recipe(precision="fp16"), nproc=1) is None) is has_units


class VendorOfType(cpu.Cpu):
    """A vendor with a given number of devices of some torch type.

    Args:
        named_only: whether it is chosen only by its name.
    """

    counts_cores = False

    def __init__(self, name: str, torch_type: str, num_devices: int, *, named_only: bool = False):
        self.name, self.torch_type, self.num_devices = name, torch_type, num_devices
        self.named_only = named_only

    def count(self) -> int:
        return self.num_devices


def put_vendors(monkeypatch: pytest.MonkeyPatch, *vendors: cpu.Cpu) -> None:
    """Let these vendors and the CPU be all that there are.

    ``devices`` finds a vendor in the dictionary that ``list_vendors`` returns, by its name. All
    simulated vendors are subclasses of the CPU's.
    """
    vendor_by_name = {vendor.name: vendor for vendor in (*vendors, cpu.Cpu())}
    monkeypatch.setattr(devices, "list_vendors", lambda: vendor_by_name)


def test_device_is_chosen_by_torch_type_if_one_vendor_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each with its name, its torch type and its number of devices.
    put_vendors(
        monkeypatch,
        VendorOfType("a", "cuda", 0),
        VendorOfType("b", "cuda", 2),
        VendorOfType("c", "xpu", 0),
    )
    # Two vendors are of the type cuda, but only "b" has devices.
    assert devices.choose_vendor("cuda").name == devices.choose_vendor("b").name == "b"
    assert devices.list_choices() == ["a", "b", "c", "cpu", "cuda", "xpu"]
    for absent in ("a", "xpu"):
        with pytest.raises(EnvironmentFault, match=f"no {absent} device"):
            devices.choose_vendor(absent)
    with pytest.raises(UsageError) as unknown:
        devices.choose_vendor("cudaa")
    assert "cuda" in (unknown.value.fix or "")


def test_vendor_that_must_be_named_is_never_chosen_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Four devices of torch's type npu, to be chosen only by the vendor's name.
    put_vendors(monkeypatch, VendorOfType("fake", "npu", 4, named_only=True))
    assert devices.choose_vendor("fake").name == "fake"
    assert devices.choose_vendor(name=None).name == "cpu"
    assert devices.find_first_vendor(accelerator=True) is None
    with pytest.raises(UsageError):
        devices.choose_vendor("npu")


def test_cpu_device_reports_times_flags_and_memory() -> None:
    threads_before = torch.get_num_threads()
    precision_before = torch.get_float32_matmul_precision()
    # The clock shows 5 and then 17 ns, at the two marks. In fp16 products that are not under
    # autocast stay those of fp32: "highest", no TF32. ``read`` returns tensors as numbers.
    ticks_ns = iter([5, 17])
    device = cpu.CpuDevice(threads=1, clock=lambda: next(ticks_ns))
    assert device.elapsed_ns(device.mark(), device.mark()) == 17 - 5
    assert device.set_precision("fp16") == {
        "float32_matmul": "highest",
        "tf32": False,
        "autocast": "fp16",
        "deterministic": False,
    }
    assert device.read([torch.tensor(1.5), torch.tensor(2.0)]) == [1.5, 2.0]
    # The CPU reports the memory of this process; torch has no allocator there that counts.
    memory = device.memory()
    assert memory.scope == "process"
    assert memory.allocator_peak_bytes is None
    assert 0 < (memory.used_bytes or 0) < (memory.total_bytes or 0)
    assert device.describe()["threads"] == 1
    # The device has changed these settings of the whole process.
    torch.set_num_threads(threads_before)
    torch.set_float32_matmul_precision(precision_before)


def test_fastest_product_gives_the_matmul_rate(sync_device: SyncDevice) -> None:
    # ``sync_device`` is a simulated device that waits for each operation; its marks and its clock
    # show the same made time, which goes on only by ``advance``.
    durations = cycle([10, 4, 5])  # ns, of the products
    marks: list[int] = []

    def mark() -> int:
        """Let a product take its time before each second mark, which ends it."""
        is_end = len(marks) % 2 == 1
        if is_end:
            sync_device.clock.advance(next(durations))
        marks.append(sync_device.clock())
        return marks[-1]

    sync_device.mark = mark  # type: ignore[method-assign]
    # 2 x 8^3 FLOP in 4 ns, the shortest of the products timed.
    rate = measure_matmul_rate(sync_device, "fp32", sizes=(8,), clock=sync_device.clock)
    assert rate.flops_per_second == 2 * 8**3 * 1e9 / 4
    # Swing: between the halves of twenty products, the most that are timed. Ten of 10, 4, 5, 10 ...
    # take 67 ns, the next ten from 4 on take 61 ns.
    assert rate.swing == pytest.approx(1 - 61 / 67)


# Packages that must work with every vendor, so they may not name one or its libraries.
PACKAGES_WITHOUT_VENDOR_NAMES = (
    "cli",
    "data",
    "judge",
    "launch",
    "pages",
    "plan",
    "record",
    "server",
    "train",
)


def test_packages_that_serve_all_vendors_name_none() -> None:
    package = Path(devices.__file__).parents[1]
    # ``PACKAGES_WITHOUT_VENDOR_NAMES``: the folders of the program that must work with every
    # vendor, such as "cli", "plan" and "train"; so must the modules beside the folders.
    files = list(package.glob("*.py"))
    for name in PACKAGES_WITHOUT_VENDOR_NAMES:
        files += (package / name).rglob("*.py")
    assert len(files) > 50  # the folders were found
    words = re.compile(r"cuda|nccl|nvidia|rocm|nvml", re.IGNORECASE)
    assert [file.name for file in files if words.search(file.read_text(encoding="utf-8"))] == []


def test_every_vendor_of_this_project_states_what_it_was_tested_on() -> None:
    """Each vendor class has a text, in English and Chinese, on how it was tested.

    ``_ACCELERATORS`` are the classes of this project's vendors except the CPU. ``NOT_STATED`` is
    the text of a vendor that has none, ``REAL_RUNS`` that of one tested by real runs. ``text.zh``
    is the Chinese text.
    """
    kinds = [*devices._ACCELERATORS, Cpu]
    tested = {vendor.name: devices.get_tested(vendor) for vendor in (kind() for kind in kinds)}
    assert NOT_STATED not in tested.values()
    # No real card of any vendor was available so far.
    assert [name for name, text in tested.items() if text == REAL_RUNS] == ["cpu"]
    assert all(text.zh for text in tested.values())


def test_device_that_cannot_be_opened_is_refused_with_the_error_of_torch() -> None:
    # "torch_nowhere" is a module that opening imports and that is not installed, so that Python's
    # error names it. The number of the device and its vendor are arbitrary.
    with pytest.raises(EnvironmentFault, match="torch_nowhere") as caught:
        Accelerator(index=3, vendor="ascend", torch_type="npu", modules=("torch_nowhere",))
    assert caught.value.where == "--device ascend"
