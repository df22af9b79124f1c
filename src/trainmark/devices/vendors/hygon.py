"""Hygon DCUs: the torch of Hygon's DTK drives them as ``cuda`` through HIP; ``hy-smi`` reads.

Written from public documentation and published outputs of its tools; never run on a card.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trainmark.devices import tool
from trainmark.devices.rocm import RocmVendor, format_identity, is_reported
from trainmark.devices.tool import Command
from trainmark.protocols import ContainerNeeds, DeviceSample, MonitorFault
from trainmark.protocols.tested import RECORDED_OUTPUTS

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHOWN = (
    "--showtemp",
    "--showpower",
    "--showuse",
    "--showmeminfo",
    "vram",
    "--showclocks",
    "--showproductname",
    "--showuniqueid",
    "--showbus",
    "--json",
)
_CARD = re.compile(r"card(\d{1,6})")
# "80.0""Average GFX Core Power (W)": a value and the next name without a comma between them.
_MISSING_COMMA = re.compile(r'(?<=[^\s:,{\[\\])""(?=[^\s:,}\]])')


def parse_hy_smi(text: str) -> list[DeviceSample]:
    """Return the devices in the JSON of ``hy-smi``, which has the fields of ``card0`` and so on.

    The devices are numbered from 0 in the order of the cards' numbers. The tool leaves out the
    commas between the fields of a card's power, so that its JSON cannot be read; before the text is
    parsed, they are inserted.

    Raises:
        MonitorFault: the text has another form.
    """
    values = tool.parse_json(_MISSING_COMMA.sub('","', text))
    if not isinstance(values, dict):
        raise MonitorFault(
            "unreadable", f"the JSON is a list of {len(values)} items, not a table of cards"
        )
    fields_by_card: dict[int, Mapping[str, Any]] = {}
    for name, fields in values.items():
        match = _CARD.fullmatch(name)
        if match and isinstance(fields, dict):
            fields_by_card[int(match[1])] = fields
    return [
        _parse_card(index, fields_by_card[card])
        for index, card in enumerate(sorted(fields_by_card))
    ]


def _parse_card(index: int, fields: Mapping[str, Any]) -> DeviceSample:
    """Return a card's sample from its fields, by name.

    The names are compared in lower case, because versions of the tool write them differently.
    """
    values = {}
    for name, value in fields.items():
        if isinstance(value, str | int | float) and is_reported(value):
            values[name.lower()] = str(value)
    # The tool adds the serial number of the slot to the address.
    address = values.get("pci bus", "").partition(" ")[0]
    return DeviceSample(
        index=index,
        name=values.get("card series"),
        uuid=format_identity(values.get("unique id"), address),
        # Of several sensors the one that all tools of the vendor report as the card's temperature.
        temperature_c=tool.temperature_c(values.get("temperature (sensor edge) (c)")),
        power_w=tool.watts(values.get("average graphics package power (w)")),
        memory_used_bytes=tool.size_bytes(values.get("vram total used memory (mib)"), unit="m"),
        memory_total_bytes=tool.size_bytes(values.get("vram total memory (mib)"), unit="m"),
        utilization_percent=tool.percent(values.get("dcu use (%)", values.get("hcu use (%)"))),
        clock_mhz=tool.megahertz(values.get("sclk clock speed")),
    )


class Hygon(RocmVendor):
    """Find, examine and open Hygon DCUs; see ``protocols.Vendor``."""

    name = "hygon"
    tested = RECORDED_OUTPUTS
    # gpustack_runtime/envs.py in https://github.com/gpustack/runtime, 2026-11-22
    kubernetes_resource = "hygon.com/dcu"
    module = "hycu hydcu"  # the first from DTK 25 on, the second before
    pci_vendor = 0x1D94
    # https://opendatalab.github.io/MinerU/zh/usage/acceleration_cards/Hygon, 2026-11-22
    container_needs = ContainerNeeds(
        devices=("/dev/kfd", "/dev/mkfd", "/dev/dri"), mounts=("/opt/hyhal",)
    )
    commands = (Command(("hy-smi", *_SHOWN), parse_hy_smi, any_code=True),)
