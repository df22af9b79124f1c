"""Train as the toy job does, with a handicap on machines that have a file for it.

With the file ``crash`` in the folder ``HANDICAPS`` every rank kills itself. The file ``quota`` has
the path of the file of a control group, to which ranks add themselves once their program is loaded.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from trainmark.cases.toy.job import ToyJob, load_data

__all__ = ["build", "load_data"]


def build(context, data):
    """Return the toy job, after the handicap of this machine, if it has one.

    A handicap is a file, ``crash`` or ``quota``, in the folder of the variable ``HANDICAPS``.
    """
    handicaps = Path(os.environ["HANDICAPS"])
    if (handicaps / "crash").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    if (handicaps / "quota").exists():
        # The path of the list of processes of a control group with a small CPU quota. A process
        # joins the group by writing its id there.
        group_processes = Path((handicaps / "quota").read_text())
        group_processes.write_text(str(os.getpid()))
    return ToyJob(context, data)
