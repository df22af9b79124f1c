"""Launch a plan the planned number of times, one after another, with a progress line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.launch import submission
from trainmark.launch.launchers.names import LOCAL
from trainmark.launch.local import launch
from trainmark.launch.progress import Progress, end_line, progress_line
from trainmark.launch.run_dir import refuse_used
from trainmark.planning.plan import of_repeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.launch.site import Site
    from trainmark.launch.stopping import StopRequest
    from trainmark.planning.plan import Plan
    from trainmark.results.record import Record


def launches(plan: Plan) -> list[Plan]:
    """Return the plan of each launch, in order."""
    count = plan.repeat_count
    return [plan] if count == 1 else [of_repeat(plan, index + 1) for index in range(count)]


def _launched(plan: Plan, site: Site, request: StopRequest, *, said: str, quiet: bool) -> Record:
    """Launch once, on this machine or through the plan's launcher."""
    progress = Progress(plan)
    if plan.launcher == LOCAL:
        show = (lambda: None) if quiet else progress_line(said, progress.poll)
        return launch(plan, request, on_poll=show)
    return submission.launch(plan, site, request, on_poll=shown(progress, said, quiet=quiet))


def shown(progress: Progress, label: str, *, quiet: bool) -> Callable[[str], None]:
    """Return what shows the engine's words of a job, and the progress of its first rank."""
    words = ""

    def text() -> str:
        steps = progress.poll()
        return words if progress.unstarted else f"{words}  {steps}"

    line: Callable[[], None] = (lambda: None) if quiet else progress_line(label, text)

    def show(said: str) -> None:
        nonlocal words
        words = said
        line()

    return show


def launch_all(
    plan: Plan,
    request: StopRequest,
    *,
    site: Site,
    label: str,
    quiet: bool,
    ended: Callable[[Record, Path], None],
) -> list[Record]:
    """Launch a plan the planned number of times; a failed launch does not stop the others.

    Args:
        request: no further launch begins once it holds a signal.
        site: settings of the plan's launcher.
        label: start of the progress line.
        ended: called with each record and its folder as soon as it is written.

    Raises:
        EnvironmentFault: the folder cannot be used; nothing was started.
    """
    count = plan.repeat_count
    if count > 1:
        refuse_used(Path(plan.run_dir))
    records = []
    for single in launches(plan):
        if request.signal_name is not None:
            break
        said = label if count == 1 else f"{label} {single.repeat_index}/{count}"
        record = _launched(single, site, request, said=said, quiet=quiet)
        if not quiet:
            end_line(f"{said}: {record.status}")
        records.append(record)
        ended(record, Path(single.run_dir))
    return records
