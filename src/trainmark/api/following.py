"""Handing runs to other programs, such as TensorBoard."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.export.followers.following import FollowedRuns
from trainmark.export.followers.targets import OPTION, parse_targets, require_backends
from trainmark.launch.run_dir import make_record
from trainmark.plan.plan import PLAN_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.export.followers.following import Following
    from trainmark.export.followers.targets import FollowTarget


def select_followers(words: Sequence[str] | None, *, where: str = OPTION) -> list[FollowTarget]:
    """Return the programs to which runs are handed, after checking that they are installed.

    Args:
        words: such as ``tensorboard`` or ``mlflow=http://host:5000``; None: no programs.
        where: the option that has the words, for errors.

    Raises:
        UsageError: an unknown backend.
        EnvironmentFault: a program is not installed.
    """
    targets = parse_targets(words or (), where=where)
    require_backends(targets, where=where)
    return targets


def follow_runs(runs: Sequence[str | Path], targets: Sequence[FollowTarget]) -> Iterator[Following]:
    """Hand runs to other programs; yield each pair of run and program when it is done.

    Nothing happens before the first pair is asked for; only then errors are raised.

    Raises:
        RecordError: a folder that has no run.
    """
    folders = [folder for word in runs for folder in _find_run_folders(Path(word))]
    for folder in folders:
        # A run whose launcher was killed gets its record. This fails if a run is under way or never
        # began; its events are handed over all the same.
        with suppress(RecordError):
            make_record(folder)
    yield from FollowedRuns(folders, targets).iterate_done()


def _find_run_folders(folder: Path) -> list[Path]:
    """Return the folders of runs in a folder, which may be the folder itself."""
    plans: list[Path] = []
    # The folder is that of a run, of the launches of a run or of several runs, or of several runs
    # with several launches.
    for prefix in ("", "*/", "*/*/"):
        plans += sorted(folder.glob(f"{prefix}{PLAN_FILE}"))
    if not plans:
        raise RecordError(
            "no run in this folder", where=str(folder), fix="pass the folder of a run"
        )
    return [plan.parent for plan in plans]
