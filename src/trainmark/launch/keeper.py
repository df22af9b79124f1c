"""A process beside every run: if the launcher is killed, it ends the ranks and writes the record.

Started as ``python -m trainmark.launch.keeper RUN_DIR RUN_ID``, in a session of its own, so that
neither Ctrl-C nor a closing terminal reaches it. It waits on its standard input: the word ``done``
means all is well, the end of the stream that the launcher died. Imports nothing of weight until
then.
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
    """The keeper as its launcher sees it: started on entry, told that all is well on exit."""

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
        """Start another where somebody killed this one."""
        if self._process.poll() is not None:
            self.__enter__()

    def __exit__(self, *_: object) -> None:
        # Also after an error of ours: the launcher lives, so it reports for itself.
        try:
            self._process.communicate(DONE, timeout=_PATIENCE_S)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()


def take_over(run_dir: Path, run_id: str) -> None:
    """End the run's processes and leave the record the launcher would have left.

    No file is touched where the folder is another run's, or no run's yet.
    """
    from trainmark.launch.processes import kill_run
    from trainmark.launch.run_dir import RESERVE_FILE, finish_for_another, leave_index
    from trainmark.measure.events import LAUNCHER_FILE
    from trainmark.planning.plan import PLAN_FILE, Plan
    from trainmark.results.record import RECORD_FILE, read

    kill_run(run_id)
    if not (run_dir / PLAN_FILE).exists() or Plan.read(run_dir).run_id != run_id:
        return
    if not (run_dir / LAUNCHER_FILE).exists():  # the run did not begin: leave nothing of it
        (run_dir / RESERVE_FILE).unlink(missing_ok=True)
        (run_dir / PLAN_FILE).unlink()
        run_dir.rmdir()
    elif (run_dir / RECORD_FILE).exists():
        leave_index(read(run_dir), run_dir)  # the launcher may have died between the two
    else:
        finish_for_another(run_dir)


def main(run_dir: Path, run_id: str) -> int:
    """Wait for the launcher's word or its death."""
    for number in STOP_SIGNALS:  # whoever ends every process of a job means the launcher
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() != DONE:
        take_over(run_dir, run_id)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
