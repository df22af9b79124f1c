"""The launches of a plan, each with a progress line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.launch import submission
from trainmark.launch.launchers.names import LOCAL
from trainmark.launch.local import launch
from trainmark.launch.progress import Progress, end_line, progress_line
from trainmark.plan.resolving import of_repeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.launch.site import Site
    from trainmark.launch.stopping import StopRequest
    from trainmark.plan.plan import Plan
    from trainmark.record.record import Record


def launches(plan: Plan) -> list[Plan]:
    """Return the plan of each launch, in order."""
    count = plan.repeat_count
    return [plan] if count == 1 else [of_repeat(plan, index + 1) for index in range(count)]


def launch_shown(
    single: Plan, request: StopRequest, *, site: Site, label: str, quiet: bool
) -> Record:
    """Launch once, on this machine or through the plan's launcher, with a progress line.

    Args:
        site: settings of the plan's launcher.
        label: start of the line.

    Raises:
        EnvironmentFault: the folder cannot be used; nothing was started.
    """
    progress, count = Progress(single), single.repeat_count
    said = label if count == 1 else f"{label} {single.repeat_index}/{count}"
    if single.launcher == LOCAL:
        show = (lambda: None) if quiet else progress_line(said, progress.poll)
        record = launch(single, request, on_poll=show)
    else:
        job_shown = shown(progress, said, quiet=quiet)
        record = submission.launch(single, site, request, on_poll=job_shown)
    if not quiet:
        end_line(f"{said}: {record.status}")
    return record


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
