"""Find and end every process of a run, including orphans; note signals that ask it to stop.

A run's processes have its id in their environment, which children inherit, so that parents,
sessions and process groups do not matter. The first of Ctrl-C, SIGTERM and SIGHUP is noted and
checked by loops; further ones are ignored. So no signal prevents a run from writing its record.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN_VARIABLE = "TRAINMARK_RUN"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KILL_ROUNDS = 50  # processes are listed again in each, because they may start others
_ROUND_S = 0.1  # the longest wait in a round for their end


def make_mark(run_id: str, node: int | None) -> str:
    """Return the value of ``RUN_VARIABLE`` of a node's ranks; nodes may share a machine."""
    return run_id if node is None else f"{run_id}.node{node}"


def find_processes(run_id: str, variable: str = RUN_VARIABLE) -> list[psutil.Process]:
    """Return the living processes with ``run_id`` in their environment, except this one."""
    return [process for value, process in _iterate_processes(variable) if value == run_id]


def find_alive_runs() -> dict[str, list[int]]:
    """Return the process ids of this user's living runs, by the run's id.

    The run to which this process belongs is left out.
    """
    pids_by_run: dict[str, list[int]] = {}
    for run_id, process in _iterate_processes():
        if run_id != os.environ.get(RUN_VARIABLE):
            pids_by_run.setdefault(run_id, []).append(process.pid)
    return pids_by_run


def _iterate_processes(variable: str = RUN_VARIABLE) -> Iterator[tuple[str, psutil.Process]]:
    """Yield each living process of a run with the id of its run.

    Args:
        variable: environment variable that has the id.
    """
    for process in psutil.process_iter():
        if process.pid == os.getpid():  # this process may belong to a run that it is to kill
            continue
        try:
            run_id = process.environ().get(variable)
            if run_id and process.status() != psutil.STATUS_ZOMBIE:
                yield run_id, process
        except psutil.Error:
            continue  # the process has ended, or is another user's


def kill_run(run_id: str, variable: str = RUN_VARIABLE) -> list[int]:
    """Kill every process of the run; return the process ids of those that do not end.

    Args:
        variable: environment variable that has the run's id.
    """
    # Several rounds, because a process may start others while the list is made.
    for _ in range(_KILL_ROUNDS):
        alive = find_processes(run_id, variable)
        if not alive:
            return []
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue  # it ended by itself
            # There is no AccessDenied: whoever may read the environment of a process may kill it.
        psutil.wait_procs(alive, timeout=_ROUND_S)
    return [process.pid for process in find_processes(run_id, variable)]


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Processor seconds of the machine since boot, and of this process's ended children."""

    busy_s: float
    total_s: float
    children_s: float

    @classmethod
    def read(cls) -> CpuUse:
        """Return the processor seconds that were used until now."""
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)  # a core that waits for a disk is idle
        # Of children that have ended and were waited for; others do not count yet.
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Guest time is counted in user time already (proc(5)).
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return cls(
            busy_s=total - idle, total_s=total, children_s=children.ru_utime + children.ru_stime
        )

    def compute_others_share(self, later: CpuUse) -> float | None:
        """Return the share of the machine's cores that others used from this reading to ``later``.

        This process's children that have ended meanwhile are left out. All else counts as others:
        other programs, children that still run, and this process itself.

        Returns:
            A share from 0 to 1; None if no time has passed.
        """
        # The sum over all cores.
        total_s = later.total_s - self.total_s
        if total_s <= 0:
            return None
        others_s = (later.busy_s - self.busy_s) - (later.children_s - self.children_s)
        # The counters have two sources, so that the share may lie just outside of 0 to 1.
        return min(1.0, max(0.0, others_s / total_s))


def count_oom_kills() -> int:
    """Return the number of kills by the kernel's out-of-memory killer since boot; 0 if unknown."""
    counters = Path("/proc/vmstat")
    if not counters.exists():
        return 0
    lines = counters.read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


@dataclass(slots=True)
class StopRequest:
    """The name of the first stop signal, for example ``SIGTERM``; None before one arrives."""

    signal_name: str | None = None


@contextmanager
def note_stop_signals(*, deliver: bool = False) -> Iterator[StopRequest]:
    """Note stop signals in the block instead of ending the process.

    The previous handlers are restored at the end, unless a signal was noted: then the program only
    prints its results and ends, and a second signal must not change its exit code. Outside the main
    thread nothing is noted, because Python delivers signals only to the main thread.

    Args:
        deliver: restore the handlers in any case, and deliver the noted signal again after the
            block, so that a program that uses Trainmark as a library handles it itself.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, _frame: object) -> None:
        """Handle a stop signal: note its name if it is the first."""
        stop.signal_name = stop.signal_name or signal.Signals(number).name

    # A signal that was ignored at start, by nohup for instance, stays ignored.
    numbers = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    previous_handlers = {number: signal.signal(number, note) for number in numbers}
    try:
        yield stop
    finally:
        if deliver or stop.signal_name is None:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)
    if deliver and stop.signal_name is not None:
        signal.raise_signal(signal.Signals[stop.signal_name])
