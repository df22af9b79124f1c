"""Working directories, user tables, readers and disks that are not as usual."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from real_runs import checked, ended, wait_for_fault

SAFE_PROGRAM = (sys.executable, "-P", "-m", "trainmark")  # as the script `trainmark`


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">/dev/full", "2>/dev/full"])
def test_the_verdict_is_the_runs_not_the_readers(started, closed):
    process, run_dir = started(case="toy", prefix=("sh", "-c", f'exec "$@" {closed}', "sh"))
    code, _, err = ended(process)
    assert code == 0, err
    assert "Traceback" not in err
    assert checked(run_dir).status == "passed"
    assert (run_dir / "page.html").exists()


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
    assert (run_dir / "page.html").exists()
    assert str(run_dir) in out


def test_the_working_directory_is_gone_before_the_start(started, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    gone = ("sh", "-c", f'rmdir {here} && exec "$@"', "sh")
    process, run_dir = started(case="toy", cwd=here, prefix=gone, program=SAFE_PROGRAM)
    code, _, err = ended(process)
    assert code == 0, err
    assert checked(run_dir).passed
    assert (run_dir / "page.html").exists()


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
    assert (run_dir / "page.html").exists()


def test_a_user_without_a_home_is_told_where_generated_data_could_lie(started, nobody):
    process, run_dir = started(case="toy", prefix=(*nobody, "-u", "TRAINMARK_CACHE"))
    code, _, err = ended(process)
    assert code == 2
    assert "TRAINMARK_CACHE" in err
    assert "Traceback" not in err
    assert not run_dir.exists()


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
