"""Outlive the launcher: if it is killed, end its ranks and write the record.

Started beside every run as ``python -m trainmark.launch.keeper RUN_DIR``, in a session of
its own, so that neither Ctrl-C nor a closing terminal reaches it. It waits on its standard
input: the word ``done`` means all is well, the end of the stream that the launcher died.
Imports nothing of weight until then.
"""

from __future__ import annotations

import sys
from pathlib import Path

DONE = b"done\n"


def take_over(run_dir: Path) -> None:
    """End the run's processes and leave the record the launcher would have left."""
    from time import perf_counter_ns

    from trainmark.launch.processes import kill_run
    from trainmark.launch.run_dir import finish
    from trainmark.measure.events import LAUNCHER_FILE, EventWriter
    from trainmark.plan import Plan
    from trainmark.results.record import RECORD_FILE

    kill_run(Plan.read(run_dir).run_id)
    if (run_dir / RECORD_FILE).exists():
        return
    finish(
        run_dir,
        EventWriter(run_dir / LAUNCHER_FILE, perf_counter_ns),
        stop={"reason": "launcher_killed"},
        agent=None,
    )


def main(run_dir: Path) -> int:
    """Wait for the launcher's word or its death."""
    if sys.stdin.buffer.read() != DONE:
        take_over(run_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
