"""Work in several processes: the same results in the same order, whatever becomes of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from trainmark.record.in_processes import mapped, processes_for


def _square_and_process(number: int) -> tuple[int, bool]:
    return number * number, os.getppid() == int(os.environ["PROCESS_OF_TEST"])


def _square_unless_elsewhere(number: int) -> int:
    """End the process without a word, but in the one that began the test."""
    if number == 3 and os.getpid() != int(os.environ["PROCESS_OF_TEST"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def _refuse_three(number: int) -> int:
    if number == 3:
        raise PermissionError("three")
    return number


@pytest.fixture(autouse=True)
def _known_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCESS_OF_TEST", str(os.getpid()))


def test_results_come_in_order_from_other_processes() -> None:
    found = list(mapped(_square_and_process, range(7), processes=2))
    assert [square for square, _ in found] == [0, 1, 4, 9, 16, 25, 36]
    assert all(elsewhere for _, elsewhere in found)


def test_one_process_is_this_one() -> None:
    assert not any(elsewhere for _, elsewhere in mapped(_square_and_process, [1], processes=1))


def test_a_killed_process_costs_time_and_no_result() -> None:
    assert list(mapped(_square_unless_elsewhere, range(5), processes=2)) == [0, 1, 4, 9, 16]


def test_an_error_of_the_work_is_raised() -> None:
    with pytest.raises(PermissionError, match="three"):
        list(mapped(_refuse_three, range(5), processes=2))


def test_small_work_is_done_in_this_process() -> None:
    assert processes_for(0) == processes_for(100 << 20) == 1
    assert processes_for(1 << 40) >= 1


def test_processes_end_with_the_one_that_started_them() -> None:
    """Whether they have begun their work by then or not."""
    code = (
        "import time; from trainmark.record.in_processes import mapped\n"
        "list(mapped(time.sleep, [600, 600], processes=2))"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        started = psutil.Process(parent.pid)
        while len(children := started.children()) < 2:
            assert parent.poll() is None
        parent.kill()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
