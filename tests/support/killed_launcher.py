"""Kill launchers at counted moments of a launch; print which processes outlive each.

Run as ``python killed_launcher.py PLAN MOMENT…``: one launch of the plan a moment, whose launcher
kills itself at its MOMENT-th call after it began to start processes. This process adopts whatever
is left, so that nothing can hide from it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from trainmark.launch import local
from trainmark.launch.processes import StopRequest
from trainmark.plan.plan import Plan
from trainmark.rank.parent import adopt_orphans

PATIENCE_S = 600.0  # how long processes of a killed launcher may take to end


def launch_and_die(plan: Plan, moment: int) -> None:
    """Launch, and kill this process at a moment; exit with 0 if the launch ends before.

    Args:
        moment: the number of the call or return of a function, counted from the start of the ranks.
    """
    remaining_calls = moment

    def count(*_: Any) -> None:
        nonlocal remaining_calls
        remaining_calls -= 1
        if remaining_calls == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    run_ranks = local.run_ranks

    def run_counted_ranks(*arguments: Any, **more: Any) -> bool:
        """Start the ranks, and count calls and returns of functions from here on."""
        sys.setprofile(count)
        return run_ranks(*arguments, **more)

    local.run_ranks = run_counted_ranks
    local.launch(plan, StopRequest())
    os._exit(0)


def launch_and_list_survivors(plan: Plan, moment: int) -> dict[str, Any]:
    """Return how the launcher ended, and the command lines of the processes that outlive it.

    Args:
        moment: the call or return of a function, counted from the start of the ranks, at which the
            launcher kills itself.
    """
    launcher = os.fork()
    if launcher == 0:
        launch_and_die(plan, moment)
    _, status = os.waitpid(launcher, 0)
    # Processes that it left are now children of this process, which adopts orphans. They may take
    # up to ``PATIENCE_S``, ten minutes, to end by themselves.
    deadline = time.monotonic() + PATIENCE_S
    while psutil.Process().children() and time.monotonic() < deadline:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if pid == 0:  # children are left, but none has ended
            time.sleep(0.01)
    processes = psutil.Process().children(recursive=True)
    lines = [" ".join(process.cmdline()) for process in processes]
    for process in processes:
        process.kill()
        process.wait()
    return {"moment": moment, "code": os.waitstatus_to_exitcode(status), "left": lines}


if __name__ == "__main__":
    adopt_orphans()
    base_plan = Plan.read(Path(sys.argv[1]))
    for number in map(int, sys.argv[2:]):
        folder = f"{base_plan.run_dir}-{number}"
        changed = {"run_dir": folder, "run_id": f"{base_plan.run_id}-{number}"}
        print(
            json.dumps(launch_and_list_survivors(base_plan.model_copy(update=changed), number)),
            flush=True,
        )
