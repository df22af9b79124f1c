"""Kunlunxin XPUs: ``torch_xmlir`` lets torch drive them as ``cuda``; ``xpu-smi -m`` reads.

Written from public documentation and published outputs of its tool; never run on a card.
"""

from __future__ import annotations

import re
from dataclasses import replace

from trainmark.devices import tool
from trainmark.devices.tool import require_devices
from trainmark.devices.torch_vendor import TorchVendor
from trainmark.protocols import ContainerNeeds, DeviceSample
from trainmark.protocols.tested import RECORDED_OUTPUTS

_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_FIELD = re.compile(r'"[^"]*"|\S+')
# The power of a P800 is printed in W, that of a K200 in mW. No card draws more than this many W or
# fewer mW, so a larger number is in mW.
_MAX_POWER_W = 2000.0


def parse_xpu_smi(text: str) -> list[DeviceSample]:
    """Return the devices in what ``xpu-smi -m`` prints: a line of fields for each.

    Fields by place: 0 address, 2 number, 4 temperature, 8 power, 9 clock, 17 and
    18 used and total memory, 19 utilization, 21 product name in quotes. Memory is in MiB.

    Raises:
        MonitorFault: no line has this form.
    """
    sample_by_number = {}
    for line in text.splitlines():
        fields = [part.strip('"') for part in _FIELD.findall(line)]
        if len(fields) < 22 or not _ADDRESS.fullmatch(fields[0]):
            continue
        number = tool.parse_device_number(fields[2])
        if number is None:
            continue
        power = tool.parse_number(fields[8])
        # Older cards report their power in mW: a number that is too large for W is in mW.
        if power is not None and power > _MAX_POWER_W:
            power /= 1000
        sample_by_number[number] = DeviceSample(
            index=0,  # set below
            name=fields[21] or None,
            temperature_c=tool.temperature_c(fields[4]),
            power_w=tool.watts(power),
            memory_used_bytes=tool.size_bytes(fields[17], unit="m"),
            memory_total_bytes=tool.size_bytes(fields[18], unit="m"),
            utilization_percent=tool.percent(fields[19]),
            clock_mhz=tool.megahertz(fields[9]),
        )
    # The tool numbers all devices of the machine, of which a container may have only some. Ranks
    # number those that they see from 0.
    samples = [
        replace(sample_by_number[number], index=index)
        for index, number in enumerate(sorted(sample_by_number))
    ]
    return require_devices(text, samples)


class Kunlunxin(TorchVendor):
    """Find, examine and open Kunlunxin XPUs; see ``protocols.Vendor``."""

    name = "kunlunxin"
    tested = RECORDED_OUTPUTS
    torch_type = "cuda"
    collective_backend = "nccl"  # torch_xmlir puts Kunlunxin's BKCL in its place
    # docs/userguide/kunlunxin-device in https://github.com/Project-HAMi/website, 2026-11-22
    kubernetes_resource = "kunlunxin.com/xpu"
    visible_devices: str | None = "CUDA_VISIBLE_DEVICES"
    hiding_variables = (("XPU_VISIBLE_DEVICES",), ("CUDA_VISIBLE_DEVICES",))
    recorded_variables: tuple[str, ...] = (
        "CUDA_VISIBLE_DEVICES",
        "XPU_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "XPU_PAGING_MODE",
        "XPU_FORCE_USERMODE_LAUNCH",
        "XMLIR_CUDNN_ENABLED",
        "XDNN_USE_FAST_GELU",
        "BKCL_*",
    )
    nodes = "dev/xpu[0-9]*"
    shared = ("dev/xpuctrl",)
    package = "torch_xmlir"
    module = "kunlun"
    pci_vendor = 0x1D22
    commands = (tool.Command(("xpu-smi", "-m"), parse_xpu_smi),)
    folders = ("/usr/local/xpu/bin", "/usr/local/xpu/tools", "/usr/local/bin")
    # https://opendatalab.github.io/MinerU/zh/usage/acceleration_cards/Kunlunxin, 2026-11-22
    container_needs = ContainerNeeds(
        devices=("/dev/xpu[0-9]*", "/dev/xpuctrl"), mounts=("/usr/local/bin/xpu-smi",)
    )
