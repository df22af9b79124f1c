"""The supervisor process between a launcher and the ranks of a machine, and the launcher's side.

The supervisor starts the ranks, reports how each ended, and ends them and all their descendants
when its standard input ends: the launcher has closed it or has died. Linux makes it the parent of
every process that a rank leaves behind, so that none escapes, whatever session, process group or
environment it has.

It is started as ``python -m trainmark.launch.supervisor RUN``; RUN only identifies it in a list of
processes. Its order is the first line of its standard input. It knows neither plans nor events.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import psutil

from trainmark.errors import MeasurementError
from trainmark.launch.processes import RUN_VARIABLE, STOP_SIGNALS
from trainmark.launch.python_commands import build_module_command
from trainmark.rank.parent import PARENT_VARIABLE, adopt_orphans, signal_on_parent_death

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_TERM_PATIENCE_S = 2.0  # from SIGTERM to SIGKILL
_KILL_PATIENCE_S = 5.0  # for processes that the kernel does not end at once
_POLL_S = 0.1
_READ_BYTES = 65_536


class _Order(NamedTuple):
    """The order of a launcher to its supervisor.

    Args:
        launcher: process id of the launcher, which is the supervisor's parent.
        reports: file descriptor to which the supervisor writes its reports, as lines of JSON.
        argv: command of every rank.
        variables: environment variables of each rank, in addition to those of the supervisor.
    """

    launcher: int
    reports: int
    argv: list[str]
    variables: list[dict[str, str]]


class _Supervisor:
    """Starts and ends ranks; runs in the supervisor's process.

    Args:
        order: what the launcher, which is the parent of this process, has it start.
    """

    def __init__(self, order: _Order) -> None:
        self._order = order
        self._running: dict[int, int] = {}  # number of each rank by its process id
        self._is_stopped = False
        # Python writes to this pipe at each signal, so that ``_wait`` returns at once.
        self._wake, wake_end = os.pipe()
        for end in (self._wake, wake_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        # The end of a child is a signal too. Python writes to the pipe only for signals that have
        # a handler, so that SIGCHLD gets one that does nothing.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in STOP_SIGNALS:
            # A signal that was ignored at start stays ignored, here and in the ranks.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._stop)
        # Processes that a rank leaves behind become children of this process: ``_end`` finds them.
        adopt_orphans()
        if not signal_on_parent_death(signal.SIGTERM, order.launcher):  # the launcher has died
            self._is_stopped = True

    def _stop(self, *_: object) -> None:
        """Handle a stop signal."""
        self._is_stopped = True

    def run(self) -> None:
        """Start the ranks, and report the end of each.

        Once the launcher is gone, or on a stop signal, end the ranks that still run.
        """
        try:
            self._start()
            while not self._is_stopped:
                readable = self._wait(seconds=None)
                self._reap()
                # It can be read only at its end: the launcher has closed it or has died.
                if sys.stdin.fileno() in readable:
                    break
        finally:
            self._end()

    def _start(self) -> None:
        """Start the ranks and report their process ids, or why they cannot be started."""
        if self._is_stopped:
            return
        try:
            for number, variables in enumerate(self._order.variables):
                # ``PARENT_VARIABLE`` tells a rank its parent, so that it ends when the parent dies.
                process = subprocess.Popen(
                    self._order.argv,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    env=os.environ | variables | {PARENT_VARIABLE: str(os.getpid())},
                )
                self._running[process.pid] = number
                # With an exit code, this object never waits for the process: ``_reap`` does.
                process.returncode = 0
        except OSError as error:
            self._report(fault=str(error))
            self._is_stopped = True  # ``run`` then ends the ranks that were started
            return
        self._report(pids=list(self._running))

    def _report(self, **fields: Any) -> None:
        """Write one line to the launcher, which may have died."""
        try:
            os.write(self._order.reports, f"{json.dumps(fields)}\n".encode())
        except BrokenPipeError:  # it has died: ``run`` then ends the ranks
            self._is_stopped = True

    def _wait(self, seconds: float | None) -> list[int]:
        """Wait for a signal or the end of a child; without ``seconds``, also for the launcher.

        The launcher sends nothing more: standard input can be read only once the launcher has
        closed it or has died.

        Args:
            seconds: the longest time to wait; None: without a limit.

        Returns:
            The file descriptors that can be read.
        """
        # Python writes to this pipe at each signal; the end of a child is one too.
        watched = [self._wake]
        # ``_end`` waits with a limit, after standard input may have ended: it could be read at any
        # time then, and no wait would last.
        if seconds is None:
            watched.append(sys.stdin.fileno())
        readable, _, _ = select.select(watched, [], [], seconds)
        with suppress(BlockingIOError):  # nothing was written to it
            os.read(self._wake, _READ_BYTES)  # empties the pipe, else the next wait would not wait
        return readable

    def _reap(self) -> None:
        """Read the exit code of every child that has ended, and report those of ranks."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:  # there are no children
                return
            if pid == 0:  # children run, and none has ended
                return
            if pid in self._running:  # else it is a process that a rank left behind
                code = os.waitstatus_to_exitcode(status)
                self._report(rank=self._running.pop(pid), returncode=code)

    def _end(self) -> None:
        """End the ranks, first by SIGTERM, then all descendants by SIGKILL."""
        for pid in self._running:
            os.kill(pid, signal.SIGTERM)  # the id is still valid: ``_reap`` has not waited for it
        deadline = time.monotonic() + _TERM_PATIENCE_S
        while self._running and time.monotonic() < deadline:
            self._wait(_POLL_S)
            self._reap()
        # The descendants are listed again in each round, because they may start others.
        deadline = time.monotonic() + _KILL_PATIENCE_S
        descendants = psutil.Process().children(recursive=True)
        while descendants and time.monotonic() < deadline:
            for process in descendants:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._wait(_POLL_S)
            self._reap()
            descendants = psutil.Process().children(recursive=True)


@dataclass(slots=True)
class RankProcess:
    """A rank, for its launcher; it has the methods of ``subprocess.Popen`` that a launcher needs.

    Args:
        returncode: exit code of the rank; None while it runs.
    """

    pid: int
    _reports: _Reports
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the rank runs."""
        self._reports.read()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the rank if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended since the poll
                os.kill(self.pid, number)


@dataclass(slots=True)
class _Reports:
    """The launcher's end of the supervisor's reports.

    Args:
        descriptor: file descriptor from which the reports are read.
        ranks: the ranks, once they were started.
        _incomplete_line: the begin of a line whose end has not arrived.
        _fault: why the ranks could not be started.
    """

    descriptor: int
    ranks: list[RankProcess] = field(default_factory=list)
    _incomplete_line: bytes = b""
    _fault: str | None = None
    _is_ended: bool = False

    def receive_ranks(self) -> None:
        """Wait for the process ids of the ranks.

        Raises:
            MeasurementError: they could not be started.
        """
        while not self.ranks and not self._is_ended:
            # An empty read sets ``_is_ended``.
            self._process_bytes(os.read(self.descriptor, _READ_BYTES))
        if not self.ranks:
            raise MeasurementError(
                f"the ranks could not be started: {self._fault or 'their supervisor was killed'}"
            )
        os.set_blocking(self.descriptor, False)  # ``read`` does not wait for further reports

    def read(self) -> None:
        """Process the reports that have arrived."""
        while not self._is_ended:
            try:
                # An empty read sets ``_is_ended``.
                self._process_bytes(os.read(self.descriptor, _READ_BYTES))
            except BlockingIOError:
                return

    def _process_bytes(self, data: bytes) -> None:
        """Process bytes of the reports, each of which is a line of JSON.

        Args:
            data: the next bytes of the pipe, which may end within a line; empty: no more come.
        """
        *lines, self._incomplete_line = (self._incomplete_line + data).split(b"\n")
        for report in map(json.loads, lines):
            if "pids" in report:
                self.ranks = [RankProcess(pid, self) for pid in report["pids"]]
            elif "fault" in report:
                self._fault = report["fault"]
            else:
                self.ranks[report["rank"]].returncode = report["returncode"]
        if not data:
            self.end()

    def end(self) -> None:
        """Note that no more reports arrive."""
        self._is_ended = True
        # Ranks whose end was not reported were killed with the supervisor.
        for rank in self.ranks:
            if rank.returncode is None:
                rank.returncode = -signal.SIGKILL


@contextmanager
def supervise_ranks(
    argv: Sequence[str],
    environment: Mapping[str, str],
    variables: Sequence[Mapping[str, str]],
    *,
    output: IO[bytes] | int,
    errors: IO[bytes] | int,
) -> Iterator[list[RankProcess]]:
    """Start ranks; when the block ends, end those that still run and all that they started.

    A child process, the supervisor, starts and ends them, so that none stays behind if this process
    dies. Each rank has a session of its own, so that no signal of a terminal reaches it.

    Args:
        argv: command of every rank.
        environment: environment of all ranks.
        variables: further environment variables of each rank.
        output: standard output of the ranks.
        errors: standard error of the ranks.

    Raises:
        MeasurementError: the ranks cannot be started; none is running.
    """
    # The mark is the variable by which all processes of a run are found and killed. The supervisor
    # does not get it: otherwise it would be killed before it has ended the other processes.
    environment = dict(environment)
    mark = {RUN_VARIABLE: environment.pop(RUN_VARIABLE, "")}
    read_end, write_end = os.pipe()
    # These files only close the ends of the pipe. `_Reports` reads by the number of the read end,
    # and the supervisor, which inherits the write end, writes by its number.
    with open(read_end, "rb", buffering=0), open(write_end, "wb", buffering=0) as writer:  # noqa: PTH123
        rank_variables = [mark | dict(item) for item in variables]
        order = _Order(
            launcher=os.getpid(), reports=write_end, argv=list(argv), variables=rank_variables
        )
        with subprocess.Popen(
            # The argument only identifies the supervisor in a list of processes.
            build_module_command("trainmark.launch.supervisor", mark[RUN_VARIABLE]),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            start_new_session=True,
            pass_fds=[write_end],
        ) as supervisor:
            # Now only the supervisor can write to the pipe, so that the reports end with it.
            writer.close()
            reports = _Reports(read_end)
            try:
                _send_order(supervisor, order)
                reports.receive_ranks()
                yield reports.ranks
            finally:
                _end_supervisor(supervisor)
                # The supervisor has reported the exit codes of ranks that it ended. The caller may
                # ask for them after the block, when the pipe is closed.
                reports.read()
                reports.end()


def _send_order(supervisor: subprocess.Popen[bytes], order: _Order) -> None:
    """Tell the supervisor which ranks to start, in a line of JSON on its standard input."""
    assert supervisor.stdin is not None, "it is a pipe"
    # The supervisor may have been killed. ``_Reports.receive_ranks`` then raises.
    with suppress(BrokenPipeError):
        supervisor.stdin.write(f"{json.dumps(order)}\n".encode())
        supervisor.stdin.flush()


def _end_supervisor(supervisor: subprocess.Popen[bytes]) -> None:
    """Have the supervisor end all its ranks, and wait for its own end."""
    assert supervisor.stdin is not None, "it is a pipe"
    # If a SIGSTOP has suspended it, it must continue to see the end of its input.
    supervisor.send_signal(signal.SIGCONT)
    with suppress(BrokenPipeError):
        supervisor.stdin.close()  # the supervisor then ends its ranks and itself
    # From then on, ``RUSAGE_CHILDREN`` includes the CPU time of the supervisor and of the ranks.
    supervisor.wait()


if __name__ == "__main__":
    order_line = sys.stdin.readline()
    if order_line:  # else the launcher died before it could write it
        _Supervisor(_Order(*json.loads(order_line))).run()
