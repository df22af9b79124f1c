"""The data that a follower hands to a backend: facts of the run, points of series, the result.

A follower reads a run while it is measured; a backend writes it in the form of another program,
such as TensorBoard. Between both, the readers of a run's files return ``NewPoints``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.plan.plan import Plan

    Setting = str | int | float | bool | None

NS_PER_S = 1e9
CHUNK_BYTES = 1 << 20  # of a file of events that is read at a time
TRAIN_STEP = "train/step"  # the axes of points, see ``Point``
EVAL_STEP = "eval/step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Values of a run at one time.

    Args:
        axis: what ``number`` counts: for ``train/step`` and ``eval/step`` the optimizer steps so
            far, for ``sys/reading`` the readings of a host. Numbers of an axis only rise, and every
            series has one axis.
        unix_ns: the time in nanoseconds since 1970.
        values: values by the name of their series, for example ``train/loss``.
    """

    axis: str
    number: int
    unix_ns: int
    values: dict[str, float]


class NewPoints(NamedTuple):
    """The points of the events that were read, and how many events these were.

    Not every event gives a point: nothing is left to read only if there were no events.
    """

    points: list[Point]
    num_events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedRun:
    """Facts of a run that do not change while it works.

    Args:
        folder: folder of the run.
        settings: planned settings by name, without names of machines, people or folders.
        started_unix_ns: start time of the launcher.
    """

    run_id: str
    case: str
    folder: Path
    settings: dict[str, Setting]
    started_unix_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended.

    Args:
        status: status of the record.
        trust: grade of trust of the record.
        num_steps: number of optimizer steps.
        figures: figures of the record by series; null figures are left out.
    """

    status: str
    trust: str
    num_steps: int
    unix_ns: int
    figures: dict[str, float]


class Backend(Protocol):
    """A program that shows runs. It may raise any exception: the run continues without it.

    It is constructed with a ``FollowedRun`` and a destination; None is its default destination.
    """

    def log(self, points: Sequence[Point]) -> None:
        """Log points, in order; skip points that the program already has."""

    def finish(self, result: RunResult | None) -> None:
        """Log the result and close the run; None: the run has no record."""


def describe_settings(plan: Plan) -> dict[str, Setting]:
    """Return the planned settings as plain values, which every backend accepts.

    They are the facts by which runs are told apart in the backend. What names machines, people or
    folders is left out, so also settings of the recipe whose value has a slash.
    """
    facts: dict[str, Setting] = {
        "case": plan.case,
        # The case with framework, hardware and numbers of machines, ranks and launches.
        "case_key": plan.case_key,
        "recipe": plan.recipe_name,
        "rules": plan.rules,  # of the benchmark, closed or open
        # What a reader of the figures must see first, such as ``self-reported generated-data``.
        "labels": " ".join(plan.labels),
        "data_origin": plan.data.origin,  # generated or real
        "vendor": plan.device.vendor,
        "device": ", ".join(sorted(set(plan.device.product_names))),
        "nnodes": plan.nnodes,
        "nproc": plan.nproc,  # ranks on each node
        "launcher": plan.launcher,
        "trainmark_version": plan.suite_version,
    }
    for name, value in plan.recipe.items():
        is_plain = value is None or isinstance(value, bool | int | float | str)
        if is_plain and "/" not in str(value):
            facts[name] = value
    return facts
