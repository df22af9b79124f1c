"""MetaX: devices that MACA's torch presents as ``cuda``, read with ``mx-smi``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainmark.devices import torch_vendor
from trainmark.devices.tool import (
    Command,
    get_word,
    make_sample,
    read_two_line_rows,
    require_devices,
)
from trainmark.devices.torch_vendor import TorchVendor
from trainmark.protocols import ContainerNeeds
from trainmark.protocols.tested import RECORDED_OUTPUTS

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.protocols import DeviceSample

_COLUMN_GAP = re.compile(r"\s{2,}")


def parse_mx_smi(text: str) -> list[DeviceSample]:
    """Return the chips in the table of ``mx-smi``, numbered by their places in it.

    A chip has two lines. Up to version 2.2.8 they have three cells::

        | 0       MetaX N260             Off | 0000:01:00.0        | 0%            Native |
        | 37C     29W / 225W              P0 | 666/65536 MiB       | Available            |

    From 2.2.9 on the board has a cell of its own, so that the temperature is in the second cell,
    and the power begins the first one::

        | 0     MetaX C500 | 0           Off | 0000:0e:00.0        | 0%          Disabled |
        | 57W / 350W       | 35C          P0 | 826/65536 MiB       | Available            |

    Raises:
        MonitorFault: there is no chip in it.
    """
    samples = []
    # Used and total memory begin a cell of the second line of a chip, and of no other line.
    second_line = r"^[0-9]+\s*/\s*[0-9]+\s*MiB"
    for index, (upper, lower) in enumerate(read_two_line_rows(text, second_line)):
        # The name has single spaces inside, wide gaps around it.
        columns = _COLUMN_GAP.split(upper[0])
        # Cells that both forms have are counted from the end: there they have the same places.
        has_board_cell = len(lower) > 3
        samples.append(
            make_sample(
                index,
                name=columns[1] if len(columns) > 1 else None,
                temperature=lower[-3],  # its first number
                power=get_word(lower[0], 0 if has_board_cell else 1),
                memory=lower[-2],
                utilization=upper[-1],
            )
        )
    return require_devices(text, samples)


class MetaX(TorchVendor):
    """Find, examine and open MetaX chips; see ``protocols.Vendor``.

    Their device files and their build of torch distinguish them from NVIDIA's cards.
    """

    name = "metax"
    tested = RECORDED_OUTPUTS
    torch_type = "cuda"
    collective_backend = "nccl"
    # docs/userguide/metax-device in https://github.com/Project-HAMi/website, 2026-11-22
    kubernetes_resource = "metax-tech.com/gpu"
    visible_devices: str | None = "CUDA_VISIBLE_DEVICES"
    # MACA reads both variables; its own applies if CUDA's is not set.
    hiding_variables = (("CUDA_VISIBLE_DEVICES", "MACA_VISIBLE_DEVICES"),)
    recorded_variables: tuple[str, ...] = (
        "CUDA_VISIBLE_DEVICES",
        "MACA_VISIBLE_DEVICES",
        "MACA_MPS_MODE",
        "CUDA_LAUNCH_BLOCKING",
        "PYTORCH_CUDA_ALLOC_CONF",
        "TORCH_NCCL_*",
        "MCCL_*",
    )
    nodes = "/dev/dri/renderD[0-9]*"
    shared = ("dev/mxcd",)  # through which all cards are given work
    package = None
    build_field = "maker"
    module = "metax"
    pci_vendor = 0x9999
    commands = (Command(("mx-smi",), parse_mx_smi),)
    folders = ("/opt/mxdriver/bin", "/opt/maca/bin")
    # https://opendatalab.github.io/MinerU/zh/usage/acceleration_cards/METAX, 2026-11-22
    container_needs = ContainerNeeds(devices=("/dev/mxcd", "/dev/dri"))

    def list_device_files(self) -> list[Path]:
        """Return the render nodes of this vendor's cards; the folder has other vendors' as well."""
        return [file for file in super().list_device_files() if self._is_of_this_vendor(file)]

    def _is_of_this_vendor(self, file: Path) -> bool:
        """Tell whether a render node, such as ``/dev/dri/renderD128``, is of a MetaX chip."""
        vendor_file = torch_vendor.ROOT / "sys/class/drm" / file.name / "device/vendor"
        try:
            return int(vendor_file.read_text(), 16) == self.pci_vendor
        except (OSError, ValueError):
            return False
