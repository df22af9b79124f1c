"""Launch a plan on this machine: the folder, the ranks, the record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import devices
from trainmark.launch import node, run_dir

if TYPE_CHECKING:
    from collections.abc import Callable

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
