"""Hygon DCUs: the torch of Hygon's DTK drives them as ``cuda`` through HIP; ``hy-smi`` reads.

Written from public documentation and published outputs of its tools; never run on a card.
"""

from __future__ import annotations

import re

from trainmark.devices import tool
from trainmark.devices.rocm import RocmVendor, parse_rocm_smi
from trainmark.devices.tool import known
from trainmark.protocols import ContainerNeeds, DeviceSample

_SHOWN = (
    "--showtemp", "--showpower", "--showuse", "--showmeminfo", "vram", "--showclocks",
    "--showproductname", "--showuniqueid", "--showbus", "--json",
)  # fmt: skip
# hy-smi leaves out the commas between the powers of a card: "80.0""Average GFX Core Power (W)".
_NO_COMMA = re.compile(r'(?<=[^\s:,{\[\\])""(?=[^\s:,}\]])')
_HEADER = re.compile(r"^\s*[DH]CU\s+Temp\s.*$", re.MULTILINE)


def parse_hy_smi(text: str) -> list[DeviceSample]:
    """Return the devices in what ``hy-smi`` prints: JSON, or its table.

    Raises:
        MonitorFault: it is another form.
    """
    header = _HEADER.search(text)
    if header is None:
        return parse_rocm_smi(_NO_COMMA.sub('","', text))
    names = header[0].lower().split()
    found: list[DeviceSample] = []
    for line in text[header.end() :].splitlines():
        cells = line.split()
        if len(cells) != len(names) or not re.fullmatch(r"[0-9]{1,6}", cells[0]):
            continue
        fields = dict(zip(names, cells, strict=True))
        found.append(
            DeviceSample(
                index=len(found),  # earlier versions count from 1
                temperature_c=tool.temperature_c(fields.get("temp")),
                power_w=tool.watts(fields.get("avgpwr")),
                utilization_percent=tool.percent(fields.get("dcu%", fields.get("hcu%"))),
                clock_mhz=tool.megahertz(fields.get("sclk")),
                memory_clock_mhz=tool.megahertz(fields.get("mclk")),
            )
        )
    return known(text, found)


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
    # An older tool that does not know all of these options prints its table without any.
    commands = tuple(
        tool.Command(("hy-smi", *shown), parse_hy_smi, any_code=True) for shown in (_SHOWN, ())
    )
