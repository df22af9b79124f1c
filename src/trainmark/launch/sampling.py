"""Start the sampler of a run before its ranks, and end it after them with all that it started.

It carries the run's id in a variable of its own, so that ending the ranks leaves it its last
reading. It is not restarted: samples without their last line tell that it was killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

import psutil

from trainmark.launch import processes
from trainmark.rank.events import telemetry_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainmark.plan.plan import Plan

SAMPLER_VARIABLE = "TRAINMARK_SAMPLER"
MODULE = "trainmark.rank.telemetry.sampler"
_PATIENCE_S = 2.0


@contextmanager
def sampled(plan: Plan, run_dir: Path, log: IO[bytes], node: int | None = None) -> Iterator[None]:
    """Sample while the block runs, if the plan says so; waits neither for the first sample.

    Args:
        node: number of this machine; None: of a run on one machine.
        log: gets what the sampler prints: why it could not begin.
    """
    if plan.sample_every_s == 0:
        yield
        return
    own_id = processes.mark(plan.run_id, node)
    own = {processes.RUN_VARIABLE: "", SAMPLER_VARIABLE: own_id}
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, str(run_dir), telemetry_file(node)],
        env=os.environ | processes.import_variables() | own,
        stdin=subprocess.PIPE,  # its end tells the sampler to end, also if the launcher died
        stdout=subprocess.DEVNULL,
        stderr=log,
        start_new_session=True,
    )
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        end(own_id)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_S)  # adds its processor time to that of our ended children


def end(run_id: str) -> None:
    """Wait until the sampler of a run ended, then kill what is left of it.

    Its standard input must be closed, or its launcher dead.
    """
    psutil.wait_procs(processes.of_run(run_id, SAMPLER_VARIABLE), timeout=_PATIENCE_S)
    processes.kill_run(run_id, SAMPLER_VARIABLE)
