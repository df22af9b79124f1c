"""What a follower hands to a backend: facts of the run, points of its series, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.plan.plan import Plan

    Setting = str | int | float | bool | None

NS_PER_S = 1e9
TRAIN_STEP, EVAL_STEP = "train/step", "eval/step"  # axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Values of one moment of a run.

    Args:
        axis: name of what ``number`` counts: ``train/step`` and ``eval/step`` count the optimizer
            steps that were done, ``sys/reading`` the readings of a host. Along an axis numbers only
            rise, and every series has one axis.
        unix_ns: the moment.
        values: by the name of their series, for example ``train/loss``.
    """

    axis: str
    number: int
    unix_ns: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedRun:
    """Facts of a run that do not change while it works.

    Args:
        folder: of the run.
        settings: what was planned, by name; without names of machines, people or folders.
        started_unix_ns: start of the launcher.
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
        status: that of the record.
        trust: grade of the record.
        number: optimizer steps that were done.
        figures: final figures of the record by series; figures that are null are left out.
    """

    status: str
    trust: str
    number: int
    unix_ns: int
    figures: dict[str, float]


class Backend(Protocol):
    """A program that shows runs. It may raise anything: the run goes on without it.

    It is constructed with a ``FollowedRun`` and a destination; None: its default.
    """

    def log(self, points: Sequence[Point]) -> None:
        """Take points, in their order; those that it has already are left out."""

    def finish(self, result: RunResult | None) -> None:
        """Take the result and let go of the run; None: the run has no record."""


def describe_settings(plan: Plan) -> dict[str, Setting]:
    """Return what was planned in a form that every backend takes: names with plain values.

    Texts with a slash are left out: they may name folders of this machine.
    """
    facts: dict[str, Setting] = {
        "case": plan.case,
        "case_key": plan.case_key,
        "recipe": plan.recipe_name,
        "rules": plan.rules,
        "labels": " ".join(plan.labels),
        "data_origin": plan.data.origin,
        "vendor": plan.device.vendor,
        "device": ", ".join(sorted(set(plan.device.product_names))),
        "nnodes": plan.nnodes,
        "nproc": plan.nproc,
        "launcher": plan.launcher,
        "trainmark_version": plan.suite_version,
    }
    plain = {
        name: value
        for name, value in plan.recipe.items()
        if value is None or isinstance(value, bool | int | float | str)
    }
    return facts | {name: x for name, x in plain.items() if "/" not in str(x)}
