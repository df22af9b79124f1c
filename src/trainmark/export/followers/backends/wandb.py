"""Weights & Biases: a run in the project ``DESTINATION``, by default ``trainmark``.

``WANDB_MODE=offline`` and W&B's other variables hold. The run's id in W&B is ours. Online, a run
that is followed again is resumed and gets only the points that it lacks; offline, it replaces the
folder that was not synchronised yet. Nothing is sent of the machine and of this program: no host
name, no statistics of this process, no code.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.export.followers.points import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.export.followers.points import FollowedRun, Point, RunResult


def prepare(destination: str | None) -> None:  # noqa: ARG001 - as of every backend
    """Import what takes long, so that it does not delay the run.

    Args:
        destination: not used; other backends prepare their destination here.
    """
    import wandb  # noqa: F401


class WeightsAndBiases:
    """Logs the points of one run: values at one time each, such as the loss of a step.

    Attributes:
        _run: the run in W&B.
        _last_numbers: by axis, such as the steps, the highest number that W&B has from an earlier
            process that handed over the same run.
        _defined_series: names of the series whose axis W&B knows.
    """

    def __init__(self, run: FollowedRun, destination: str | None) -> None:
        """Create the run in W&B, or continue the one that an earlier process created.

        Args:
            run: its id, its case, its folder and its settings.
            destination: ``PROJECT`` or ``ENTITY/PROJECT``; None: the project ``trainmark``.
        """
        import wandb

        entity, _, project = (destination or "trainmark").rpartition("/")
        # Nothing is sent of this machine, and nothing of this program but the points.
        settings = wandb.Settings(
            host="-",  # instead of the name of this machine
            console="off",
            silent=True,
            disable_git=True,
            save_code=False,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        folder = Path(os.environ.get("WANDB_DIR") or run.folder)
        # W&B keeps a run here if it does not upload it. If an earlier process handed over this run,
        # its folder is deleted, because all points come again.
        for earlier_folder in folder.glob(f"wandb/offline-run-*-{run.run_id}"):
            shutil.rmtree(earlier_folder)
        self._run: Any = wandb.init(
            entity=entity or None,
            project=project,
            id=run.run_id,
            name=run.run_id,
            group=run.case,
            config=run.settings,
            dir=folder,
            resume="allow",  # a run with this id that was uploaded before is continued
            reinit="create_new",  # several runs may be followed in one process
            settings=settings,
        )
        self._last_numbers: dict[str, int] = {}  # ``log`` adds an axis with its first point
        self._defined_series: set[str] = set()

    def log(self, points: Sequence[Point]) -> None:
        """Log the points that W&B's run lacks.

        Args:
            points: values by the name of their series. ``number`` is the position on an axis, such
                as the step.
        """
        for point in points:
            if point.axis not in self._last_numbers:
                # A run that is followed again has points already: its summary has the newest number
                # of each axis. -1: it has no point of this axis yet.
                self._last_numbers[point.axis] = self._run.summary.get(point.axis, -1)
            if point.number <= self._last_numbers[point.axis]:
                continue
            # W&B must know the axis of a series before its first value.
            for name in point.values.keys() - self._defined_series:
                self._run.define_metric(name, step_metric=point.axis)
                self._defined_series.add(name)
            time_columns = {point.axis: point.number, "_timestamp": point.unix_ns / NS_PER_S}
            self._run.log(time_columns | point.values)

    def finish(self, result: RunResult | None) -> None:
        """Set the summary and end the run.

        Args:
            result: how the run ended; None: it has no record.
        """
        if result is not None:
            self._run.summary.update(result.figures)
            self._run.summary.update({"status": result.status, "trust": result.trust})
        has_passed = result is not None and result.status == "passed"
        self._run.finish(exit_code=0 if has_passed else 1)
