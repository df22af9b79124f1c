"""Cambricon: ``mlu`` devices of ``torch_mlu``, read with ``cnmon``."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    from trainmark.protocols import DeviceSample


def parse_cnmon(text: str) -> list[DeviceSample]:
    """Return the cards in the table of ``cnmon``, numbered by their places in it.

    A card has two lines::

        | 0     /   MLUXXX-XX    v1.5.0 |         0000:4F:00.0 | 0%                  0 |
        |  0%   35C        105 W/ 550 W |     0 MiB/ 65536 MiB | FULL          Default |

    Raises:
        MonitorFault: there is no card in it.
    """
    samples = []
    for index, (upper, lower) in enumerate(read_two_line_rows(text, r"MiB\s*/")):
        samples.append(
            make_sample(
                index,
                name=get_word(upper[0], 2),
                temperature=get_word(lower[0], 1),
                power=get_word(lower[0], 2),
                memory=lower[1],
                utilization=upper[2],
            )
        )
    return require_devices(text, samples)


class Cambricon(TorchVendor):
    """Find, examine and open Cambricon cards; see ``protocols.Vendor``."""

    name = "cambricon"
    tested = RECORDED_OUTPUTS
    torch_type = "mlu"
    collective_backend = "cncl"
    # https://github.com/Cambricon/cambricon-k8s-device-plugin, 2026-11-22
    kubernetes_resource = "cambricon.com/mlu"
    visible_devices: str | None = "MLU_VISIBLE_DEVICES"
    recorded_variables: tuple[str, ...] = (
        "MLU_VISIBLE_DEVICES",
        "PYTORCH_MLU_ALLOC_CONF",
        "CNCL_*",
    )
    nodes = "/dev/cambricon_dev[0-9]*"
    package = "torch_mlu"
    module = "cambricon_drv"
    pci_vendor = 0xCABC
    commands = (Command(("cnmon",), parse_cnmon),)
    # https://github.com/Cambricon/cambricon-k8s-device-plugin (constants of its device plugin) and
    # https://opendatalab.github.io/MinerU/zh/usage/acceleration_cards/Cambricon, 2026-11-22
    container_needs = ContainerNeeds(
        devices=("/dev/cambricon_dev[0-9]*", "/dev/cambricon_ipcm[0-9]*", "/dev/cambricon_ctl"),
        mounts=("/usr/bin/cnmon",),
    )
