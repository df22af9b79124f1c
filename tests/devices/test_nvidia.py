"""The NVIDIA vendor with various drivers, torch builds and cards."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from support.fake_nvml import GIB, H100, FakeCard, make_cuda_library, make_nvml_library, put_cards
from support.vendor_machines import add_pci_card
from trainmark import devices
from trainmark.devices import torch_vendor
from trainmark.devices.accelerator import TorchBuild
from trainmark.devices.vendors import nvidia
from trainmark.devices.vendors.nvidia import driver
from trainmark.errors import EnvironmentFault
from trainmark.launch.environment import select_variables
from trainmark.recipe import Recipe
from trainmark.spec import RankMemory

if TYPE_CHECKING:
    from pathlib import Path

SLICE = FakeCard(f"{H100} MIG 1g.10gb", "MIG-77", total=10 * GIB)
UUID_OF_CARD, UUID_OF_SLICE = bytes(range(16)), bytes(range(16, 32))


def test_devices_are_those_visible_to_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    # ``UUID_OF_CARD`` has the bytes 0 to 15, ``UUID_OF_SLICE`` 16 to 31: the driver gives bytes, of
    # which the program makes the usual texts, with lower-case addresses of a domain of four digits.
    # Name, bus address and UUID of a whole card, and of a slice of a card that MIG partitions.
    library = make_cuda_library(
        (H100, b"00000000:C1:00.0", UUID_OF_CARD),
        (f"{H100} MIG 1g", b"0000:41:00.0", UUID_OF_SLICE),
    )
    monkeypatch.setattr(driver, "is_installed", lambda: True)
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: library)
    assert driver.list_visible_cards() == [
        (H100, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "0000:c1:00.0"),
        (f"{H100} MIG 1g", "MIG-10111213-1415-1617-1819-1a1b1c1d1e1f", "0000:41:00.0"),
    ]
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: make_cuda_library())
    assert driver.list_visible_cards() == []


def test_torch_without_cuda_on_a_machine_with_a_card_is_named(
    vendor: nvidia.Nvidia, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``put_cards`` lets the driver report this card. The torch below is one for processors. The
    # remedy, "TORCH=system", makes the program's setup use the torch of the machine.
    put_cards(monkeypatch, FakeCard())
    monkeypatch.setattr(nvidia, "read_torch_build", lambda: TorchBuild("2.13.0+cpu", cuda=None))
    assert vendor.count() == 0
    with pytest.raises(EnvironmentFault, match=r"but torch 2\.13\.0\+cpu has no CUDA") as caught:
        devices.choose_vendor("cuda")
    assert "TORCH=system" in (caught.value.fix or "")
    # Without --device the CPU is used, and the reason is reported.
    assert devices.choose_vendor(name=None).name == "cpu"
    assert [fault.what for fault in devices.list_device_faults()] == [caught.value.what]


@pytest.mark.parametrize(
    # CUDA that the installed torch is built for, and that the driver supports.
    ("build", "supported", "refused"),
    [
        ("13.0", (12, 8), True),
        ("13.2", (13, 0), False),  # minor versions of one major run on each other's drivers
        ("12.6", (13, 0), False),
        ("13.0", None, False),  # no driver library: torch will say so
    ],
)
def test_a_driver_too_old_for_torch_is_refused_with_both_versions(
    vendor: nvidia.Nvidia,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    build: str,
    supported: tuple[int, int] | None,
    refused: bool,
) -> None:
    # ``PROC`` is the folder where the kernel module states the driver's version, here 570.26. In
    # the one refused case torch is for 13.0 and the driver for at most 12.8.
    put_cards(monkeypatch, FakeCard())
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.26  T\n")
    monkeypatch.setattr(driver, "PROC", tmp_path)
    monkeypatch.setattr(nvidia, "read_torch_build", lambda: TorchBuild("2.13.0+x", cuda=build))
    monkeypatch.setattr(driver, "read_supported_cuda", lambda: supported)
    refusal = vendor.unusable()
    assert (vendor.count() == 0) == refused
    assert (refusal is not None) == refused
    if refusal is not None:
        assert "torch 2.13.0+x is built for CUDA 13.0" in refusal.why
        assert "driver 570.26 supports CUDA only up to 12.8" in refusal.why
        assert "a torch built for CUDA 12" in refusal.fix


def test_vendor_answers_questions_of_planning(
    vendor: nvidia.Nvidia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``vendor`` has a torch and a driver that fit each other. ``refuse`` returns why a recipe
    # cannot run, None if it can; ``counts_cores`` is True only for a CPU, whose ranks share cores.
    # ``rank_memory`` is the free memory of a rank's device, ``occupants`` are the processes that
    # use it. ``PROC`` is the folder where the kernel module states the driver's version.
    put_cards(monkeypatch, FakeCard("NVIDIA H200"))
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX Kernel Module  550.54.15  Tue\n")
    monkeypatch.setattr(driver, "PROC", tmp_path)
    assert vendor.product_names() == ["NVIDIA H200"]
    assert (vendor.count(), vendor.counts_cores) == (1, False)
    assert vendor.refuse(Recipe(), nproc=1) is None
    assert vendor.driver_version() == "550.54.15"
    monkeypatch.setitem(sys.modules, "pynvml", None)  # without the library that knows both
    assert (vendor.rank_memory(1), vendor.occupants(1)) == (None, [])
    (tmp_path / "version").unlink()
    assert vendor.driver_version() is None


def test_variables_that_change_what_is_measured_are_recorded(vendor: nvidia.Nvidia) -> None:
    assert "CUDA_VISIBLE_DEVICES" in vendor.recorded_variables
    # ``recorded_variables`` are names and prefixes of names. ``select_variables`` returns the
    # variables that go into a record: each of these, but not a key, which is secret.
    changing = {
        "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_IB_HCA": "mlx5_0",
        "NCCL_SOCKET_IFNAME": "eth0",
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
        "NVIDIA_TF32_OVERRIDE": "0",
    }
    assert select_variables({**changing, "NVIDIA_API_KEY": "secret"}, vendor) == changing


def test_mig_slice_has_its_own_memory_and_one_rank(
    vendor: nvidia.Nvidia, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``SLICE`` has a name that ends in "MIG 1g.10gb" and 10 GiB of memory, the card around it 80.
    # ``refuse`` returns why a recipe cannot run, None if it can.
    put_cards(monkeypatch, FakeCard(slices=[SLICE]))
    assert vendor.product_names() == [f"{H100} MIG 1g.10gb"]
    assert vendor.rank_memory(1) == RankMemory(10 * GIB)
    assert vendor.refuse(Recipe(), nproc=1) is None
    assert vendor.count() == 1  # CUDA shows a process only its first slice


def test_rank_memory_excludes_memory_of_other_processes(
    vendor: nvidia.Nvidia, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A ``FakeCard`` has 80 GiB, all of them free, unless its arguments say otherwise. ``computing``
    # and ``drawing`` are the bytes that each process uses, by its id; None: not known. Of so many
    # ranks, each with a card, ``rank_memory`` is the least free memory, and ``occupants`` are the
    # processes that use their cards.
    busy = FakeCard(
        uuid="GPU-2",
        used=30 * GIB,
        reserved=GIB,
        computing={42: 29 * GIB, 43: None},
        drawing={42: 1, 9: 4 << 20},
    )
    names = {42: "/home/someone/venv/bin/python", 9: "/usr/lib/xorg/Xorg"}
    put_cards(monkeypatch, FakeCard(), busy, FakeCard(uuid="GPU-3"), names=names)
    assert vendor.rank_memory(nproc=1) == RankMemory(80 * GIB)  # of the first card alone
    memory = vendor.rank_memory(nproc=3)
    assert memory is not None
    assert memory.rank_bytes == (80 - 30 - 1) * GIB  # of the busy card, which has the least
    occupants = vendor.occupants(2)
    assert [
        (occupant.process, occupant.used_bytes, occupant.computes) for occupant in occupants
    ] == [
        ("python (process 42)", 29 * GIB, True),  # once, although it also draws
        ("a process (process 43)", None, True),  # neither its name nor its memory is known
        ("Xorg (process 9)", 4 << 20, False),
    ]
    assert {occupant.device for occupant in occupants} == {H100}
    assert vendor.occupants(1) == []  # nobody uses the first card
    assert devices.list_occupants("nvidia", 3) == occupants
    assert devices.list_occupants("cpu", 3) == []


def make_device(capability: tuple[int, int]) -> nvidia.NvidiaDevice:
    """Return a device of this compute capability, although torch has no card here.

    Its torch is simulated: it has just the functions that setting a precision calls.

    Args:
        capability: major and minor number, such as (9, 0) of an H100.
    """
    device = object.__new__(nvidia.NvidiaDevice)  # without its constructor, which opens the card
    device.index = 0
    device._torch = SimpleNamespace(
        cuda=SimpleNamespace(
            get_device_capability=lambda index: capability,
            get_device_name=lambda index: "Tesla X",
        ),
        set_float32_matmul_precision=lambda word: None,
        get_float32_matmul_precision=torch.get_float32_matmul_precision,
        backends=SimpleNamespace(
            cudnn=SimpleNamespace(allow_tf32=False),
            cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False)),
        ),
        are_deterministic_algorithms_enabled=torch.are_deterministic_algorithms_enabled,
    )
    return device


@pytest.mark.parametrize(
    # Fp16 needs compute capability 5.3, bf16 and TF32 need 8.0. ``fix`` is the remedy in the error;
    # None: the card has the precision.
    ("capability", "precision", "fix"),
    [
        ((7, 0), "bf16", "use precision=fp32 or fp16"),
        ((7, 5), "tf32", "use precision=fp32"),
        ((5, 2), "bf16", "use precision=fp32"),
        ((8, 0), "bf16", None),
    ],
)
def test_a_cuda_device_refuses_a_precision_it_would_emulate(
    capability: tuple[int, int], precision: str, fix: str | None
) -> None:
    device = make_device(capability)
    if fix is None:  # the precision is set, and the device's flags are returned
        assert device.set_precision(precision)["deterministic"] is False
        return
    with pytest.raises(EnvironmentFault, match=f"does not support precision={precision}") as caught:
        device.set_precision(precision)
    assert caught.value.fix == fix


@pytest.mark.parametrize(
    # "1" makes cuBLAS use TF32 in fp32 matmuls, "0" forbids it. ``fix`` is the remedy in the
    # refusal; None: the variable does not contradict the precision.
    ("override", "precision", "fix"),
    [
        ("1", "fp32", "unset NVIDIA_TF32_OVERRIDE, or use precision=tf32"),
        ("0", "tf32", "unset NVIDIA_TF32_OVERRIDE, or use precision=fp32"),
        ("0", "fp32", None),
        ("1", "tf32", None),
        ("1", "bf16", None),
        ("", "fp32", None),
    ],
)
def test_precision_overridden_by_the_environment_is_refused(
    vendor: nvidia.Nvidia,
    monkeypatch: pytest.MonkeyPatch,
    override: str,
    precision: Any,
    fix: str | None,
) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
    device = make_device((9, 0))  # the compute capability of an H100, which has all precisions
    refusal = vendor.refuse(Recipe(precision=precision), nproc=1)
    if fix is None:
        assert refusal is None
        expected = None if override == "" else override == "1"  # "" counts as not set
        # The flags state what the variable sets; without it they do not have this key.
        assert device.set_precision(precision).get("tf32_override") is expected
        return
    assert refusal is not None
    assert refusal.fix == fix
    with pytest.raises(EnvironmentFault) as caught:
        device.set_precision(precision)
    assert caught.value.fix == fix


@pytest.mark.parametrize("node", ["iluvatar0", None])
def test_cards_of_another_vendor_are_ignored(
    vendor: nvidia.Nvidia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: str | None
) -> None:
    """Their libraries may have NVML's name; files of the driver show the vendor of the cards."""
    # ``PROC`` and ``DEVICE_NODES`` are folders with files of drivers, below /proc and in /dev. NVML
    # answers with a card, as that of the other vendor would.
    if node is not None:  # None: a machine without a file of any driver
        (tmp_path / node).touch()
    monkeypatch.setattr(driver, "PROC", tmp_path / "none")
    monkeypatch.setattr(driver, "DEVICE_NODES", tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", make_nvml_library(FakeCard("Iluvatar BI-V150")))
    assert (vendor.count(), vendor.unusable()) == (0, None)
    (tmp_path / "nvidia0").touch()  # a file of NVIDIA's own driver
    assert driver.is_installed()


def test_a_card_on_the_bus_without_its_driver_is_named(
    vendor: nvidia.Nvidia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``ROOT`` is the folder below which the files of the kernel are looked for. ``unusable`` says
    # why devices of the machine cannot be used; None: there are none, or they can.
    monkeypatch.setattr(driver, "is_installed", lambda: False)
    monkeypatch.setattr(torch_vendor, "ROOT", tmp_path)
    # A display controller (PCI class 0x0300): such a card may only drive the screen.
    add_pci_card(tmp_path, "0000:00:02.0", vendor=vendor.pci_vendor)
    assert vendor.unusable() is None
    # A 3D controller, as the cards of servers are.
    add_pci_card(tmp_path, "0000:41:00.0", vendor=vendor.pci_vendor, kind="0x030200")
    refusal = vendor.unusable()
    assert refusal is not None
    assert "1 nvidia device(s) found on the PCI bus" in refusal.why
