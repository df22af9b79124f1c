"""Ctrl-C, SIGTERM and SIGHUP at every stage of a run: a record and pages, or a word."""

from __future__ import annotations

import json
import os
import signal

import pytest

from real_runs import checked, ended, wait_for_fault


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_further_signals_take_nothing_away(started, fifo, number):
    process, run_dir = started("fault=wait")
    wait_for_fault(fifo)
    pipe = write_blocks(run_dir / "page.en.md")
    process.send_signal(number)
    process.send_signal(number)
    page = stop_in(pipe, process, number, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    code, out, err = ended(process)
    record = checked(run_dir)
    assert code == 1, err
    assert (record.status, record.cause.signal) == ("interrupted", number.name)
    assert number.name in page.decode()
    assert (run_dir / "page.html").exists()
    assert "INTERRUPTED" in out


def test_a_signal_between_launches_ends_the_series_with_its_pages(started, fifo):
    process, run_dir = started("--repeat", "3", "fault=hold")
    wait_for_fault(fifo)
    pipe = write_blocks(run_dir / "r1/page.en.md")
    fifo.with_name("go").write_text("on")
    stop_in(pipe, process, signal.SIGTERM)
    code, _, err = ended(process)
    assert code == 1
    assert "stopped by SIGTERM after 1 of 3 launches" in err
    assert checked(run_dir / "r1").passed
    assert not (run_dir / "r2").exists()
    assert len(json.loads((run_dir / "repeats.json").read_text())["run_ids"]) == 1
    assert (run_dir / "page.html").exists()


def test_a_launch_of_a_series_that_is_stopped_twice(started, fifo):
    process, run_dir = started("--repeat", "2", "fault=wait")
    wait_for_fault(fifo)
    pipe = write_blocks(run_dir / "page.en.md")
    process.send_signal(signal.SIGTERM)
    stop_in(pipe, process, signal.SIGTERM, signal.SIGHUP)
    code, _, _ = ended(process)
    assert code == 1
    assert checked(run_dir / "r1").status == "interrupted"
    assert (run_dir / "repeats.json").exists()
    assert not (run_dir / "r2").exists()


PLANTED_IMPORT = """\
import os, signal
from pathlib import Path
Path(os.environ["FAULT_FIFO"]).write_text("importing")
signal.pause()
"""


def test_ctrl_c_while_the_program_is_imported(started, fifo, tmp_path):
    (tmp_path / "early").mkdir()
    (tmp_path / "early/typer.py").write_text(PLANTED_IMPORT)
    paths = os.pathsep.join([str(tmp_path / "early"), os.environ.get("PYTHONPATH", "")])
    process, run_dir = started(PYTHONPATH=paths)
    fifo.read_text()
    process.send_signal(signal.SIGINT)
    assert ended(process) == (1, "", "trainmark: interrupted; nothing was started\n")
    assert not run_dir.exists()


SLOW_CASE = """\
from dataclasses import replace
from trainmark.cases import load
CASE = replace(load("toy"), name="slow")
"""

SLOW_DATA = """\
import os, signal
from pathlib import Path
from trainmark.cases.toy.data import check

def generate(folder, recipe):
    (folder / "half").write_text("half")
    Path(os.environ["FAULT_FIFO"]).write_text("generating")
    signal.pause()
"""


def test_ctrl_c_while_the_run_is_planned(started, fifo, tmp_path):
    (tmp_path / "cases/slow").mkdir(parents=True)
    (tmp_path / "cases/slow/case.py").write_text(SLOW_CASE)
    (tmp_path / "cases/slow/data.py").write_text(SLOW_DATA)
    process, run_dir = started(case="slow", TRAINMARK_CASE_PATH=str(tmp_path / "cases"))
    fifo.read_text()
    process.send_signal(signal.SIGINT)
    assert ended(process) == (1, "", "trainmark: interrupted\n")
    assert not run_dir.exists()
    assert list((tmp_path / "cache").iterdir()) == []
