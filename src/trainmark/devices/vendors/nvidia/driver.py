"""What NVIDIA's driver gives this process: devices in CUDA's order, and versions. No torch.

Asks the driver's own library, the one that torch loads, so that ``CUDA_VISIBLE_DEVICES``, the order
of devices and MIG slices are as torch will see them.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

PROC = Path("/proc/driver/nvidia")
DEVICE_NODES = Path("/dev")
LIBRARY = "libcuda.so.1"


class Card(NamedTuple):
    """A device as CUDA numbers them: a card, or a slice of one.

    Args:
        name: of a slice ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``, which has no published peak.
        uuid: as the management library writes it, ``GPU-...`` or ``MIG-...``.
        bus: address on the PCI bus, as the kernel writes it: ``0000:41:00.0``.
    """

    name: str
    uuid: str
    bus: str


def is_loaded() -> bool:
    """Tell whether NVIDIA's own driver is here: others' cards come with libraries of its names.

    ``dxg`` is the driver's device in Windows' subsystem for Linux, ``nvgpu`` on Jetson boards.
    """
    nodes = ("nvidia[0-9]*", "dxg", "nvgpu")
    return PROC.is_dir() or any(True for name in nodes for _ in DEVICE_NODES.glob(name))


def list_visible_cards() -> list[Card]:
    """Return the devices of this process; empty without the driver or where it finds none."""
    cuda = _load_library() if is_loaded() else None
    count = ctypes.c_int(0)
    if cuda is None or cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    return [_read_card(cuda, ordinal) for ordinal in range(count.value)]


def _load_library() -> Any:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None


def _read_card(cuda: Any, ordinal: int) -> Card:
    """Return a device by https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html."""
    device = ctypes.c_int(0)
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    name, bus = ctypes.create_string_buffer(128), ctypes.create_string_buffer(32)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceGetPCIBusId(bus, len(bus), device)
    uuid = ctypes.create_string_buffer(16)
    # The second version, from CUDA 11.4 on, gives a slice its own.
    getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)(uuid, device)
    text = name.value.decode(errors="replace")
    return Card(
        name=text,
        uuid=f"{'MIG' if ' MIG ' in text else 'GPU'}-{UUID(bytes=uuid.raw)}",
        bus=bus.value.decode()[-12:].lower(),  # of 00000000:41:00.0
    )


def read_supported_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA that the driver runs, as (major, minor); None if it does not tell.

    A package for forward compatibility replaces the library and supports more than the kernel
    module's version says.
    """
    cuda, version = _load_library(), ctypes.c_int(0)
    if cuda is None or cuda.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // 1000, version.value % 1000 // 10


def read_driver_version() -> str | None:
    """Return the version of the kernel module."""
    file = PROC / "version"
    if not file.exists():
        return None
    match = re.search(r"(\d+\.\d+(?:\.\d+)?)", file.read_text())
    return match.group(1) if match else None
