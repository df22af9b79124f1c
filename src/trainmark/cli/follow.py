"""``trainmark follow``: hand runs to TensorBoard, W&B, MLflow or an OpenMetrics file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainmark.cli.options import Json, complete_with
from trainmark.cli.output import (
    format_count,
    format_path,
    print_json,
    print_remark,
    print_text,
    redirect_to_stderr,
    shorten_path,
)
from trainmark.errors import EXIT_FAILED

if TYPE_CHECKING:
    from trainmark.export.followers.following import Following

EXAMPLES = """\
  trainmark follow runs/RUN --to tensorboard                view the run: tensorboard --logdir runs
  trainmark follow runs/RUN --to mlflow=http://host:5000    send the run to an MLflow server or sqlite:///mlflow.db
  trainmark follow runs --to wandb=PROJECT                  send all runs in a folder
  trainmark follow runs/RUN --to openmetrics=/var/lib/node_exporter/trainmark.prom
"""


def follow(
    runs: Annotated[
        list[str], typer.Argument(help="Folders of runs; the runs may still be in progress.")
    ],
    to: Annotated[
        list[str],
        typer.Option(
            metavar="BACKEND[=DESTINATION]",
            autocompletion=complete_with("complete_backend"),
            help="Backend: tensorboard, wandb, mlflow or openmetrics; repeatable.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Send runs to TensorBoard, MLflow or other programs; follow unfinished runs to the end.

    If a run is sent again, its data points are not duplicated. The exit code is 1 if a backend did
    not accept a run.
    """
    from trainmark.api.following import follow_runs, select_followers

    targets = select_followers(to, where="--to")
    documents = []
    has_failed = False
    completed_followings = follow_runs(runs, targets)
    while True:
        # `next` hands runs over, and returns when one run is done with one program. Meanwhile a
        # program may print: MLflow, for example, prints addresses.
        with redirect_to_stderr():
            following = next(completed_followings, None)
        if following is None:  # every run is done
            break
        has_failed = has_failed or following.fault is not None
        documents.append(_build_document(following))
        if following.fault is not None:
            print_remark(
                f"{shorten_path(following.run_dir)}: {following.target}: {following.fault}"
            )
        elif not as_json:
            counts = f"{format_count(following.num_steps, 'step')}, {following.num_points:,} points"
            print_text(f"{shorten_path(following.run_dir)}: {counts} to {following.target}")
    if as_json:
        print_json(documents)
    if has_failed:
        raise typer.Exit(EXIT_FAILED)


def _build_document(following: Following) -> dict[str, str | int | bool | None]:
    """Return for JSON how much of a run a program received."""
    return {
        "run_dir": format_path(following.run_dir),
        "to": str(following.target),
        "steps": following.num_steps,
        "points": following.num_points,
        "complete": following.is_complete,
        "fault": following.fault,
    }
