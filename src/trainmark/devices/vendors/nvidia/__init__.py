"""NVIDIA's accelerators as planning sees them, without importing torch, and as a rank uses them.

The driver lists the devices. The management library, which the extra ``nvidia`` installs, reports
their memory and the processes on them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from trainmark.devices import torch_vendor
from trainmark.devices.accelerator import CudaDevice, read_torch_build
from trainmark.devices.torch_vendor import TorchVendor
from trainmark.devices.vendors.nvidia import driver, nvml
from trainmark.errors import EnvironmentFault
from trainmark.protocols import ContainerNeeds, Refusal
from trainmark.spec import RankMemory, Text

if TYPE_CHECKING:
    from trainmark.devices.vendors.nvidia.driver import Card
    from trainmark.protocols import DeviceSettings, Monitor, Occupant
    from trainmark.recipe import Precision, Recipe

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
# This variable overrides in NVIDIA's libraries what torch sets, without torch's knowledge. 0
# switches TF32 off, any other value counts as on:
# https://github.com/alibaba/DeepRec/blob/main/docs/docs_en/NVIDIA-TF32.md, 2026-11-28.
TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"


class Nvidia(TorchVendor):
    """Find, examine and open NVIDIA's cards; see ``protocols.Vendor``."""

    name = "nvidia"
    tested = Text("a simulated card, no real card yet", "模拟卡，尚未在真卡上测试")
    torch_type = "cuda"
    collective_backend = "nccl"
    # https://github.com/NVIDIA/k8s-device-plugin, 2026-11-22
    kubernetes_resource = "nvidia.com/gpu"
    visible_devices: str | None = VISIBLE_DEVICES
    recorded_variables: tuple[str, ...] = (
        VISIBLE_DEVICES, "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING",
        "CUDA_DEVICE_MAX_CONNECTIONS", "CUBLAS_*", "CUBLASLT_*", "CUDNN_*", "NVIDIA_TF32_OVERRIDE",
        "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_TUNABLEOP_*",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT", "TORCH_CUBLASLT_*",
        "TORCH_CUDNN_*", "TORCH_NCCL_*", "NCCL_*",
    )  # fmt: skip
    package = None
    module = None
    pci_vendor = 0x10DE
    pci_classes = torch_vendor.PCI_COMPUTE
    # https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/ (docker-specialized,
    # cdi-support) and https://apptainer.org/docs/user/latest/gpu.html, 2026-11-22
    container_needs = ContainerNeeds(
        options={
            "docker": ("--gpus=all",),
            "podman": ("--device=nvidia.com/gpu=all",),
            "apptainer": ("--nv",),
        },
    )

    def list_visible(self) -> list[int]:
        """Return the numbers of the usable devices; empty if torch cannot drive them."""
        return list(range(len(self._list_usable_cards())))

    def count(self) -> int:
        """Return the visible devices; 0 when the installed torch cannot drive them."""
        return len(self._list_usable_cards())

    def product_names(self) -> list[str]:
        """Return the product name of each visible device."""
        return [card.name for card in self._list_usable_cards()]

    def _list_usable_cards(self) -> list[Card]:
        """Return the cards that this process sees; empty if the installed torch cannot use them."""
        if explain_unusable_torch() is not None:
            return []
        return driver.list_visible_cards()

    def unusable(self) -> Refusal | None:
        """Return why no card of this machine can be used.

        None if a card can be used, or if the machine has none.
        """
        if not driver.is_installed():
            on_bus = torch_vendor.list_pci_accelerators(self.pci_vendor, self.pci_classes)
            if not on_bus:
                return None
            return Refusal(
                f"{len(on_bus)} {self.name} device(s) found on the PCI bus, but no driver is "
                "loaded",
                "load or install the driver; in a container, pass the devices through",
            )
        if self._list_usable_cards():
            return None
        card_names = sorted({card.name for card in driver.list_visible_cards()})
        names = " and ".join(card_names) or "an NVIDIA device"
        refusal = explain_unusable_torch()
        if refusal is not None:
            return refusal._replace(why=f"{names} found, but {refusal.why}")
        return Refusal(
            f"{names} found, but {driver.LIBRARY} sees no device with "
            f"{VISIBLE_DEVICES}={os.environ.get(VISIBLE_DEVICES)}",
            f"unset {VISIBLE_DEVICES}, or set it to devices that `nvidia-smi -L` lists; a card in "
            "MIG mode needs a slice, and a container needs the driver's libraries",
        )

    def occupants(self, nproc: int) -> list[Occupant]:
        """Return the processes on the first ``nproc`` devices, which the ranks of a run use.

        It is called before the ranks start, so none of the processes is a rank of this run.
        """
        occupants = []
        for card in self._list_usable_cards()[:nproc]:
            occupants += nvml.list_occupants(card)
        return occupants

    def read_settings(self, nproc: int) -> list[DeviceSettings]:
        """Return the settings of the first ``nproc`` devices, which the ranks of a run use.

        A device whose settings are not known is left out.
        """
        settings = [nvml.read_settings(card) for card in self._list_usable_cards()[:nproc]]
        return [item for item in settings if item is not None]

    def rank_memory(self, nproc: int) -> RankMemory | None:
        """Return the free memory of the one of the first ``nproc`` devices that has the least.

        None if the management library is missing or reports it for none of them.
        """
        readings = [nvml.read_free_bytes(card) for card in self._list_usable_cards()[:nproc]]
        free_bytes = [reading for reading in readings if reading is not None]
        return RankMemory(min(free_bytes)) if free_bytes else None

    def refuse(self, recipe: Recipe, nproc: int) -> Refusal | None:
        """Refuse a precision that ``NVIDIA_TF32_OVERRIDE`` overrides.

        A precision that the card or torch does not have is refused later, when ``NvidiaDevice``
        sets it.
        """
        del nproc
        return explain_tf32_override(recipe.precision)

    def driver_version(self) -> str | None:
        """Return the version of the kernel module."""
        return driver.read_driver_version()

    def monitor(self) -> Monitor | None:
        """Return the management library's monitor."""
        return nvml.NvmlMonitor() if driver.is_installed() else None

    def find_monitor_index(self, number: int) -> int | None:
        """Return the number that the management library gives the card, or a slice's card."""
        return nvml.find_index(self._list_usable_cards()[number])

    def open(self, local_rank: int, ranks_here: int) -> NvidiaDevice:
        """Return the device with the rank's local number."""
        del ranks_here
        return NvidiaDevice(local_rank, vendor=self.name)


def explain_unusable_torch() -> Refusal | None:
    """Return why the installed torch cannot drive any card here; None if it can.

    A driver runs programs of its own major version of CUDA and of earlier ones:
    https://docs.nvidia.com/deploy/cuda-compatibility/, 2026-11-22.
    """
    install_fix = (
        "install a torch built for CUDA: run `make clean`, then `make install "
        "TORCH=system PYTHON=...`, where PYTHON is the Python with this torch"
    )
    build = read_torch_build()
    if build is None:
        return Refusal("torch is not installed", install_fix)
    # Builds for other vendors' devices present these as CUDA's. AMD's builds have `hip` set; of the
    # builds for all further vendors, `maker` is the vendor.
    if build.cuda is None or build.hip is not None or build.maker is not None:
        return Refusal(f"torch {build.version} has no CUDA", install_fix)
    supported = driver.read_supported_cuda()
    if supported is None:  # not known, so it is not refused
        return None
    supported_major, supported_minor = supported
    if supported_major >= int(build.cuda.split(".")[0]):
        return None
    return Refusal(
        f"torch {build.version} is built for CUDA {build.cuda}, but the driver "
        f"{driver.read_driver_version() or 'here'} supports CUDA only up to "
        f"{supported_major}.{supported_minor}",
        f"install a newer driver, or a torch built for CUDA {supported_major}",
    )


def get_forced_tf32() -> bool | None:
    """Return whether ``NVIDIA_TF32_OVERRIDE`` forces TF32 on or off; None: it is not set.

    0 forces it off, any other value on; the source is at ``TF32_OVERRIDE``.
    """
    override = os.environ.get(TF32_OVERRIDE, "")
    if not override:
        return None
    return override != "0"


def explain_tf32_override(precision: Precision) -> Refusal | None:
    """Return why ``NVIDIA_TF32_OVERRIDE`` would change a precision; None if it does not."""
    forced = get_forced_tf32()
    override = f"{TF32_OVERRIDE}={os.environ.get(TF32_OVERRIDE)}"
    if precision == "fp32" and forced is True:
        return Refusal(
            f"precision=fp32 cannot be used with {override}, which makes fp32 matmuls use TF32",
            f"unset {TF32_OVERRIDE}, or use precision=tf32",
        )
    if precision == "tf32" and forced is False:
        return Refusal(
            f"precision=tf32 cannot be used with {override}, which turns TF32 off",
            f"unset {TF32_OVERRIDE}, or use precision=fp32",
        )
    return None


# Lowest compute capability whose matrix units support a precision,
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions, 2026-11-21
_MIN_CAPABILITY: dict[str, tuple[int, int]] = {
    "fp16": (5, 3),
    "bf16": (8, 0),
    "tf32": (8, 0),
    "fp8": (8, 9),
}


class NvidiaDevice(CudaDevice):
    """A card or a slice of one; see ``Device``."""

    def set_precision(self, precision: Precision) -> dict[str, Any]:
        """Set a precision as on every CUDA device, but refuse one that the card lacks.

        Returns:
            The settings that are then in effect, for the record.

        Raises:
            EnvironmentFault: the card has no units for the precision and would emulate it, or
                ``NVIDIA_TF32_OVERRIDE`` overrides it.
        """
        torch = self._torch
        refusal = explain_tf32_override(precision)
        if refusal is not None:
            raise EnvironmentFault(refusal.why, where="recipe field precision", fix=refusal.fix)
        capability = torch.cuda.get_device_capability(self.index)
        # Every card has the precisions that are not in the table: (0, 0) refuses none.
        min_capability = _MIN_CAPABILITY.get(precision, (0, 0))
        if capability < min_capability:
            has_fp16 = capability >= _MIN_CAPABILITY["fp16"]
            fix = "use precision=fp32"
            if has_fp16 and precision in ("bf16", "fp8"):
                fix += " or fp16"
            raise EnvironmentFault(
                f"{torch.cuda.get_device_name(self.index)} with compute capability "
                f"{capability[0]}.{capability[1]} does not support precision={precision}",
                where="recipe field precision",
                rule=(
                    f"{precision} needs compute capability "
                    f"{min_capability[0]}.{min_capability[1]} or higher"
                ),
                fix=fix,
            )
        flags = super().set_precision(precision)
        forced = get_forced_tf32()
        if forced is not None:
            flags["tf32_override"] = forced
        return flags
