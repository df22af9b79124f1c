"""What AMD and Hygon share: the kernel's list of compute devices, and variables that hide them.

Both vendors' drivers list their devices as nodes of KFD, the kernel driver for compute devices, in
the order in which HIP numbers them.
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
        render: the device file that a process opens to use it.
        address: on the PCI bus, ``0000:41:00.0``.
        unique_id: 16 hexadecimal digits, as the runtime and the tools write them; empty if the
            device has none.
    """

    render: Path
    address: str
    unique_id: str


def list_nodes(pci_vendor: int) -> list[Node]:
    """Return the compute devices of a vendor that this process can see, in HIP's order.

    They are the nodes of KFD, the kernel's driver for compute devices. Sources:
    https://docs.kernel.org/gpu/amdgpu/ and drivers/gpu/drm/amd/amdkfd/kfd_topology.c, 2026-11-22.
    """
    root = torch_vendor.ROOT
    folders = (root / "sys/class/kfd/kfd/topology/nodes").glob("[0-9]*")
    gpu_nodes = []
    # By length first, so that node 10 comes after node 9.
    for folder in sorted(folders, key=lambda folder: (len(folder.name), folder.name)):
        try:
            lines = (folder / "properties").read_text().splitlines()
            pairs = [line.split() for line in lines]
            values = {name: int(value) for name, value in pairs}
        except (OSError, ValueError):
            continue  # a container may not read the nodes of devices that it was not given
        if values.get("vendor_id") != pci_vendor:
            continue
        if not values.get("simd_count"):
            continue  # processors are nodes as well, without SIMD units
        render = root / f"dev/dri/renderD{values.get('drm_render_minor')}"
        if not render.exists():  # in a container that was not given this device
            continue
        unique_id = values.get("unique_id", 0)
        gpu_nodes.append(
            Node(
                render=render,
                address=_format_address(values.get("domain", 0), values.get("location_id", 0)),
                unique_id=f"{unique_id:016x}" if unique_id else "",
            )
        )
    return gpu_nodes


def _format_address(domain: int, location: int) -> str:
    """Return a PCI address as the kernel writes it.

    Args:
        location: bus in bits 8 to 15, device in bits 3 to 7, function in bits 0 to 2.
    """
    bus = location >> 8 & 0xFF
    device = location >> 3 & 0x1F
    function = location & 7
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


class RocmVendor(TorchVendor):
    """A vendor whose devices torch drives as ``cuda`` through HIP."""

    torch_type = "cuda"
    collective_backend = "nccl"
    visible_devices: str | None = "HIP_VISIBLE_DEVICES"
    # First the runtime's variable, then HIP's, in place of which HIP accepts CUDA's:
    # https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html, 2026-11-22
    hiding_variables = (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
    # BuildRvdTokenList of src/core/runtime/amd_filter_device.cpp in
    # https://github.com/ROCm/ROCR-Runtime, 2026-11-29. HIP distinguishes upper and lower case.
    caseless_variables = ("ROCR_VISIBLE_DEVICES",)
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
    build_field = "hip"
    pci_classes = PCI_COMPUTE
    folders = FOLDERS
    numbers_follow_tool = False

    def list_device_files(self) -> list[Path]:
        """Return the file of each device that a process opens, in HIP's order."""
        return [node.render for node in list_nodes(self.pci_vendor)]

    def list_identities(self) -> list[str]:
        """Return each device's unique id as the runtime takes it."""
        return [f"GPU-{node.unique_id}" for node in list_nodes(self.pci_vendor)]

    def find_monitor_index(self, number: int) -> int | None:
        """Return the monitor's number of a device, found by its PCI address or its unique id.

        None if no device of the monitor matches, or several, such as the partitions of one device.

        Args:
            number: HIP's number of the device.
        """
        nodes = list_nodes(self.pci_vendor)
        samples = list(self._first_reading.samples.values())
        node = nodes[number]
        # The ``uuid`` of a sample holds its identifiers, separated by spaces.
        for identifier in (node.address, node.unique_id):
            if not identifier:
                continue
            matching = [
                sample.index for sample in samples if identifier in (sample.uuid or "").split()
            ]
            if matching:
                return matching[0] if len(matching) == 1 else None
        if len(nodes) == 1 and len(samples) == 1:
            return samples[0].index  # the only device, although the tool prints no identifier
        return None

    def open(self, local_rank: int, ranks_here: int) -> CudaDevice:
        """Return the device with the rank's local number."""
        del ranks_here
        from trainmark.devices.accelerator import CudaDevice

        return CudaDevice(local_rank, vendor=self.name)


def format_identity(*words: object) -> str | None:
    """Return a device's identifiers as ``Node`` has them, separated by spaces; None: none.

    Args:
        words: unique id and PCI address, as the vendor's tool prints them.
    """
    identifiers = []
    for word in words:
        if not is_reported(word):
            continue
        identifier = str(word).lower().removeprefix("0x")
        if re.fullmatch("[0-9a-f]*[1-9a-f][0-9a-f]*", identifier):
            identifier = identifier.zfill(16)  # a unique id, of which a tool may cut leading zeros
        # Leave out a word of zeros only, which means that the device has no id, and a text with
        # spaces, which is not an id.
        if not re.fullmatch(r"0*|.*\s.*", identifier):
            identifiers.append(identifier)
    return " ".join(identifiers) or None


def is_reported(value: object) -> bool:
    """Tell whether a tool printed a value, instead of nothing or ``N/A``."""
    text = str(value).strip().lower()
    return value is not None and bool(text) and not text.startswith("n/a")
