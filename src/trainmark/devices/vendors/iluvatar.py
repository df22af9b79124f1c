"""Iluvatar CoreX: devices that CoreX's torch presents as ``cuda``, read with ``ixsmi``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.devices.tool import (
    Command,
    drop_first_word,
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


def parse_ixsmi(text: str) -> list[DeviceSample]:
    """Return the chips in the table of ``ixsmi``, numbered by their places in it.

    A chip has two lines::

        | 1    Iluvatar BI-V150         | 00000000:16:00.0     | 1500MHz   1600MHz    |
        | 0%   30C   P0    93W / 350W   | 116MiB / 32768MiB    | 0%        Default    |

    A BI-V150 card has two chips, and only the second one reports the card's power.

    Raises:
        MonitorFault: there is no chip in it.
    """
    samples = []
    for index, (upper, lower) in enumerate(read_two_line_rows(text, r"MiB\s*/")):
        samples.append(
            make_sample(
                index,
                name=drop_first_word(upper[0]),
                temperature=get_word(lower[0], 1),
                power=get_word(lower[0], 3),
                memory=lower[1],
                utilization=lower[2],
                clock=get_word(upper[2], 0),
            )
        )
    return require_devices(text, samples)


class Iluvatar(TorchVendor):
    """Find, examine and open Iluvatar chips; see ``protocols.Vendor``.

    Their device files and their build of torch distinguish them from NVIDIA's cards.
    """

    name = "iluvatar"
    tested = RECORDED_OUTPUTS
    torch_type = "cuda"
    collective_backend = "nccl"
    # Counts boards, some of which have two chips, unless the plugin's splitboard is true:
    # https://github.com/Deep-Spark/ix-device-plugin, 2026-11-22.
    kubernetes_resource = "iluvatar.com/gpu"
    visible_devices: str | None = "CUDA_VISIBLE_DEVICES"
    recorded_variables: tuple[str, ...] = (
        "CUDA_VISIBLE_DEVICES",
        "ILUVATAR_COREX_VISIBLE_DEVICES",
        "CUDA_LAUNCH_BLOCKING",
        "PYTORCH_CUDA_ALLOC_CONF",
        "TORCH_NCCL_*",
        "NCCL_*",
    )
    nodes = "/dev/iluvatar[0-9]*"
    package = None
    build_field = "maker"
    module = "iluvatar"
    pci_vendor = 0x1E3E
    commands = (Command(("ixsmi",), parse_ixsmi),)
    folders = ("/usr/local/corex/bin",)
    # As FlagOS runs its images: https://github.com/flagos-ai, 2026-11-22. MinerU's page on CoreX
    # gives the container all rights instead.
    container_needs = ContainerNeeds(
        devices=("/dev/iluvatar[0-9]*", "/dev/itrctl", "/dev/itrlink", "/dev/itr_peerm_dev0"),
    )
