"""Huawei Ascend: ``npu`` devices of ``torch_npu``, read with ``npu-smi``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainmark.devices import torch_vendor
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

# The bus address, which is in the lower line of each chip.
_BUS_ADDRESS = r"^[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]$"


def parse_npu_smi(text: str) -> list[DeviceSample]:
    """Return the chips in the table of ``npu-smi info``, numbered by their places in it.

    A chip has two lines, the upper one about its card::

        | 0     910A    | OK            | 67.2        43                15   / 15     |
        | 0             | 0000:61:00.0  | 0           1867 / 15077      0    / 32768  |

    The third cells are power, temperature and huge pages, below them utilization, the host's
    memory and the chip's own. Chips without HBM have only one memory, their own. Of a card with two
    chips, the 910C reports its power with the first chip, the 310P with none.

    Raises:
        MonitorFault: there is no chip in it.
    """
    samples = []
    for index, (card, chip) in enumerate(read_two_line_rows(text, _BUS_ADDRESS)):
        samples.append(
            make_sample(
                index,
                name=drop_first_word(card[0]),
                temperature=get_word(card[2], 1),
                power=get_word(card[2], 0),  # `NA` if the chip does not report it
                memory=chip[2],  # its last memory
                utilization=get_word(chip[2], 0),
            )
        )
    return require_devices(text, samples)


class Ascend(TorchVendor):
    """Find, examine and open Ascend chips; see ``protocols.Vendor``."""

    name = "ascend"
    tested = RECORDED_OUTPUTS
    torch_type = "npu"
    collective_backend = "hccl"
    # All of the 910 series: https://gitcode.com/Ascend/mind-cluster, 2026-11-22.
    kubernetes_resource = "huawei.com/Ascend910"
    ray_resource = "NPU"  # https://docs.ray.io/en/latest/ray-core/scheduling/accelerators.html
    visible_devices: str | None = "ASCEND_RT_VISIBLE_DEVICES"
    recorded_variables: tuple[str, ...] = (
        "ASCEND_RT_VISIBLE_DEVICES",
        "ASCEND_VISIBLE_DEVICES",
        "ASCEND_LAUNCH_BLOCKING",
        "PYTORCH_NPU_ALLOC_CONF",
        "TASK_QUEUE_ENABLE",
        "CPU_AFFINITY_CONF",
        "HCCL_*",
    )
    nodes = "/dev/davinci[0-9]*"
    package = "torch_npu"
    module = None
    pci_vendor = 0x19E5
    pci_classes = ("0x12",)  # Huawei also makes the display controllers of servers
    commands = (Command(("npu-smi", "info"), parse_npu_smi),)
    folders = ("/usr/local/bin", "/usr/local/sbin")
    # https://www.hiascend.com/document/detail/en/mindcluster/730/toolbox/toolboxug/toolboxug_0008.html
    # and .../clustersched/schedulingug/mxdlug_appendices_002.html, 2026-11-22
    container_needs = ContainerNeeds(
        devices=("/dev/davinci[0-9]*", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
        mounts=(
            "/usr/local/Ascend/driver",
            "/usr/local/dcmi",
            "/usr/local/bin/npu-smi",
            "/usr/local/sbin/npu-smi",
            "/etc/ascend_install.info",
        ),
    )

    def driver_version(self) -> str | None:
        """Return the version in the driver's own file; its kernel modules have none."""
        try:
            text = (torch_vendor.ROOT / "usr/local/Ascend/driver/version.info").read_text()
        except (OSError, UnicodeDecodeError):
            return None
        version = re.search(r"^Version=(\S+)", text, re.MULTILINE)
        return version[1] if version else None
