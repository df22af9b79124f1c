"""Ctrl-C, SIGTERM and SIGHUP during a run: a record and pages."""

from __future__ import annotations

import json
import os
import signal

import pytest

from real_runs import checked, ended, wait_for_fault


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)]
)
def test_stopped_by_a_signal(started, fifo, number):
    process, run_dir = started("fault=wait")
    wait_for_fault(fifo)
    process.send_signal(number)
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert record.status == "interrupted"
    assert record.cause.signal == number.name
    assert record.figures["p_whole"].value is not None


@pytest.mark.nightly
def test_an_ignored_hangup_stays_ignored(started, fifo):
    """As under nohup: the signal is ignored before the program starts."""
    process, run_dir = started("fault=wait", prefix=("sh", "-c", 'trap "" HUP; exec "$@"', "sh"))
    rank_pid = wait_for_fault(fifo)
    process.send_signal(signal.SIGHUP)
    os.kill(rank_pid, signal.SIGKILL)
    ended(process)
    record = checked(run_dir)
    assert (record.cause.kind, record.cause.signal) == ("signal", "SIGKILL")


def write_blocks(path):
    """Put a pipe where the launcher writes a page: it waits there for ``stop_in``."""
    os.mkfifo(path)
    return path


def stop_in(pipe, process, *numbers):
    """Send the signals while the launcher writes into ``pipe``, then let it go on."""
    with pipe.open("rb") as page:  # opens as soon as the launcher has opened it too
        for number in numbers:
            process.send_signal(number)
        return page.read()


@pytest.mark.nightly
def test_a_signal_between_launches_ends_the_series_with_its_pages(started, fifo):
    process, run_dir = started("--repeat", "3", "fault=hold")
    wait_for_fault(fifo)
    pipe = write_blocks(run_dir / "r1/page.en.md")
    fifo.with_name("go").write_text("on")
    stop_in(pipe, process, signal.SIGTERM, signal.SIGHUP)
    code, _, err = ended(process)
    assert code == 1
    assert "stopped by SIGTERM after 1 of 3 launches" in err
    assert checked(run_dir / "r1").passed
    assert not (run_dir / "r2").exists()
    assert len(json.loads((run_dir / "repeats.json").read_text())["run_ids"]) == 1
    assert (run_dir / "page.html").exists()
