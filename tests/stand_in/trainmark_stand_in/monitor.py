"""The simulated devices' management library: a file in which open devices keep what is in use.

Does not import torch.
"""

from __future__ import annotations

import mmap
import time
from typing import TYPE_CHECKING

from trainmark.protocols import DeviceSample, MonitorFault

if TYPE_CHECKING:
    from pathlib import Path

_NUMBER_BYTES = 8
_POWER_W = 50.0  # always


class InUse:
    """The bytes in use of each device, shared by processes through a file.

    Args:
        file: made if it is not there.
    """

    def __init__(self, file: Path, devices: int) -> None:
        with file.open("a+b") as opened:
            opened.truncate(devices * _NUMBER_BYTES)
            self._shared = mmap.mmap(opened.fileno(), devices * _NUMBER_BYTES)
        self.devices = devices

    def tell(self, device: int, used_bytes: int) -> None:
        start = device * _NUMBER_BYTES
        self._shared[start : start + _NUMBER_BYTES] = used_bytes.to_bytes(_NUMBER_BYTES, "little")

    def told(self) -> list[int]:
        size = _NUMBER_BYTES
        cells = (self._shared[at * size : (at + 1) * size] for at in range(self.devices))
        return [int.from_bytes(cell, "little") for cell in cells]

    def close(self) -> None:
        self._shared.close()


class StandInMonitor:
    """Reads the simulated devices; see ``trainmark.protocols.Monitor``."""

    name = "standin 1.0"

    def __init__(self, file: Path, devices: int, total_bytes: int) -> None:
        try:
            self._in_use = InUse(file, devices)
        except OSError as error:
            raise MonitorFault("absent", f"{file.name}: {error.strerror}") from error
        self._total_bytes = total_bytes

    def read(self) -> list[DeviceSample]:
        return [
            DeviceSample(
                index=index,
                name="Simulated accelerator",
                memory_used_bytes=used,
                memory_total_bytes=self._total_bytes,
                power_w=_POWER_W,
                energy_j=_POWER_W * time.monotonic(),
            )
            for index, used in enumerate(self._in_use.told())
        ]

    def close(self) -> None:
        self._in_use.close()
