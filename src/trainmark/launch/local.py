"""Launch a plan on this machine: the folder, the ranks, the record; with a progress line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import devices
from trainmark.launch import node, run_dir, submission
from trainmark.launch.names import LOCAL
from trainmark.launch.progress import Progress, end_line, job_line, progress_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.launch.site import Site
    from trainmark.launch.stopping import StopRequest
    from trainmark.plan.plan import Plan
    from trainmark.record.record import Record


def launch(plan: Plan, request: StopRequest, on_poll: Callable[[], None] = lambda: None) -> Record:
    """Run ``plan`` to its end and return its record, written beside its events.

    Args:
        request: the run is stopped as soon as it holds a signal.
        on_poll: called several times a second while the ranks run, to show progress.

    Raises:
        UsageError: a variable that places ranks has no valid value; nothing was started.
        EnvironmentFault: the run directory cannot be made; nothing was started.
        LostRunError: the run directory was deleted while the ranks ran.
    """
    folder = Path(plan.run_dir)
    setup = node.set_up(devices.all_vendors()[plan.device.vendor], plan.nproc, plan.run_id)

    def reason_to_stop() -> dict[str, Any] | None:
        on_poll()
        name = request.signal_name
        return None if name is None else {"reason": "signal", "signal": name}

    with run_dir.created(folder):
        events = run_dir.begin(plan, folder, setup.described)
        try:
            node.run_ranks(plan, folder, setup, events, reason_to_stop)
        except BaseException as error:
            # An error of the launcher or of this machine: the ranks were ended.
            said = f"{type(error).__name__}: {error}"
            events.emit("stop", reason="launcher_error", message=said)
            run_dir.finish(folder, events)
            raise
        return run_dir.finish(folder, events)


def launch_shown(single: Plan, site: Site, label: str, stop: StopRequest, *, quiet: bool) -> Record:
    """Launch here or through the plan's launcher, with a progress line; return the record."""
    progress, count = Progress(single), single.repeat_count
    label = label if count == 1 else f"{label} {single.repeat_index}/{count}"
    if single.launcher == LOCAL:
        line = progress_line(label, progress.poll)

        def show() -> None:
            line()
            if progress.beyond_limit and not told:
                told.append(progress.beyond_limit)
                end_line(f"{label}: {progress.beyond_limit}")

        told: list[str] = []
        record = launch(single, stop, (lambda: None) if quiet else show)
    else:
        said = (lambda _: None) if quiet else job_line(progress, label)
        record = submission.launch(single, site, stop, said)
    if not quiet:
        end_line(f"{label}: {record.status}")
    return record
