"""Fixtures of tests that start the program; each room that does imports them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parents[1] / "integration" / "cases"
PROGRAM = (sys.executable, "-m", "trainmark")


@pytest.fixture(autouse=True)
def restore_default_signals():
    """Restore the default actions of SIGINT and SIGHUP during a test.

    Under nohup or behind ``&`` they are ignored, and the programs that a test starts inherit that.
    """
    numbers = (signal.SIGINT, signal.SIGHUP)
    ignored = [number for number in numbers if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def trainmark(tmp_path):
    """Return a function that runs ``trainmark`` in ``tmp_path``; it returns the ended process."""

    def call(*args):
        # Its own folder for generated data, and one thread, as tests share the machine.
        env = os.environ | {"TRAINMARK_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, "-m", "trainmark", *args],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return call


@pytest.fixture
def start_run(tmp_path):
    """Return a function that starts ``trainmark run``; the end of the test kills the process.

    It returns the process and the run's folder. Its arguments: words of the command line; ``case``;
    ``prefix``: words before the program; ``cwd``; ``program``: what runs it; environment variables.
    ``CASES`` is a folder of cases for tests, one of which, ``faulty``, has ranks that fail as told.
    ``PROGRAM`` is this Python with ``-m trainmark``.
    """
    processes = []

    def start(*args, case="faulty", prefix=(), cwd=None, program=PROGRAM, **variables):
        run_dir = tmp_path / "run"
        env = os.environ | {
            "TRAINMARK_CASE_PATH": str(CASES),
            "TRAINMARK_CACHE": str(tmp_path / "cache"),
            "FAULT_FIFO": str(tmp_path / "fifo"),  # to which a rank of ``faulty`` writes
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        # A caller that sets RUN_DIR knows the folder, and ignores the one that is returned.
        out = variables.get("RUN_DIR", str(run_dir))
        command = [*prefix, *program, "run", case, "--out", out, *args]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=env, cwd=cwd, stdout=pipe, stderr=pipe, text=True)
        processes.append(process)
        return process, run_dir

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def fifo(tmp_path):
    """Make the pipe to which a rank of the case ``faulty`` writes at its fault; return its path.

    With ``fault=hold`` the rank then waits until the test writes to a second pipe, ``go``.
    """
    path = tmp_path / "fifo"
    os.mkfifo(path)
    os.mkfifo(tmp_path / "go")
    return path
