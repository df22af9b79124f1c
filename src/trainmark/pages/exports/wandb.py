"""Records as offline runs of Weights & Biases; ``wandb sync`` sends them when their owner wants."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainmark.pages.exports.tables import settings
from trainmark.pages.exports.trackers import needed, points, run_folder, safe_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.record.record import Record


def write_wandb(records: Sequence[Record], folder: Path) -> None:
    """Write an offline run for each record into a folder of its name.

    Nothing is sent: no login, no error reports; neither host, user nor program is recorded.

    Raises:
        EnvironmentFault: the package wandb is missing.
        UsageError: a run's folder exists.
        OSError: nothing can be written there.
    """
    os.environ["WANDB_ERROR_REPORTING"] = "false"  # read at import
    with needed("wandb"):
        import wandb
    private = wandb.Settings(
        mode="offline", silent=True, console="off", host="", username="", program="",
        program_relpath="", disable_git=True, disable_code=True, disable_job_creation=True,
        x_disable_meta=True, x_disable_stats=True, x_disable_machine_info=True,
        x_save_requirements=False,
    )  # fmt: skip
    for record in records:
        name, place = safe_name(record), run_folder(folder, record)
        run = wandb.init(
            project="trainmark", id=name, name=name, dir=place, config=settings(record),
            settings=private,
        )  # fmt: skip
        for step, values in points(record):
            run.log(values, step=step)
        run.finish(exit_code=0 if record.passed else 1)
    wandb.teardown()
