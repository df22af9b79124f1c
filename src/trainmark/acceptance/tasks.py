"""Describe what the ranks of an acceptance measure, and what they return, as JSON."""

from __future__ import annotations

import msgspec

from trainmark.protocols import StepDigest  # noqa: TC001 - msgspec reads it at run time

STEP = "step"  # the quantity that decides whether a node passes


class RankTask(msgspec.Struct, frozen=True, kw_only=True):
    """The work of the ranks of one team in one round.

    Args:
        plan_dir: folder of the plan of one node's ranks, whose training is measured.
        num_nodes: that train together, each with as many ranks.
        devices: device of each rank on this node.
        ranks_here: ranks of this node if all its devices train; each rank gets its part of the
            processor cores by this number, also in a smaller team.
        control_steps: steps of the control training, which is done twice and compared bit by bit;
            0: no control training.
        windows: timed pieces of training.
        budget_s: time of all windows together.
        measures_device: whether to time matmuls and copies of each device.
    """

    plan_dir: str
    devices: list[int]
    ranks_here: int
    control_steps: int
    windows: int
    budget_s: float
    measures_device: bool
    num_nodes: int = 1


class RankResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank measured.

    Args:
        device: its number on the node.
        product: name of the device.
        seconds: repeated times by quantity: of a training step in each window, of a matmul, a copy
            or a collective.
        trainings: digests of each step of each control training.
        faults: what was computed wrongly, by quantity, in words.
    """

    rank: int
    device: int
    product: str
    seconds: dict[str, list[float]]
    trainings: list[list[StepDigest]]
    faults: dict[str, str]


class RankFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rank could not measure."""

    rank: int
    error: str


def encode(value: msgspec.Struct) -> str:
    """Return a value as one line of JSON."""
    return msgspec.json.encode(value).decode()


def read_task(text: str) -> RankTask:
    """Return the task of a rank's command line."""
    return msgspec.json.decode(text, type=RankTask)
