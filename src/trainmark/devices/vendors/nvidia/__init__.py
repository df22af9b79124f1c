"""NVIDIA's accelerators as planning sees them, without importing torch.

Counts cards from the driver's library or files and checks the installed torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainmark.devices import pci
from trainmark.devices.vendors.nvidia import choice, conditions, driver, monitor
from trainmark.devices.vendors.nvidia.choice import VISIBLE_DEVICES
from trainmark.protocols import ContainerNeeds, Refusal
from trainmark.spec import RankMemory

if TYPE_CHECKING:
    from trainmark.devices.vendors.nvidia.device import NvidiaDevice
    from trainmark.devices.vendors.nvidia.driver import Card
    from trainmark.protocols import Condition, Monitor, Occupant
    from trainmark.spec import Recipe


class Nvidia:
    """Planning's view of NVIDIA's cards; see ``Vendor``."""

    name = "nvidia"
    torch_type = "cuda"
    collective_backend = "nccl"
    # https://github.com/NVIDIA/k8s-device-plugin, 2026-11-22
    kubernetes_resource = "nvidia.com/gpu"
    visible_devices: str | None = VISIBLE_DEVICES
    recorded_variables: tuple[str, ...] = (
        VISIBLE_DEVICES, "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG",
        "NVIDIA_TF32_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF", "NCCL_DEBUG", "NCCL_ALGO", "NCCL_PROTO",
        "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE",
    )  # fmt: skip
    counts_cores = False
    pci_vendor = 0x10DE
    # https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/ (docker-specialized,
    # cdi-support) and https://apptainer.org/docs/user/latest/gpu.html, 2026-11-22
    container_needs = ContainerNeeds(
        options={"docker": ("--gpus=all",), "podman": ("--device=nvidia.com/gpu=all",),
                 "apptainer": ("--nv",)},
    )  # fmt: skip

    def count(self) -> int:
        """Return the visible devices; 0 when the installed torch cannot drive them."""
        return len(self.product_names())

    def product_names(self) -> list[str]:
        """Return the product name of each visible device."""
        return [card.name for card in self._usable()]

    def _usable(self) -> list[Card]:
        return choice.usable(driver.cards(), os.environ.get(VISIBLE_DEVICES))

    def unusable(self) -> Refusal | None:
        """Return why no card that is here can be used; see ``protocols.Diagnoses``."""
        return choice.why_unusable(driver.cards(), os.environ.get(VISIBLE_DEVICES))

    def occupants(self, nproc: int) -> list[Occupant]:
        """Return what is on the first ``nproc`` cards now; see ``protocols.Diagnoses``."""
        return [one for card in self._usable()[:nproc] for one in choice.occupants(card)]

    def rank_memory(self, nproc: int) -> RankMemory | None:
        """Return the least memory that is free on a device of ``nproc`` ranks.

        None without the management library.
        """
        known = [
            (card.free_bytes, card)
            for card in self._usable()[:nproc]
            if card.free_bytes is not None
        ]
        if not known:
            return None
        free_bytes, least = min(known, key=lambda pair: pair[0])
        held = (
            f"{one.process} holds {choice.gib(one.used_bytes)}" for one in choice.occupants(least)
        )
        return RankMemory(free_bytes, held=", ".join(held))

    def refuse(self, recipe: Recipe, nproc: int) -> Refusal | None:
        """Refuse ranks that find no device of their own; of the rest only torch knows.

        ``NvidiaDevice`` refuses a card or a precision that torch cannot do.
        """
        del recipe
        usable, variable = self._usable(), os.environ.get(VISIBLE_DEVICES)
        if nproc > 1 and any(card.is_slice for card in usable):
            return Refusal(
                f"{nproc} ranks on MIG slices: a process sees one slice, and NCCL joins slices "
                "only as an experiment",
                "use --nproc 1, or whole cards",
            )
        if nproc > len(usable) > 0 and variable is not None:
            return Refusal(
                f"{nproc} ranks need {nproc} devices, and {VISIBLE_DEVICES}={variable!r} leaves "
                f"{len(usable)} of {choice.listed(driver.cards())}",
                f"use --nproc {len(usable)}, or name more devices in {VISIBLE_DEVICES}",
            )
        return None

    def driver_version(self) -> str | None:
        """Return the version of the kernel module."""
        return driver.driver_version()

    def collective_library(self) -> str:
        """Return the version of NCCL, or of the library that torch has instead."""
        from torch.cuda import nccl

        return "nccl " + ".".join(str(part) for part in nccl.version())

    def monitor(self) -> Monitor | None:
        """Return the management library's monitor, or else ``nvidia-smi``'s."""
        return monitor.open_monitor() if driver.loaded() else None

    def monitored(self, nproc: int) -> list[int]:
        """Return the places of the ranks' cards among all; of a slice its card's."""
        return self._places(driver.cards())[:nproc]

    def _places(self, here: list[Card]) -> list[int]:
        return choice.places(here, os.environ.get(VISIBLE_DEVICES))

    def conditions(self, nproc: int) -> list[Condition]:
        """Return the state of the ranks' cards; see ``protocols.Examined``.

        Of all cards, where it is not known which are the ranks'.
        """
        here = driver.cards()
        return conditions.conditions(self._places(here)[:nproc] or range(len(here)))

    def numa_node(self, local_rank: int) -> int | None:
        """Return the NUMA node of a rank's card; see ``protocols.Located``."""
        here = driver.cards()
        places = self._places(here)
        bus = here[places[local_rank]].bus if local_rank < len(places) else None
        return pci.numa_node(driver.PCI / bus) if bus else None

    def open(self, local_rank: int, ranks_here: int) -> NvidiaDevice:
        """Return the device with the rank's local number."""
        del ranks_here
        from trainmark.devices.vendors.nvidia.device import NvidiaDevice

        sliced = any(card.is_slice for card in self._usable())
        return NvidiaDevice(local_rank, vendor=self.name, is_slice=sliced)
