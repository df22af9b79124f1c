"""MetaX: devices that MACA's torch presents as ``cuda``, read with ``mx-smi``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainmark.devices import torch_vendor
from trainmark.devices.tool import (
    Command,
    get_word,
    make_device,
    read_two_line_rows,
    require_devices,
)
from trainmark.devices.torch_vendor import TorchVendor
from trainmark.protocols import ContainerNeeds
from trainmark.protocols.tested import RECORDED_OUTPUTS

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.protocols import DeviceSample

_APART = re.compile(r"\s{2,}")


def parse_mx_smi(text: str) -> list[DeviceSample]:
    """Return the chips in the table of ``mx-smi``.

    Up to 2.2.8 it has three columns; from 2.2.9 on the board has a column of its own.

    Raises:
        MonitorFault: there is none.
    """
    return require_devices(
        text,
        (
            make_device(
                index,
                (*_APART.split(upper[0]), "")[1],
                temperature=lower[-3],
                power=get_word(lower[0], 0 if len(lower) > 3 else 1),
                memory=lower[-2],
                utilization=upper[-1],
            )
            for index, (upper, lower) in enumerate(
                read_two_line_rows(text, r"^[0-9]+\s*/\s*[0-9]+\s*MiB")
            )
        ),
    )


class MetaX(TorchVendor):
    """Planning's view of MetaX chips; see ``Vendor``. Told from NVIDIA's by node and torch."""

    name = "metax"
    tested = RECORDED_OUTPUTS
    torch_type = "cuda"
    collective_backend = "nccl"
    # docs/userguide/metax-device in https://github.com/Project-HAMi/website, 2026-11-22
    kubernetes_resource = "metax-tech.com/gpu"
    visible_devices: str | None = "CUDA_VISIBLE_DEVICES"
    # MACA has both; a value of its own counts where CUDA's is not set.
    narrowed_by = (("CUDA_VISIBLE_DEVICES", "MACA_VISIBLE_DEVICES"),)
    recorded_variables: tuple[str, ...] = (
        "CUDA_VISIBLE_DEVICES", "MACA_VISIBLE_DEVICES", "MACA_MPS_MODE", "CUDA_LAUNCH_BLOCKING",
        "PYTORCH_CUDA_ALLOC_CONF", "TORCH_NCCL_*", "MCCL_*",
    )  # fmt: skip
    nodes = "/dev/dri/renderD[0-9]*"
    shared = ("dev/mxcd",)  # through which all cards are given work
    package = None
    built = "maker"
    module = "metax"
    pci_vendor = 0x9999
    commands = (Command(("mx-smi",), parse_mx_smi),)
    folders = ("/opt/mxdriver/bin", "/opt/maca/bin")
    # https://opendatalab.github.io/MinerU/zh/usage/acceleration_cards/METAX, 2026-11-22
    container_needs = ContainerNeeds(devices=("/dev/mxcd", "/dev/dri"))

    def device_files(self) -> list[Path]:
        """Return the render nodes of this vendor's cards: other vendors' are beside them."""
        return [file for file in super().device_files() if self._is_own(file)]

    def _is_own(self, file: Path) -> bool:
        vendor = torch_vendor.ROOT / "sys/class/drm" / file.name / "device/vendor"
        try:
            return int(vendor.read_text(), 16) == self.pci_vendor
        except (OSError, ValueError):
            return False
