"""Break real runs on purpose: each leaves a valid record, a non-zero exit, no orphan."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import psutil
import pytest

from real_runs import ended
from trainmark.launch.processes import RUN_VARIABLE
from trainmark.measure.events import EventFile
from trainmark.results.record import read, schema
from trainmark.spec import message

CASES = Path(__file__).parent / "cases"
PROGRAM = (sys.executable, "-m", "trainmark")
SAFE_PROGRAM = (sys.executable, "-P", "-m", "trainmark")  # as the script `trainmark`


@pytest.fixture
def started(tmp_path):
    """Start ``trainmark run`` and end it with the test, whatever happens."""
    processes = []

    def start(*words, case="faulty", prefix=(), cwd=None, program=PROGRAM, **variables):
        run_dir = tmp_path / "run"
        env = os.environ | {
            "TRAINMARK_CASE_PATH": str(CASES),
            "TRAINMARK_CACHE": str(tmp_path / "cache"),
            "FAULT_FIFO": str(tmp_path / "fifo"),
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        out = variables.get("RUN_DIR", str(run_dir))
        command = [*prefix, *program, "run", case, "--out", out, *words]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=env, cwd=cwd, stdout=pipe, stderr=pipe, text=True)
        processes.append(process)
        return process, run_dir

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def checked(run_dir):
    """Return the record after checking what every ending promises."""
    document = json.loads((run_dir / "record.json").read_text())
    jsonschema.validate(document, schema())
    for path in run_dir.glob("events.*.jsonl"):
        events = EventFile(path)
        assert list(events), path
        assert events.malformed_lines == 0, path
    record = read(run_dir)
    left = [p for p in psutil.process_iter() if run_id_of(p) == record.run_id]
    assert left == []
    assert not (run_dir / ".reserve").exists()
    return record


def run_id_of(process):
    try:
        return process.environ().get(RUN_VARIABLE)
    except psutil.Error:
        return None


@pytest.fixture
def fifo(tmp_path):
    """The pipe a faulty rank tells when it is there; beside it the one ``fault=hold`` reads."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    os.mkfifo(tmp_path / "go")
    return path


def wait_for_fault(fifo):
    """Block until the faulty rank has reached its step; return its pid and its agent's."""
    rank_pid, agent_pid = fifo.read_text().split()
    return int(rank_pid), int(agent_pid)


def test_rank_that_raises(started):
    process, run_dir = started("--nproc", "2", "fault=raise", "fault_rank=1")
    code, out, _ = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert record.status == "failed"
    assert record.cause.kind == "error"
    assert record.cause.rank == 1
    assert record.cause.place == "train"
    assert record.cause.type == "ValueError"
    assert "row 17 of the data is upside down" in str(record.cause.message.args["text"])
    assert "upside down" in out
    assert record.ranks[1].steps == 14


def test_an_evaluation_that_raises(started):
    process, run_dir = started("fault=raise_in_evaluation")
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert (code, record.status) == (1, "failed")
    assert (record.cause.kind, record.cause.place) == ("error", "evaluate")


def test_rank_killed(started, fifo):
    process, run_dir = started("--nproc", "2", "fault=wait", "fault_rank=1")
    rank_pid, _ = wait_for_fault(fifo)
    os.kill(rank_pid, signal.SIGKILL)
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert record.status == "failed"
    assert (record.cause.kind, record.cause.signal, record.cause.rank) == ("signal", "SIGKILL", 1)


def test_launcher_killed(started, fifo):
    process, run_dir = started("--nproc", "2", "fault=wait")
    wait_for_fault(fifo)
    process.kill()
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert code == -signal.SIGKILL
    assert record.status == "interrupted"
    assert record.cause.kind == "launcher_killed"
    assert record.counts.steps == 14


def keeper_of(process):
    for child in psutil.Process(process.pid).children():
        if "trainmark.launch.keeper" in child.cmdline():
            return child
    raise AssertionError("no keeper beside the run")


def test_keeper_killed_then_launcher(started, fifo):
    """The launcher replaces a dead keeper, so that one of the two is always there."""
    process, run_dir = started("fault=wait")
    rank_pid, _ = wait_for_fault(fifo)
    first = keeper_of(process)
    first.kill()
    first.wait()
    rank = psutil.Process(rank_pid)
    while not any(
        "keeper" in " ".join(child.cmdline())
        for child in psutil.Process(process.pid).children()
        if child.pid != first.pid
    ):
        rank.status()  # raises once the rank is gone: nothing replaced the keeper
    process.kill()
    ended(process)
    record = checked(run_dir)
    assert (record.status, record.cause.kind) == ("interrupted", "launcher_killed")


def test_a_stopped_keeper_holds_nobody_up(started, fifo):
    process, run_dir = started("fault=wait")
    wait_for_fault(fifo)
    keeper_of(process).suspend()
    process.send_signal(signal.SIGINT)
    code, _, _ = ended(process)
    assert code == 1
    assert checked(run_dir).status == "interrupted"


def test_an_ignored_hangup_stays_ignored(started, fifo):
    """As under nohup: the signal is ignored before the program starts."""
    process, run_dir = started("fault=wait", prefix=("sh", "-c", 'trap "" HUP; exec "$@"', "sh"))
    rank_pid, _ = wait_for_fault(fifo)
    process.send_signal(signal.SIGHUP)
    os.kill(rank_pid, signal.SIGKILL)
    ended(process)
    record = checked(run_dir)
    assert (record.cause.kind, record.cause.signal) == ("signal", "SIGKILL")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">/dev/full", "2>/dev/full"])
def test_the_verdict_is_the_runs_not_the_readers(started, closed):
    process, run_dir = started(case="toy", prefix=("sh", "-c", f'exec "$@" {closed}', "sh"))
    code, _, err = ended(process)
    assert code == 0, err
    assert "Traceback" not in err
    assert checked(run_dir).status == "passed"
    assert (run_dir / "page.en.html").exists()


def test_agent_killed(started, fifo):
    process, run_dir = started("--nproc", "2", "fault=wait")
    _, agent_pid = wait_for_fault(fifo)
    os.kill(agent_pid, signal.SIGKILL)
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert record.status == "failed"
    assert record.cause.kind == "launcher"
    assert record.cause.message.args["signal"] == "SIGKILL"


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
    assert (run_dir / "page.zh.html").exists()
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
    assert (run_dir / "page.zh.html").exists()


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

PLANTED_MODULE = """\
import os
from pathlib import Path
with Path({marker!r}).open("a") as file:
    file.write(f"{{os.getpid()}} imported {{__name__}}\\n")
raise ImportError("planted")
"""


def plant(folder, marker, *names):
    for name in names:
        (folder / f"{name}.py").write_text(PLANTED_MODULE.format(marker=str(marker)))


def test_nothing_is_imported_from_the_working_directory(started, fifo, tmp_path):
    """Neither by agent and ranks nor by the keeper, which takes over here."""
    here, marker = tmp_path / "here", tmp_path / "marker"
    (here / "trainmark").mkdir(parents=True)
    plant(here, marker, "torch", "json", "psutil", "numpy", "signal", "trainmark/__init__")
    process, run_dir = started("fault=wait", cwd=here, program=SAFE_PROGRAM)
    wait_for_fault(fifo)
    process.kill()
    ended(process)
    assert not marker.exists(), marker.read_text()
    assert checked(run_dir).cause.kind == "launcher_killed"


def test_python_m_trainmark_leaves_the_working_directory_alone(started, tmp_path):
    marker = tmp_path / "marker"
    plant(tmp_path, marker, "torch", "json", "psutil", "typer", "signal")
    process, run_dir = started(case="toy", cwd=tmp_path)
    code, _, err = ended(process)
    assert code == 0, err
    assert not marker.exists(), marker.read_text()
    assert checked(run_dir).passed


def test_the_working_directory_vanishes_in_mid_run(started, fifo, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    process, run_dir = started("fault=hold", cwd=here)
    wait_for_fault(fifo)
    here.rmdir()
    fifo.with_name("go").write_text("on")
    code, out, err = ended(process)
    assert code == 0, err
    assert checked(run_dir).passed
    assert (run_dir / "page.zh.html").exists()
    assert str(run_dir) in out


def test_the_working_directory_is_gone_before_the_start(started, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    gone = ("sh", "-c", f'rmdir {here} && exec "$@"', "sh")
    process, run_dir = started(case="toy", cwd=here, prefix=gone, program=SAFE_PROGRAM)
    code, _, err = ended(process)
    assert code == 0, err
    assert checked(run_dir).passed
    assert (run_dir / "page.zh.html").exists()


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
    assert (run_dir / "page.zh.html").exists()


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
    assert (run_dir / "page.zh.html").exists()


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
    assert (run_dir / "r1/page.en.html").exists()
    assert len(json.loads((run_dir / "repeats.json").read_text())["run_ids"]) == 2


def kill_both(process):
    """Kill launcher and keeper with no time between for either to act."""
    keeper = keeper_of(process)
    process.send_signal(signal.SIGSTOP)  # it must not replace the keeper
    keeper.kill()
    process.kill()


def trainmark(*words, **variables):
    return subprocess.run(
        [*PROGRAM, *words], env=os.environ | variables, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip


def test_keeper_and_launcher_killed_together(started, fifo):
    process, run_dir = started("--nproc", "2", "fault=wait")
    wait_for_fault(fifo)
    running = trainmark("record", str(run_dir))
    assert running.returncode == 2
    assert "still going" in running.stderr
    kill_both(process)
    ended(process)
    assert not (run_dir / "record.json").exists()
    done = trainmark("record", str(run_dir))
    assert done.returncode == 1, done.stderr
    record = checked(run_dir)
    assert (record.status, record.cause.kind) == ("interrupted", "launcher_killed")
    assert record.counts.steps == 14
    assert (run_dir / "page.zh.html").exists()
    assert "INTERRUPTED" in done.stdout
    again = trainmark("record", str(run_dir))
    assert again.returncode == 2
    assert "a record is there already" in again.stderr


def test_a_series_whose_keeper_and_launcher_were_killed_together(started, fifo):
    process, run_dir = started("--repeat", "3", "fault=hold")
    wait_for_fault(fifo)
    fifo.with_name("go").write_text("on")
    wait_for_fault(fifo)
    kill_both(process)
    ended(process)
    done = trainmark("record", str(run_dir), "--json")
    assert done.returncode == 1, done.stderr
    assert [one["status"] for one in json.loads(done.stdout)] == ["passed", "interrupted"]
    assert checked(run_dir / "r2").cause.kind == "launcher_killed"
    assert len(json.loads((run_dir / "repeats.json").read_text())["run_ids"]) == 2
    assert (run_dir / "page.zh.html").exists()
    assert trainmark("record", str(run_dir)).returncode == 2


# A user id without an entry in the user table, as containers have.
NOBODY = ("unshare", "--user", "--map-user=54321", "env", "-u", "HOME", "-u", "XDG_CACHE_HOME")


@pytest.fixture
def nobody():
    if subprocess.run([*NOBODY, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this kernel gives a test no user id of its own")
    return NOBODY


def test_a_user_without_a_home(started, nobody):
    process, run_dir = started(case="toy", prefix=nobody)
    code, _, err = ended(process)
    assert code == 0, err
    assert checked(run_dir).passed
    assert (run_dir / "page.zh.html").exists()


def test_a_user_without_a_home_is_told_where_generated_data_could_lie(started, nobody):
    process, run_dir = started(case="toy", prefix=(*nobody, "-u", "TRAINMARK_CACHE"))
    code, _, err = ended(process)
    assert code == 2
    assert "TRAINMARK_CACHE" in err
    assert "Traceback" not in err
    assert not run_dir.exists()


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


def test_loss_becomes_nan(started):
    process, run_dir = started("fault=nan")
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert record.status == "diverged"
    assert record.cause.message == message("loss_not_finite", value="nan", step=15)
    # The window with the bad step is kept, the step's loss as null.
    assert record.steps.loss[14] is None
    assert record.counts.steps == len(record.steps.loss)


def test_divergence_for_real(started):
    process, run_dir = started("lr=1e38", "window_steps=1", case="toy")
    code, _, _ = ended(process)
    assert code == 1
    assert checked(run_dir).status == "diverged"


def test_hang_past_the_timeout(started):
    process, run_dir = started("--nproc", "2", "fault=spin", "fault_rank=1", "--timeout", "25")
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert record.status == "timed_out"
    assert record.cause.stacks == ["stacks.rank0.txt", "stacks.rank1.txt"]
    for name in record.cause.stacks:
        stacks = (run_dir / name).read_text()
        assert "worker.py" in stacks, stacks
        assert "loop.py" in stacks, stacks
    assert "in fault" in (run_dir / "stacks.rank1.txt").read_text()


def test_out_of_memory(started):
    process, run_dir = started("fault=oom")
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert record.status == "oom"
    assert record.cause.rank == 0


def test_target_missed(started):
    process, run_dir = started("lr=1e-5", "epochs=1", case="toy")
    code, out, _ = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert record.status == "target_missed"
    assert record.cause.message.code == "target_missed"
    assert "target" in out


def test_full_disk(started, tmp_path):
    """On a real file system of 12 MB, in a mount namespace of its own."""
    disk, result = tmp_path / "disk", tmp_path / "run"
    disk.mkdir()
    allowed = subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if allowed.returncode != 0:
        pytest.skip("this kernel lets no test mount a file system")
    script = (
        f"mount -t tmpfs -o size=12m tmpfs {disk} && "
        f'"$@"; code=$?; cp -r {disk}/run {result}; exit $code'
    )
    process, _ = started(
        "fault=fill_disk",
        prefix=("unshare", "-rm", "sh", "-c", script, "sh"),
        RUN_DIR=str(disk / "run"),
        FAULT_FILL=str(disk / "filler"),
    )
    code, _, err = ended(process)
    record = checked(result)
    assert code == 1, err
    assert record.status == "failed"
    assert record.cause.kind == "disk_full"


def test_disk_too_full_to_start(started, tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f'mount -t tmpfs -o size=1m tmpfs {disk} && exec "$@"'
    process, _ = started(
        prefix=("unshare", "-rm", "sh", "-c", script, "sh"), RUN_DIR=str(disk / "run")
    )
    code, _, err = ended(process)
    assert code == 2
    assert "MiB are free" in err
    assert "choose --out on another disk" in err
