"""What AMD and Hygon share: the kernel's list of compute devices, and variables that hide them.

Both vendors' drivers list their devices as nodes of KFD, in the order in which HIP numbers them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from trainmark.devices import torch_vendor
from trainmark.devices.torch_vendor import PCI_COMPUTE, TorchVendor

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.devices.accelerator import CudaDevice

# Where ROCm and Hygon's DTK install their tools.
FOLDERS = ("/opt/rocm/bin", "/opt/hyhal/bin", "/usr/local/hyhal/bin")


class Node(NamedTuple):
    """A compute device of KFD.

    Args:
        render: the file that a process opens to use it.
        address: on the PCI bus.
        unique_id: in hexadecimal digits; empty where the device has none.
    """

    render: Path
    address: str
    unique_id: str


def list_nodes(pci_vendor: int) -> list[Node]:
    """Return the compute devices of a vendor that this process can see, in HIP's order.

    https://docs.kernel.org/gpu/amdgpu/ and drivers/gpu/drm/amd/amdkfd/kfd_topology.c, 2026-11-22.
    """
    root = torch_vendor.ROOT
    gpu_nodes = []
    for folder in sorted(
        (root / "sys/class/kfd/kfd/topology/nodes").glob("[0-9]*"),
        key=lambda folder: (len(folder.name), folder.name),
    ):
        try:
            pairs = (line.split() for line in (folder / "properties").read_text().splitlines())
            values = {name: int(value) for name, value in pairs}
        except (OSError, ValueError):
            continue  # a container may not read those of devices that it was not given
        render = root / f"dev/dri/renderD{values.get('drm_render_minor')}"
        # Processors are nodes as well, without SIMD units.
        if (
            values.get("vendor_id") != pci_vendor
            or not values.get("simd_count")
            or not render.exists()
        ):
            continue
        place = values.get("location_id", 0)
        address = (
            f"{values.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}."
            f"{place & 7:x}"
        )
        unique_id = values.get("unique_id", 0)
        gpu_nodes.append(Node(render, address, f"{unique_id:x}" if unique_id else ""))
    return gpu_nodes


class RocmVendor(TorchVendor):
    """A vendor whose devices torch drives as ``cuda`` through HIP."""

    torch_type = "cuda"
    collective_backend = "nccl"
    visible_devices: str | None = "HIP_VISIBLE_DEVICES"
    # The runtime's, then HIP's, which takes CUDA's where its own is not set:
    # https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html, 2026-11-22
    narrowed_by = (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
    recorded_variables: tuple[str, ...] = (
        "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
        "HSA_*", "HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL", "GPU_MAX_HW_QUEUES",
        "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_HIP_MEMORY_CACHING",
        "PYTORCH_TUNABLEOP_*", "PYTORCH_MIOPEN_*", "TORCH_BLAS_PREFER_HIPBLASLT", "TORCH_ROCM_*",
        "TORCH_NCCL_*", "HIPBLASLT_*", "ROCBLAS_*", "MIOPEN_*", "NCCL_*", "RCCL_*",
    )  # fmt: skip
    nodes = "dev/dri/renderD*"
    shared = ("dev/kfd",)
    package = None
    built = "hip"
    pci_classes = PCI_COMPUTE
    folders = FOLDERS
    in_tools_order = False

    def device_files(self) -> list[Path]:
        """Return the file of each device that a process opens, in HIP's order."""
        return [node.render for node in list_nodes(self.pci_vendor)]

    def identities(self) -> list[str]:
        """Return each device's unique id as the runtime takes it."""
        return [f"GPU-{node.unique_id}" for node in list_nodes(self.pci_vendor)]

    def monitor_index(self, number: int) -> int | None:
        """Return the device's place in the tool's list, by its unique id or address."""
        here = list_nodes(self.pci_vendor)
        values = self._first[0].values()
        for identifier in (here[number].address, here[number].unique_id):
            matching = [
                sample.index
                for sample in values
                if identifier and identifier in (sample.uuid or "").split()
            ]
            if matching:
                return (
                    matching[0] if len(matching) == 1 else None
                )  # partitions of a device share both
        return next(iter(values)).index if len(here) == len(values) == 1 else None

    def open(self, local_rank: int, ranks_here: int) -> CudaDevice:
        """Return the device with the rank's local number."""
        del ranks_here
        from trainmark.devices.accelerator import CudaDevice

        return CudaDevice(local_rank, vendor=self.name)


def format_identity(*words: object) -> str | None:
    """Return what is known of a device's unique id and address, as the kernel writes them."""
    identifiers = (str(word).lower().removeprefix("0x") for word in words if is_known(word))
    return " ".join(word for word in identifiers if not re.fullmatch(r"0*|.*\s.*", word)) or None


def is_known(value: object) -> bool:
    """Tell whether a tool told a value at all."""
    text = str(value).strip().lower()
    return value is not None and bool(text) and not text.startswith("n/a")
