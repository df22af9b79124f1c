"""Train as the toy job does, but slowly if more than two ranks train across a bad switch.

``BEHIND_SWITCH=1`` is in the environment of the ranks behind it.
"""

from __future__ import annotations

import os
import time

from trainmark.cases.toy.job import ToyJob, load_data
from trainmark.train.stepper import add_over_ranks

__all__ = ["build", "load_data"]
SLOW_STEP_S = 1.0


class SwitchedJob(ToyJob):
    """The toy job on nodes of which some are behind a bad network switch, which is simulated."""

    def __init__(self, context, data):
        """Replace the step of the toy job by one that first sleeps if it crosses the bad switch.

        ``BEHIND_SWITCH=1`` is in the environment of the ranks behind it. ``SLOW_STEP_S``: 1 s.
        """
        super().__init__(context, data)
        is_behind = float(os.environ.get("BEHIND_SWITCH") == "1")  # 0 or 1, to be added
        device, world = self.stepper.device, context.world_size
        (num_behind,) = add_over_ranks(is_behind, world_size=world, device=device)
        # ``num_behind``: a sum over the ranks, so that each of them knows it.
        # The ranks train across the bad switch if some are behind it and some are not. Two ranks
        # are never slow, so that only sets of more than two show the switch.
        crosses_switch = world > 2 and 0 < num_behind < world
        take_toy_step = self.step

        def step(batches):
            """Take a step of the toy job, later by ``SLOW_STEP_S`` across the bad switch."""
            time.sleep(SLOW_STEP_S if crosses_switch else 0)
            return take_toy_step(batches)

        self.step = step


build = SwitchedJob
