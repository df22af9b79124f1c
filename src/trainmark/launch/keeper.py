"""Outlive the launcher: if it is killed, end its ranks and write the record.

Started beside every run as ``python -m trainmark.launch.keeper RUN_DIR RUN_ID``, in a session of
its own, so that neither Ctrl-C nor a closing terminal reaches it. It waits on its standard
input: the word ``done`` means all is well, the end of the stream that the launcher died.
Imports nothing of weight until then.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from trainmark.launch.stopping import STOP_SIGNALS

DONE = b"done\n"


def take_over(run_dir: Path, run_id: str) -> None:
    """End the run's processes and leave the record the launcher would have left.

    No file is touched where the folder is another run's, or no run's yet.
    """
    from trainmark.launch.processes import kill_run
    from trainmark.launch.run_dir import finish_for_another, leave_index
    from trainmark.measure.events import LAUNCHER_FILE
    from trainmark.planning.plan import PLAN_FILE, Plan
    from trainmark.results.record import RECORD_FILE, read

    kill_run(run_id)
    if not (run_dir / PLAN_FILE).exists() or Plan.read(run_dir).run_id != run_id:
        return
    if not (run_dir / LAUNCHER_FILE).exists():
        leave_nothing(run_dir)
        return
    if (run_dir / RECORD_FILE).exists():
        leave_index(read(run_dir), run_dir)  # the launcher may have died between the two
        return
    finish_for_another(run_dir)


def leave_nothing(run_dir: Path) -> None:
    """Clear the folder of a run whose launcher died before it began."""
    from trainmark.launch.run_dir import RESERVE_FILE
    from trainmark.planning.plan import PLAN_FILE

    (run_dir / RESERVE_FILE).unlink(missing_ok=True)
    (run_dir / PLAN_FILE).unlink()
    run_dir.rmdir()


def main(run_dir: Path, run_id: str) -> int:
    """Wait for the launcher's word or its death."""
    for number in STOP_SIGNALS:  # whoever ends every process of a job means the launcher
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() != DONE:
        take_over(run_dir, run_id)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
