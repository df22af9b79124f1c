"""Guard a run: a process that ends the ranks and writes the record if the launcher is killed.

Started as ``python -m trainmark.launch.keeper RUN_DIR RUN_ID``, in its own session, so that
neither Ctrl-C nor a closing terminal reaches it. It waits on its standard input: ``done``
means that the launcher finished, end of file that it died. Imports large modules only then.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from trainmark.launch.stopping import KEEPER_MODULE, STOP_SIGNALS

DONE = b"done\n"
_PATIENCE_S = 5


class Keeper:
    """The launcher's handle of its keeper: starts it on entry, tells it ``done`` on exit."""

    def __init__(self, run_dir: Path, run_id: str) -> None:
        self._command = [sys.executable, "-m", KEEPER_MODULE, str(run_dir), run_id]

    def __enter__(self) -> Keeper:
        from trainmark.launch.processes import import_variables

        self._process = subprocess.Popen(
            self._command,
            env=os.environ | import_variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def replace_if_dead(self) -> None:
        """Start a new keeper if this one was killed."""
        if self._process.poll() is not None:
            self.__enter__()

    def __exit__(self, *_: object) -> None:
        # Also after an exception: the launcher is alive and writes the record itself.
        try:
            self._process.communicate(DONE, timeout=_PATIENCE_S)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()


def take_over(run_dir: Path, run_id: str) -> None:
    """End the run's processes and write the record in place of the launcher.

    Changes no file if the folder belongs to another run, or if no run began in it.
    """
    from trainmark.launch.processes import kill_run
    from trainmark.launch.run_dir import RESERVE_FILE, finish_for_another, leave_index
    from trainmark.launch.sampling import end
    from trainmark.plan.plan import PLAN_FILE, Plan
    from trainmark.rank.events import LAUNCHER_FILE
    from trainmark.record.record import RECORD_FILE, read

    kill_run(run_id)
    end(run_id)
    if not (run_dir / PLAN_FILE).exists() or Plan.read(run_dir).run_id != run_id:
        return
    if not (run_dir / LAUNCHER_FILE).exists():  # the run did not begin: remove what it wrote
        (run_dir / RESERVE_FILE).unlink(missing_ok=True)
        (run_dir / PLAN_FILE).unlink()
        run_dir.rmdir()
    elif (run_dir / RECORD_FILE).exists():
        leave_index(read(run_dir), run_dir)  # the launcher may have died between the two
    else:
        finish_for_another(run_dir)


def main(run_dir: Path, run_id: str) -> int:
    """Wait until the launcher finishes or dies."""
    for number in STOP_SIGNALS:  # a signal to all processes of a job is the launcher's to handle
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() != DONE:
        take_over(run_dir, run_id)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
