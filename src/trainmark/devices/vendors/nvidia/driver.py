"""Ask NVIDIA's driver for this process's devices, in CUDA's order, and for versions. No torch.

The functions call the driver's own library, the one that torch loads. So they list devices and MIG
slices in the order in which torch will, and only those that ``CUDA_VISIBLE_DEVICES`` allows.
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
        name: product name, of a slice ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``.
        uuid: as the management library writes it, ``GPU-...`` or ``MIG-...``.
        bus: address on the PCI bus, as the kernel writes it: ``0000:41:00.0``.
    """

    name: str
    uuid: str
    bus: str


def is_installed() -> bool:
    """Tell whether NVIDIA's own driver is on this machine, by files that only it has.

    Its library is no proof: other vendors' drivers come with libraries of the same names.
    """
    # `dxg` is the driver's device in Windows' subsystem for Linux, `nvgpu` on Jetson boards.
    for pattern in ("nvidia[0-9]*", "dxg", "nvgpu"):
        if any(DEVICE_NODES.glob(pattern)):
            return True
    return PROC.is_dir()  # `PROC` is the folder of NVIDIA's kernel module


def list_visible_cards() -> list[Card]:
    """Return the devices of this process; empty without the driver or if it finds none."""
    if not is_installed():
        return []
    cuda = _load_library()
    if cuda is None:
        return []
    count = ctypes.c_int(0)
    # Functions of the library return 0 if they succeed.
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    return [_read_card(cuda, ordinal) for ordinal in range(count.value)]


def _load_library() -> Any:
    """Return the driver's library; None if it is missing."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None


def _read_card(cuda: Any, ordinal: int) -> Card:
    """Return one of the devices.

    The functions: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html.

    Args:
        cuda: the driver's library, initialized.
        ordinal: the device's number.
    """
    device = ctypes.c_int(0)
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    # The sizes of the buffers: more than a name or an address takes; the 16 bytes of a UUID.
    # The status that the functions return is not read: a text that one does not fill in is empty.
    name_buffer = ctypes.create_string_buffer(128)
    cuda.cuDeviceGetName(name_buffer, len(name_buffer), device)
    bus_buffer = ctypes.create_string_buffer(32)
    cuda.cuDeviceGetPCIBusId(bus_buffer, len(bus_buffer), device)
    uuid_buffer = ctypes.create_string_buffer(16)
    # The second version of the function, from CUDA 11.4 on, returns the UUID of a slice, the first
    # that of its card.
    get_uuid = getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)
    get_uuid(uuid_buffer, device)
    name = name_buffer.value.decode(errors="replace")
    prefix = "MIG" if " MIG " in name else "GPU"
    return Card(
        name=name,
        uuid=f"{prefix}-{UUID(bytes=uuid_buffer.raw)}",
        bus=bus_buffer.value.decode()[-12:].lower(),  # 0000:41:00.0 of 00000000:41:00.0
    )


def read_supported_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA that the driver supports, as (major, minor); None: unknown.

    The library is asked, not the kernel module: a package for forward compatibility replaces the
    library, and then supports newer versions than the module's own version says.
    """
    cuda = _load_library()
    version = ctypes.c_int(0)
    if cuda is None or cuda.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    # 12.4 is 12040.
    return version.value // 1000, version.value % 1000 // 10


def read_driver_version() -> str | None:
    """Return the version of the kernel module; None: it is not loaded, or names none."""
    file = PROC / "version"
    if not file.exists():
        return None
    # The first number with a dot: 550.54.15 in "NVRM version: NVIDIA ... Kernel Module  550.54.15".
    match = re.search(r"(\d+\.\d+(?:\.\d+)?)", file.read_text())
    return match.group(1) if match else None
