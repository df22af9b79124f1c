"""One of NVIDIA's cards, as a rank uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.devices.cuda import CudaDevice
from trainmark.devices.vendors.nvidia import nvml
from trainmark.errors import EnvironmentFault

if TYPE_CHECKING:
    from trainmark.spec import Precision

# Lowest compute capability whose matrix units support a precision,
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions, 2026-11-21
_LEAST_CAPABILITY: dict[str, tuple[int, int]] = {"fp16": (5, 3), "bf16": (8, 0), "tf32": (8, 0)}


class NvidiaDevice(CudaDevice):
    """A card or a slice of one; see ``Device``."""

    def __init__(self, index: int, *, vendor: str, is_slice: bool = False) -> None:
        self._is_slice = is_slice
        super().__init__(index, vendor=vendor)

    def set_precision(self, precision: Precision) -> dict[str, Any]:
        """Refuse a precision that the card lacks; see ``CudaDevice.set_precision``.

        Raises:
            EnvironmentFault: the device would emulate the precision, or ignore the switch.
        """
        torch = self._torch
        capability = torch.cuda.get_device_capability(self.index)
        least = _LEAST_CAPABILITY.get(precision, (0, 0))
        if capability < least:
            raise EnvironmentFault(
                f"precision={precision} on {torch.cuda.get_device_name(self.index)}, compute "
                f"capability {capability[0]}.{capability[1]}",
                where="recipe field precision",
                rule=f"matrix units support {precision} from {least[0]}.{least[1]} on",
                remedy="use precision=fp32"
                + (" or fp16" if precision == "bf16" and capability >= (5, 3) else ""),
            )
        return super().set_precision(precision)

    def clocks(self) -> dict[str, float | None]:
        """Return clocks, power and temperature as the management library has them now."""
        # By its identity: the library's order is not that of the visible devices.
        uuid = self._torch.cuda.get_device_properties(self.index).uuid
        return nvml.clocks(f"GPU-{uuid}")

    def describe(self) -> dict[str, Any]:
        """Return what torch tells; a slice must not be taken for the card, with its other peak."""
        facts = super().describe()
        if self._is_slice and "MIG" not in facts["name"]:
            facts["name"] += " MIG"
        return facts
