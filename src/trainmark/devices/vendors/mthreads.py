"""Moore Threads: ``musa`` devices of ``torch_musa``, read with ``mthreads-gmi``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainmark.devices.tool import (
    Command,
    make_sample,
    parse_count,
    read_lists,
    require_devices,
)
from trainmark.devices.torch_vendor import TorchVendor
from trainmark.protocols import ContainerNeeds
from trainmark.protocols.tested import RECORDED_OUTPUTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.protocols import DeviceSample


# The first line of a card: GPU0 00000000:01:00.0
_FIRST_LINE = r"GPU\s?[0-9]+\s+[0-9A-Fa-f:.]+"


def _count_retired_pages(fields: Mapping[tuple[str, str], str]) -> int | None:
    """Return how many pages of the memory are no longer used; None: the card does not report it."""
    single_bit = parse_count(fields.get(("Retired Pages", "Single Bit ECC")))
    double_bit = parse_count(fields.get(("Retired Pages", "Double Bit ECC")))
    if single_bit is None and double_bit is None:
        return None
    return (single_bit or 0) + (double_bit or 0)


def parse_mthreads_gmi(text: str) -> list[DeviceSample]:
    """Return the cards in the list of ``mthreads-gmi -q``, numbered by their places in it.

    The fields of a card have two keys: a heading of the list, which is empty for the fields before
    the first heading, and the field's name below it.

    Raises:
        MonitorFault: there is no card in it.
    """
    samples = []
    for index, fields in enumerate(read_lists(text, _FIRST_LINE)):
        used_memory = fields.get(("FB Memory Usage", "Used"))
        total_memory = fields.get(("FB Memory Usage", "Total"))
        sample = make_sample(
            index,
            name=fields.get(("", "Product Name")),
            temperature=fields.get(("Temperature", "GPU Current Temp")),
            power=fields.get(("Power Readings", "Power Draw")),
            # A missing size becomes the text `None`, which ``make_sample`` takes as not reported.
            memory=f"{used_memory}/{total_memory}",
            utilization=fields.get(("Utilization", "Gpu")),
            clock=fields.get(("Clocks", "Graphics")),
        )
        # Retired pages are this vendor's form of remapped rows: memory that is no longer used.
        samples.append(replace(sample, remapped_rows=_count_retired_pages(fields)))
    return require_devices(text, samples)


class MThreads(TorchVendor):
    """Find, examine and open Moore Threads cards; see ``protocols.Vendor``."""

    name = "mthreads"
    tested = RECORDED_OUTPUTS
    torch_type = "musa"
    collective_backend = "mccl"
    # https://docs.mthreads.com/cloud-native, 2026-11-22
    kubernetes_resource = "mthreads.com/gpu"
    visible_devices: str | None = "MUSA_VISIBLE_DEVICES"
    recorded_variables: tuple[str, ...] = (
        "MUSA_VISIBLE_DEVICES",
        "MTHREADS_VISIBLE_DEVICES",
        "PYTORCH_MUSA_ALLOC_CONF",
        "MUSA_LAUNCH_BLOCKING",
        "MCCL_*",
    )
    nodes = "/dev/mtgpu.[0-9]*"
    package = "torch_musa"
    module = "mtgpu"
    pci_vendor = 0x1ED5
    commands = (Command(("mthreads-gmi", "-q"), parse_mthreads_gmi),)
    # https://docs.gpustack.ai/latest/tutorials/running-inference-with-moorethreads-gpus and
    # https://github.com/flagos-ai/FlagTree/wiki/User-manual-for-mthreads, 2026-11-22
    container_needs = ContainerNeeds(
        devices=("/dev/mtgpu.[0-9]*", "/dev/dri"),
        options={
            "docker": (
                "--runtime=mthreads",
                "--env=MTHREADS_VISIBLE_DEVICES=all",
                "--env=MTHREADS_DRIVER_CAPABILITIES=all",
            )
        },
    )
