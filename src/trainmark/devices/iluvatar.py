"""Iluvatar CoreX: devices that CoreX's torch presents as ``cuda``, read with ``ixsmi``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.devices.printed import device, known, rows
from trainmark.devices.tool_vendor import Command, ToolVendor
from trainmark.devices.torch_build import torch_build

if TYPE_CHECKING:
    from trainmark.protocols import DeviceSample

_QUERY = "index,name,memory.total,memory.used,utilization.gpu,temperature.gpu"


def parse_ixsmi(text: str) -> list[DeviceSample]:
    """Return the chips in the table of ``ixsmi``.

    A BI-V150 card has two chips and tells its power with the second one.

    Raises:
        MonitorFault: there is none.
    """
    found: list[DeviceSample] = []
    for upper, lower in rows(text, r"MiB\s*/"):
        clock, memory_clock = (*upper[2].split(), "", "")[:2]
        _, temperature, _, power = (*lower[0].split(), "", "", "", "")[:4]  # behind fan, state
        used, _, total = lower[1].partition("/")
        found.append(
            device(
                len(found),
                " ".join(upper[0].split()[1:]),
                temperature=temperature,
                power=power,
                used=used,
                total=total,
                utilization=lower[2],
                clock=clock,
                memory_clock=memory_clock,
            )
        )
    return known(found, text)


def parse_ixsmi_csv(text: str) -> list[DeviceSample]:
    """Return the chips in the answer of ``ixsmi`` to the query for ``_QUERY``.

    Raises:
        MonitorFault: there is none.
    """
    found: list[DeviceSample] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(_QUERY.split(",")) and cells[0].isdecimal():
            _, name, total, used, utilization, temperature = cells
            found.append(
                device(len(found), name, total=total, used=used, utilization=utilization,
                       temperature=temperature)
            )  # fmt: skip
    return known(found, text)


class Iluvatar(ToolVendor):
    """Planning's view of Iluvatar chips; see ``Vendor``. Told from NVIDIA's by node and torch."""

    name = "iluvatar"
    torch_type = "cuda"
    collective_backend = "nccl"
    visible_devices: str | None = "CUDA_VISIBLE_DEVICES"
    recorded_variables: tuple[str, ...] = (
        "CUDA_VISIBLE_DEVICES", "ILUVATAR_COREX_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING",
        "PYTORCH_CUDA_ALLOC_CONF", "NCCL_DEBUG", "NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE",
        "NCCL_IB_DISABLE",
    )  # fmt: skip
    nodes = "/dev/iluvatar[0-9]*"
    package = None
    module = "iluvatar"
    pci_vendor = 0x1E3E
    commands = (
        Command(("ixsmi",), parse_ixsmi),
        Command(("ixsmi", "--format=csv,noheader", f"--query-gpu={_QUERY}"), parse_ixsmi_csv),
    )
    folders = ("/usr/local/corex/bin",)

    def drives(self) -> bool:
        """Tell whether the installed torch is CoreX's."""
        build = torch_build()
        return build is not None and build.maker == self.name
