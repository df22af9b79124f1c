"""End a process when its parent dies, also if the parent dies very early.

``python -m trainmark.rank.parent PARENT COMMAND…`` becomes COMMAND, which gets SIGTERM when the
process with the id PARENT dies. Imports nothing heavy. Outside Linux there is no such signal, and
these functions have no effect.
"""

from __future__ import annotations

import os
import signal
import sys

PARENT_VARIABLE = "TRAINMARK_PARENT"  # process id of a rank's parent, which the parent sets
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies; exit if ``parent`` is dead already.

    Args:
        parent: process id of the parent at the start of this process.
    """
    if not signal_on_parent_death(signal.SIGKILL, parent):
        os._exit(1)


def signal_on_parent_death(signum: signal.Signals, parent: int) -> bool:
    """Let the kernel send this process a signal when its parent dies; outside Linux it sends none.

    Args:
        signum: the signal.
        parent: process id of the parent at the start of this process.

    Returns:
        Whether the parent still lives. If not, the signal may never come.
    """
    _call_prctl(_SET_DEATH_SIGNAL, signum)
    # Only now, so that a death before the call is not missed: a process whose parent has died has
    # another one.
    return os.getppid() == parent


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    _call_prctl(_ADOPT_ORPHANS, 1)


def _call_prctl(option: int, value: int) -> None:
    """Set an option of this process in the kernel; does nothing outside Linux.

    Raises:
        OSError: the kernel refuses the option.
    """
    if sys.platform != "linux":
        return
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


if __name__ == "__main__":
    if signal_on_parent_death(signal.SIGTERM, int(sys.argv[1])):
        os.execvp(sys.argv[2], sys.argv[2:])
    sys.exit(1)
