"""A signal to stop at any moment: one message, exit code 1."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import chain

import pytest

from support import interrupted_program
from trainmark.launch import local
from trainmark.launch.processes import StopRequest

SIGNALS = {"SIGINT": "interrupted", "SIGTERM": "stopped by SIGTERM", "SIGHUP": "stopped by SIGHUP"}


@pytest.fixture(autouse=True)
def _signals_as_a_terminal_leaves_them():
    """Restore the default handling of SIGINT and SIGHUP, which background shells ignore."""
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def run_interrupted(tmp_path):
    """Return a function that runs the program and sends it a signal at a counted moment."""

    def run(signal_name: str, moment: int, *args: str) -> tuple[int, list[str], int]:
        """Run ``trainmark *args``; send the signal at its event ``moment``.

        An event is one of Python's audit events, such as an import or a file that is opened. With
        moment 0 there is no signal. ``signal_name`` is SIGTERM, for example.

        Returns:
            Exit code, lines of standard error, and the number of events.
        """
        process = subprocess.run(
            [sys.executable, interrupted_program.__file__, signal_name, str(moment), *args],
            env=os.environ
            | {
                "TRAINMARK_CACHE": str(tmp_path / "cache"),
                "OMP_NUM_THREADS": "1",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = process.stderr.splitlines()  # the last one is the number of events
        events = int(lines.pop().split()[0]) if lines and lines[-1].endswith(" events") else 0
        return process.returncode, lines, events

    return run


@pytest.mark.parametrize("signal_name", SIGNALS)
def test_signal_during_imports_is_one_message(run_interrupted, signal_name):
    # ``run_interrupted`` runs ``trainmark list`` and sends it the signal at its event of this
    # number, such as an import; it returns exit code, lines of stderr and the number of events. At
    # the fifth event, and at the 300th of about 2,000. ``SIGNALS``: the message of each signal.
    for moment in (5, 300):
        code, lines, _ = run_interrupted(signal_name, moment, "list")
        assert (code, lines) == (1, [f"trainmark: {SIGNALS[signal_name]}"])


def test_signal_while_planning_gives_one_message_and_no_partial_data(run_interrupted, tmp_path):
    # ``run_interrupted`` runs the program, sends it the signal at its event of this number, such as
    # an import, and returns exit code, lines of stderr and the number of events. Moment 0 sends no
    # signal: this call counts the events and leaves complete data.
    code, _, events = run_interrupted("SIGTERM", 0, "run", "toy", "--dry-run", "--device", "cpu")
    assert code == 0
    (tmp_path / "cache").rename(tmp_path / "whole")  # so that the next calls make the data again
    # A dozen moments of the call, evenly spread.
    for moment in range(events // 12, events, events // 12):
        outcome = run_interrupted("SIGTERM", moment, "run", "toy", "--dry-run", "--device", "cpu")
        assert outcome[:2] == (1, ["trainmark: stopped by SIGTERM"]), moment
        # The generated data is whole, or not there at all.
        assert sorted(path.name for path in tmp_path.glob("cache/*")) in (
            [],
            sorted(path.name for path in tmp_path.glob("whole/*")),
        )


@pytest.mark.nightly
@pytest.mark.parametrize("signal_name", SIGNALS)
def test_signal_during_a_run_gives_no_traceback(run_interrupted, signal_name):
    # ``run_interrupted`` runs the program, sends it the signal at its event of this number, such as
    # an import, and returns exit code, lines of stderr and the number of events. Moment 0 sends no
    # signal: this call counts the events.
    _, _, events = run_interrupted(signal_name, 0, "run", "toy", "--device", "cpu")
    assert events > 6000  # so the moments below exist
    # Often while it starts, then less often; 211 and 997 are any distances between the moments that
    # leave few enough of them. In the last quarter, the end of the run, a signal may
    # come too late to matter.
    for moment in chain(range(1, 3000, 211), range(3000, events * 3 // 4, 997)):
        code, lines, _ = run_interrupted(signal_name, moment, "run", "toy", "--device", "cpu")
        assert code == 1, moment
        assert not [line for line in lines if "Traceback" in line], moment


def test_signal_before_the_first_launch_prevents_it(cli, monkeypatch):
    # The signal came between the plan and the first launch.
    monkeypatch.setattr(
        "trainmark.launch.processes.StopRequest", lambda: StopRequest(signal_name="SIGTERM")
    )
    # A launch would fail the test.
    monkeypatch.setattr(local, "launch", lambda *_: pytest.fail("launched"))
    code, out, err = cli("run", "toy", "--device", "cpu")
    assert (code, out) == (1, "")
    assert "stopped by SIGTERM after 0 of 1 launches" in err
    # As JSON too, nothing is printed.
    assert cli("run", "toy", "--device", "cpu", "--json")[:2] == (1, "")


def test_ignored_signal_stays_ignored(run_interrupted):
    # Ignore SIGHUP as ``nohup`` does; the child process inherits this.
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        # Event 300 comes during the command, which has about 1,400.
        code, lines, _ = run_interrupted("SIGHUP", 300, "list", "cases")
    finally:
        signal.signal(signal.SIGHUP, before)
    # The command ended as if there had been no signal.
    assert (code, lines) == (0, [])
