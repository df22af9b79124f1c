"""Make ranks that may hang write the stacks of their threads."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.launch.supervisor import RankProcess

_TIMEOUT_S = 5  # for ranks that do not answer
_POLL_S = 0.1


def save_stacks(
    ranks: Sequence[RankProcess], files: Sequence[Path], signal_number: int
) -> list[str]:
    """Make every rank write the call stacks of its threads; return the names of their files.

    For a rank that does not answer, the process state is written instead. A rank that a SIGSTOP has
    suspended is continued; it writes its stacks before anything else.

    Args:
        files: the file of each rank, into which it writes its stacks.
        signal_number: the signal on which a rank writes them.
    """
    for rank in ranks:
        rank.send_signal(signal_number)
        rank.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + _TIMEOUT_S
    sizes_before: list[int] = []
    while time.monotonic() < deadline:
        sizes = [path.stat().st_size if path.exists() else 0 for path in files]
        if all(sizes) and sizes == sizes_before:  # all have written, and none is still writing
            break
        sizes_before = sizes
        time.sleep(_POLL_S)
    for rank, path in zip(ranks, files, strict=True):
        if not path.exists() or path.stat().st_size == 0:
            state: str
            try:
                state = psutil.Process(rank.pid).status()
            except psutil.NoSuchProcess:
                state = "gone"
            path.write_text(f"no stack: the process did not answer (state: {state})\n")
    return [path.name for path in files]
