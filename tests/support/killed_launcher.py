"""Kill launchers at counted moments of a launch; print which processes outlive each.

Run as ``python killed_launcher.py PLAN MOMENT…``: one launch of the plan a moment. A moment such as
1-150 is the 150th call of a function after the launcher has started 1 process; then the launcher
kills itself. This process adopts whatever is left, so that nothing can hide from it.
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


def launch_and_die(plan: Plan, num_started: int, num_calls: int) -> None:
    """Launch, and kill this process at a moment; exit with 0 if the launch ends before.

    Args:
        num_started: how many processes the launcher has started then.
        num_calls: how many calls and returns of functions there were after the start of the last
            one; after that of ``run_ranks``, if ``num_started`` is 0.
    """
    remaining_starts, remaining_calls = num_started, num_calls

    def count(_frame: Any, event: str, function: Any) -> None:
        nonlocal remaining_starts, remaining_calls
        if remaining_starts > 0:
            # The function with which ``subprocess`` starts a process returns.
            if event == "c_return" and function.__name__ == "fork_exec":
                remaining_starts -= 1
            return
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


def launch_and_list_survivors(plan: Plan, num_started: int, num_calls: int) -> dict[str, Any]:
    """Return how the launcher ended, and what it left; see ``launch_and_die`` for its arguments.

    Returns:
        ``code``: exit code of the launcher; ``orphans``: how many processes it left that ended by
        themselves; ``left``: command lines of those that did not.
    """
    launcher = os.fork()
    if launcher == 0:
        launch_and_die(plan, num_started, num_calls)
    _, status = os.waitpid(launcher, 0)
    # Processes that it left are now children of this process, which adopts orphans. They may take
    # up to ``PATIENCE_S``, ten minutes, to end by themselves.
    deadline = time.monotonic() + PATIENCE_S
    num_orphans = 0
    while psutil.Process().children() and time.monotonic() < deadline:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if pid == 0:  # children are left, but none has ended
            time.sleep(0.01)
        else:
            num_orphans += 1
    processes = psutil.Process().children(recursive=True)
    lines = [" ".join(process.cmdline()) for process in processes]
    for process in processes:
        process.kill()
        process.wait()
    return {"code": os.waitstatus_to_exitcode(status), "orphans": num_orphans, "left": lines}


if __name__ == "__main__":
    adopt_orphans()
    base_plan = Plan.read(Path(sys.argv[1]))
    for moment in sys.argv[2:]:
        folder = f"{base_plan.run_dir}-{moment}"
        changed = {"run_dir": folder, "run_id": f"{base_plan.run_id}-{moment}"}
        end = launch_and_list_survivors(
            base_plan.model_copy(update=changed), *map(int, moment.split("-"))
        )
        print(json.dumps({"moment": moment} | end), flush=True)
