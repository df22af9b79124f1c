"""Delete or change files of a run in mid-run: its record says so, or a word does."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest

from real_runs import checked, ended, wait_for_fault


def test_the_run_folder_is_deleted_in_mid_run(started, fifo):
    process, run_dir = started("--nproc", "2", "fault=wait")
    wait_for_fault(fifo)
    shutil.rmtree(run_dir)
    code, out, err = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert "nothing was started" not in err
    assert (record.status, record.cause.kind) == ("failed", "files_lost")
    assert record.cause.message.args == {
        "files": "plan.json, events.launcher.jsonl",
        "steps": 0,
    }
    assert record.plan.case == "faulty"
    assert record.figures["p_whole"].value is None
    assert record.figures["p_whole"].reason is not None
    assert "FAILED" in out
    assert (run_dir / "page.html").exists()


def test_the_launchers_events_are_deleted_in_mid_run(started, fifo):
    process, run_dir = started("fault=wait")
    wait_for_fault(fifo)
    (run_dir / "events.launcher.jsonl").unlink()
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert record.cause.kind == "files_lost"
    assert record.cause.message.args == {"files": "events.launcher.jsonl", "steps": 14}
    assert record.figures["p_whole"].value is not None  # the rank's own are there


def test_the_plan_is_changed_in_mid_run(started, fifo):
    process, run_dir = started("fault=hold")
    wait_for_fault(fifo)
    text = (run_dir / "plan.json").read_text()
    (run_dir / "plan.json").write_text(text.replace('"tiny"', '"standard"'))
    fifo.with_name("go").write_text("on")
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert record.cause.message.args["files"] == "plan.json"
    assert record.plan.recipe_name == "tiny"


@pytest.mark.parametrize("how", ["unlink", "truncate"])
def test_a_ranks_events_are_deleted_in_mid_run(started, fifo, how):
    process, run_dir = started("--nproc", "2", "fault=hold")
    wait_for_fault(fifo)
    events = run_dir / "events.rank1.jsonl"
    if how == "unlink":
        events.unlink()
    else:
        os.truncate(events, 0)
    fifo.with_name("go").write_text("on")
    code, _, err = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert "nothing was started" not in err
    assert (record.status, record.cause.kind) == ("failed", "events_incomplete")
    assert record.cause.rank == 1
    assert (run_dir / "page.html").exists()


def test_another_runs_folder_is_left_alone(started, fifo):
    """The folder was deleted, and somebody started another run there."""
    process, run_dir = started("fault=wait")
    wait_for_fault(fifo)
    other = (run_dir / "plan.json").read_text().replace("-faulty-", "-other-")
    process.send_signal(signal.SIGSTOP)
    shutil.rmtree(run_dir)
    run_dir.mkdir()
    (run_dir / "plan.json").write_text(other)
    process.send_signal(signal.SIGCONT)
    code, out, err = ended(process)
    assert (code, out) == (1, "")
    assert "another run is in its folder now" in err
    assert "Traceback" not in err
    assert [path.name for path in run_dir.iterdir()] == ["plan.json"]


def test_a_folder_that_cannot_be_made_again_ends_with_a_word(started, fifo):
    process, run_dir = started("fault=wait")
    wait_for_fault(fifo)
    process.send_signal(signal.SIGSTOP)
    shutil.rmtree(run_dir)
    run_dir.write_text("a file")
    process.send_signal(signal.SIGCONT)
    code, out, err = ended(process)
    assert (code, out) == (1, "")
    assert "there is no record" in err
    assert "Traceback" not in err


def test_the_folder_of_a_series_is_deleted_in_its_second_launch(started, fifo):
    process, run_dir = started("--repeat", "2", "fault=hold")
    wait_for_fault(fifo)
    fifo.with_name("go").write_text("on")
    wait_for_fault(fifo)
    first = (run_dir / "r1/record.json").read_bytes()
    shutil.rmtree(run_dir)
    code, _, _ = ended(process)
    assert code == 1
    assert checked(run_dir / "r2").cause.kind == "files_lost"
    assert (run_dir / "r1/record.json").read_bytes() == first
    assert (run_dir / "r1/page.html").exists()
    assert len(json.loads((run_dir / "repeats.json").read_text())["run_ids"]) == 2
