"""Planning's view of the stand-in; see ``trainmark.protocols.Vendor``. Does not import torch.

Environment variables set the simulated machine; they are recorded with every run.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainmark.protocols import Refusal
from trainmark.spec import RankMemory

if TYPE_CHECKING:
    from trainmark.recipe import Recipe
    from trainmark_stand_in.device import StandInDevice

NAME = "standin"
DEVICES = "STANDIN_DEVICES"
MEMORY_BYTES = "STANDIN_MEMORY_BYTES"  # of each
SILENT = "STANDIN_SILENT"  # 1: only an open device tells its memory
OPERATION_NS = "STANDIN_OPERATION_NS"  # device time of every operation
FAULT = "STANDIN_FAULT"  # a name in ``faults.TIMELINES``
_DEFAULTS = {DEVICES: 2, SILENT: 0, MEMORY_BYTES: 8 << 30, OPERATION_NS: 20_000}


def read_setting(variable: str) -> int:
    """Return a variable's value, or its default."""
    return int(os.environ.get(variable, _DEFAULTS[variable]))


class StandIn:
    """A machine of simulated accelerators, one for each rank."""

    name = NAME
    torch_type = NAME
    collective_backend = f"cpu:gloo,{NAME}:gloo"
    visible_devices: str | None = None
    recorded_variables: tuple[str, ...] = (*_DEFAULTS, FAULT)
    counts_cores = False

    def count(self) -> int:
        return read_setting(DEVICES)

    def product_names(self) -> list[str]:
        return ["Simulated accelerator"] * self.count()

    def rank_memory(self, nproc: int) -> RankMemory | None:
        return None if read_setting(SILENT) else RankMemory(read_setting(MEMORY_BYTES))

    def refuse(self, recipe: Recipe, nproc: int) -> Refusal | None:
        """Return why the device cannot train a recipe on ``nproc`` ranks, and what to change.

        None: it can.
        """
        if recipe.precision == "tf32":
            why = "precision=tf32 needs TF32 matrix units, which a simulated device does not have"
            return Refusal(why, "use precision=fp32")
        if recipe.compile:
            return Refusal("torch.compile has no backend for this device", "use compile=false")
        if nproc > 1 and getattr(recipe, "fsdp", False):
            why = "FSDP2 resizes storages, which a device registered from Python cannot do"
            return Refusal(why, "use fsdp=false")
        return None

    def driver_version(self) -> str:
        return "1.0"

    def collective_library(self) -> str:
        return "gloo through host memory"

    def monitor(self) -> None:
        """No library reads simulated devices."""

    def monitored(self, nproc: int) -> list[int]:
        return []

    def open(self, local_rank: int, ranks_here: int) -> StandInDevice:
        # Imports torch. How many ranks share the machine does not matter to a stand-in.
        from trainmark_stand_in.device import StandInDevice

        return StandInDevice.open(local_rank)
