"""Unusual working directories, user tables, readers and disks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.real_runs import read_checked_record, wait_for_end

pytestmark = pytest.mark.nightly

PROGRAM = (str(Path(sys.executable).with_name("trainmark")),)  # -m imports from the directory


PLANTED_MODULE = """\
import os
from pathlib import Path
with Path({marker!r}).open("a") as file:
    file.write(f"{{os.getpid()}} imported {{__name__}}\\n")
raise ImportError("planted")
"""


def plant_modules(folder, marker, *names):
    """Write modules below ``folder`` that note their import in the file ``marker``, and raise.

    A name may be that of a module in a package, such as ``trainmark/__init__``. ``PLANTED_MODULE``
    is the code of each, with a place for the marker.
    """
    for name in names:
        (folder / f"{name}.py").write_text(PLANTED_MODULE.format(marker=str(marker)))


def test_nothing_is_imported_from_the_working_directory(start_run, tmp_path):
    """Each planted module notes its import in the file ``marker``, and then raises.

    ``PROGRAM`` is the path of the installed command ``trainmark``.
    """
    work_folder, marker = tmp_path / "here", tmp_path / "marker"
    (work_folder / "trainmark").mkdir(parents=True)
    plant_modules(
        work_folder, marker, "torch", "json", "psutil", "numpy", "signal", "trainmark/__init__"
    )
    # The installed command: ``python -m trainmark`` itself imports from the working directory.
    process, run_dir = start_run(case="toy", cwd=work_folder, program=PROGRAM)
    code, _, err = wait_for_end(process)
    assert code == 0, err
    assert not marker.exists(), marker.read_text()
    assert read_checked_record(run_dir).passed


# A user id without an entry in the user table, as containers have.
NOBODY = ("unshare", "--user", "--map-user=54321", "env", "-u", "HOME", "-u", "XDG_CACHE_HOME")


@pytest.fixture
def nameless_user_prefix():
    """Return words before a command that run it as a user without a name and without a home.

    The test is skipped if the kernel does not allow it. ``NOBODY`` has these words.
    """
    if subprocess.run([*NOBODY, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this kernel gives a test no user id of its own")
    return NOBODY


def test_run_works_for_a_user_without_a_name_and_a_home(start_run, nameless_user_prefix):
    """``nameless_user_prefix`` are words before a command that run it as user 54321.

    The table of users has no such user, and the variable ``HOME`` is not set. ``start_run`` starts
    a run and returns its process and folder.
    """
    process, run_dir = start_run(case="toy", prefix=nameless_user_prefix)
    code, _, err = wait_for_end(process)
    assert code == 0, err
    assert read_checked_record(run_dir).passed
    assert (run_dir / "page.html").exists()
