"""The process of a follower, which hands a run to another program while the run is measured.

Started as ``python -m trainmark.export.followers.process RUN_DIR TARGET SECONDS``. It imports the
backend's program, reports that it is ready, and waits for the run. Its standard input ends with the
run, or with the launcher that died; it then has SECONDS to hand over the rest. It reports one line
of JSON at its end. What the backend's program prints goes to a log in the run's folder. Imports no
torch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from trainmark.events.schema import LAUNCHER_FILE
from trainmark.export.followers.following import POLL_S, Following, shorten_fault
from trainmark.export.followers.targets import FollowTarget, load_backend, parse_targets
from trainmark.plan.plan import PLAN_FILE
from trainmark.telemetry.sampler import lower_priority

_NICENESS = 10  # enough for a step in two seconds on a machine whose cores all train


class _Report:
    """The reports of this process to the launcher: one when it is ready, and one at its end.

    Attributes:
        _descriptor: to which the reports are written.
        _lock: held while an outcome is sent, because two threads may send one.
    """

    def __init__(self) -> None:
        # The launcher reads the reports from the standard output of this process, a line of JSON
        # each. What the backend's program prints must not stand between them. So they are written
        # to a copy of the descriptor, and what the program prints to the original one is dropped.
        self._descriptor = os.dup(sys.stdout.fileno())
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # Two threads may send an outcome at the same time: the main thread at the end of its work,
        # and the thread that ends a process that is too slow. Only the first outcome is sent.
        self._lock = threading.Lock()
        self._is_outcome_sent = False

    def send_ready(self) -> None:
        """Tell the launcher that nothing more is imported."""
        self._write({"ready": True})

    def send_outcome(self, code: str | None, **arguments: str | float) -> None:
        """Tell the launcher how following ended; only the first call counts.

        Args:
            code: of a sentence in ``messages.toml`` that the launcher shows; None: it shows none,
                because nothing of the run is missing in the backend.
            arguments: of this sentence.
        """
        with self._lock:
            if not self._is_outcome_sent:
                self._is_outcome_sent = True
                self._write({"code": code, **arguments})

    def _write(self, line: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the launcher has died
            os.write(self._descriptor, f"{json.dumps(line)}\n".encode())


class _RunEnd:
    """Waits for the end of the run in a thread: then the launcher closes this process's input.

    Attributes:
        event: set when the run has ended.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        threading.Thread(target=self._wait_for_end_of_input, daemon=True).start()

    def _wait_for_end_of_input(self) -> None:
        """Set the event when the launcher closes the standard input: the run has ended."""
        while os.read(sys.stdin.fileno(), 4096):  # returns nothing only at the end of the input
            pass
        self.event.set()


def follow_process(run_dir: Path, target: FollowTarget, patience_s: float) -> None:
    """Hand one run to a backend, such as MLflow, while it is measured, until its end.

    Args:
        run_dir: folder of the run, which the launcher creates later.
        target: the backend, and the place in it.
        patience_s: how many seconds after the end of the run this process may still hand points
            over.
    """
    # These signals stop the launcher, and may be sent to all processes of a job. This process ends
    # after the run, when all is handed over.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    report = _Report()
    run_end = _RunEnd()
    try:
        open_backend = load_backend(target)
    except Exception as error:  # noqa: BLE001 - the import of a foreign program may raise anything
        report.send_outcome("failed", text=shorten_fault(error), step=0)
        return
    lower_priority(_NICENESS)  # from now on ranks work on the same cores
    report.send_ready()
    while not _has_begun(run_dir):
        # A short run may begin and end during one wait, so the files are looked for once more.
        if run_end.event.wait(POLL_S) and not _has_begun(run_dir):
            report.send_outcome(code=None)  # the run did not begin: there is nothing to hand over
            return
    _redirect_output(run_dir / f"log.follow.{target.backend}.txt")
    following = Following(run_dir, target, open_backend)
    # A backend may hang in the main thread. Then this thread ends the process.
    exit_if_late = partial(_exit_after_patience, run_end, following, report, patience_s)
    threading.Thread(target=exit_if_late, daemon=True).start()
    while not run_end.event.wait(POLL_S):
        following.poll()
    following.finish()  # keeps a fault of the backend; it raises none
    if following.fault is None:
        report.send_outcome(code=None)
    else:
        report.send_outcome("failed", text=following.fault, step=following.num_steps)


def _has_begun(run_dir: Path) -> bool:
    """Tell whether a run has begun: its folder has the plan and the launcher's file of events."""
    return (run_dir / LAUNCHER_FILE).exists() and (run_dir / PLAN_FILE).exists()


def _redirect_output(path: Path) -> None:
    """Send what the backend's program prints to a log from now on.

    Until now, standard output and standard error lead to the null device. If the log cannot be
    opened, they still do, and what the program prints is lost.
    """
    with suppress(OSError):
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log, stream.fileno())


def _exit_after_patience(
    run_end: _RunEnd, following: Following, report: _Report, patience_s: float
) -> None:
    """End this process ``patience_s`` after the run, whatever the backend does.

    It runs in a thread of its own. If the main thread is done before, the process ends with it.

    Args:
        run_end: waits for the end of the run.
        following: the work of the main thread, which hands the run to the backend.
        report: tells the launcher that the backend was too slow.
    """
    run_end.event.wait()
    time.sleep(patience_s)
    report.send_outcome("slow", seconds=patience_s, step=following.num_steps)
    os._exit(1)  # ``sys.exit`` would end only this thread


if __name__ == "__main__":
    follow_process(Path(sys.argv[1]), parse_targets(sys.argv[2:3])[0], float(sys.argv[3]))
    sys.stderr.flush()
    os._exit(0)  # do not wait for threads of the backend's program
