"""Hygon DCUs: the torch of Hygon's DTK drives them as ``cuda`` through HIP; ``hy-smi`` reads.

Written from public documentation and published outputs of its tools; never run on a card.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainmark.devices.rocm import RocmVendor, parse_rocm_smi
from trainmark.devices.tool import Command
from trainmark.protocols import ContainerNeeds

if TYPE_CHECKING:
    from trainmark.protocols import DeviceSample

_SHOWN = (
    "--showtemp", "--showpower", "--showuse", "--showmeminfo", "vram", "--showclocks",
    "--showproductname", "--showuniqueid", "--showbus", "--json",
)  # fmt: skip
# hy-smi leaves out the commas between the powers of a card: "80.0""Average GFX Core Power (W)".
_NO_COMMA = re.compile(r'(?<=[^\s:,{\[\\])""(?=[^\s:,}\]])')


def parse_hy_smi(text: str) -> list[DeviceSample]:
    """Return the devices in the JSON of ``hy-smi``.

    Raises:
        MonitorFault: it is another form.
    """
    return parse_rocm_smi(_NO_COMMA.sub('","', text))


class Hygon(RocmVendor):
    """Planning's view of Hygon DCUs; see ``Vendor``."""

    name = "hygon"
    # gpustack_runtime/envs.py in https://github.com/gpustack/runtime, 2026-11-22
    kubernetes_resource = "hygon.com/dcu"
    module = "hycu hydcu"  # from DTK 25 on, and before
    pci_vendor = 0x1D94
    # https://opendatalab.github.io/MinerU/zh/usage/acceleration_cards/Hygon, 2026-11-22
    container_needs = ContainerNeeds(
        devices=("/dev/kfd", "/dev/mkfd", "/dev/dri"), mounts=("/opt/hyhal",)
    )
    commands = (Command(("hy-smi", *_SHOWN), parse_hy_smi, any_code=True),)
