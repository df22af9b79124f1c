"""Find and end every process of a run, however it was orphaned.

A run's processes carry its id in their environment, which children inherit and nothing
takes away: parents, sessions and process groups do not matter.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN_VARIABLE = "TRAINMARK_RUN"
KEEPER_MODULE = "trainmark.launch.keeper"
_KILL_ROUNDS = 50
_ROUND_S = 0.1


def of_run(run_id: str) -> list[psutil.Process]:
    """Return the living processes that carry ``run_id``, this one excepted."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            if process.environ().get(RUN_VARIABLE) != run_id:
                continue
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
        except psutil.Error:
            continue  # gone meanwhile, or another user's: not of this run
        found.append(process)
    return found


def is_running(run_id: str) -> bool:
    """Tell whether a process of the run, or the keeper beside its launcher, is alive here."""
    return bool(of_run(run_id)) or any(
        KEEPER_MODULE in words and words[-1] == run_id for words in _command_lines()
    )


def _command_lines() -> Iterator[list[str]]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # gone meanwhile, or another user's: not of this run
            yield process.cmdline()


def ranks_of_run(run_id: str) -> dict[int, psutil.Process]:
    """Return the run's rank processes by rank."""
    ranks = {}
    for process in of_run(run_id):
        try:
            number = process.environ().get("RANK")
        except psutil.Error:
            continue  # ended meanwhile
        if number is not None:
            ranks[int(number)] = process
    return ranks


def rank_cpu_s(run_id: str) -> float:
    """Return the processor seconds that the run's living ranks have used."""
    used = 0.0
    for process in ranks_of_run(run_id).values():
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # ended meanwhile: whoever waits for it counts it
        used += times.user + times.system
    return used


def kill_run(run_id: str) -> list[int]:
    """Kill every process of the run; return the ids of those that would not die."""
    for _ in range(_KILL_ROUNDS):
        alive = of_run(run_id)
        if not alive:
            return []
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue  # it was faster
        psutil.wait_procs(alive, timeout=_ROUND_S)
    return [process.pid for process in of_run(run_id)]


def save_stacks(run_id: str, files: dict[int, Path], signal_number: int) -> list[str]:
    """Have every rank write its stacks; return the names of the files that were written.

    A rank that does not answer is described by its process state instead. A stopped rank
    is continued: the signal waits for it and is handled first.
    """
    ranks = ranks_of_run(run_id)
    for process in ranks.values():
        try:
            process.send_signal(signal_number)
            process.send_signal(signal.SIGCONT)
        except psutil.NoSuchProcess:
            continue  # reported below as gone
    deadline = time.monotonic() + 5
    sizes = dict.fromkeys(files, -1)
    while time.monotonic() < deadline:
        now = {rank: path.stat().st_size if path.exists() else 0 for rank, path in files.items()}
        if all(size > 0 for size in now.values()) and now == sizes:
            break
        sizes = now
        time.sleep(_ROUND_S)
    for rank, path in files.items():
        if not path.exists() or path.stat().st_size == 0:
            state = ranks[rank].status() if rank in ranks else "gone"
            path.write_text(f"no stack: the process did not answer (state: {state})\n")
    return [path.name for path in files.values()]


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Processor seconds since boot, of the machine and of this process's ended children."""

    busy_s: float
    total_s: float
    children_s: float

    @classmethod
    def now(cls) -> CpuUse:
        """Read the counters."""
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Guest time is counted in user time already (proc(5)).
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return cls(total - idle, total, children.ru_utime + children.ru_stime)

    def others_share(self, later: CpuUse, *, orphans_s: float = 0.0) -> float | None:
        """Return the share of the machine's cores that others used since; 0 to 1.

        ``orphans_s`` is what processes of the run used that nobody waited for.
        """
        total = later.total_s - self.total_s
        if total <= 0:
            return None
        others = (later.busy_s - self.busy_s) - (later.children_s - self.children_s)
        others -= orphans_s
        return min(1.0, max(0.0, others / total))


def oom_kills() -> int | None:
    """Return how often the kernel killed for want of memory since boot; None where unknown."""
    counters = Path("/proc/vmstat")
    if not counters.exists():
        return None
    for line in counters.read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None
