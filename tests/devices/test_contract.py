"""The device contract holds on the simulated accelerator, the timings apart, and can fail there."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support import stand_in_jobs
from support.old_torch import needs_python_devices

pytestmark = needs_python_devices
ROOT = Path(__file__).parents[2]
# The rest takes minutes: `pytest tests/device --device standin`, with tests/stand_in in PYTHONPATH.
SHORT_TESTS = "test_memory or test_precision or (toy and not runs) or conformance or detects_a_wait"
# A plugin of pytest that makes marks of the stand-in wait for the device.
WAITING_MARKS_PLUGIN = """
from trainmark_stand_in.device import StandInDevice
mark = StandInDevice.mark
def waiting(self):
    self.synchronize()
    return mark(self)
StandInDevice.mark = waiting
"""


def check_contract(chosen: str, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run tests of the device contract on the stand-in.

    They are in ``tests/device``. ``stand_in_jobs.SITE`` is the folder ``tests/stand_in``, from
    which Python imports the stand-in, a device that computes on the processor. pytest runs here
    without its cache and without xdist.

    Args:
        chosen: pytest's expression for the names of the tests.
        more: further folders from which Python imports modules.
        variables: variables to add to the environment.
    """
    paths = [str(stand_in_jobs.SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    paths += more
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"} | variables
    return subprocess.run(
        [
            sys.executable,
            *shlex.split("-m pytest tests/device --device standin"),
            *("-k", chosen),
            *shlex.split("-p no:cacheprovider -p no:xdist"),
        ],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.nightly
def test_the_contract_holds_on_the_stand_in() -> None:
    """The stand-in, a device that computes on the processor, passes the short tests for devices.

    ``SHORT_TESTS`` selects those of ``tests/device`` that take seconds: of memory, precision,
    conformance, noticed waits, and the case toy. ``check_contract`` runs them in another process.
    """
    process = check_contract(SHORT_TESTS)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("fault", ["host_marks", "no_wait"])
def test_wrong_clock_breaks_the_contract(fault: str) -> None:
    """A mark is the host's time, not the device's; or synchronizing does not wait.

    ``check_contract`` runs the tests of ``tests/device/test_time.py`` in another process, on the
    stand-in, a simulated device that computes on the processor. ``STANDIN_FAULT`` gives it the
    fault.
    """
    # Operations of 20 ms each, much longer than what the host needs to queue them.
    process = check_contract("test_time", STANDIN_FAULT=fault, STANDIN_OPERATION_NS="20000000")
    assert process.returncode == 1, process.stdout + process.stderr
    assert "skipped" not in process.stdout  # the tests ran, and failed


def test_a_mark_that_waits_breaks_the_contract(tmp_path: Path) -> None:
    """A device whose marks wait for it fails the test of waits within a step.

    ``WAITING_MARKS_PLUGIN`` is the text of a pytest plugin that makes the marks of the stand-in, a
    device that computes on the processor, wait. ``check_contract`` runs tests of ``tests/device``
    on it: here test_no_step_waits_for_the_device of test_windows.py with the case toy in fp32.
    """
    (tmp_path / "waiting_marks.py").write_text(WAITING_MARKS_PLUGIN)
    process = check_contract("windows and toy-fp32", str(tmp_path), PYTEST_PLUGINS="waiting_marks")
    assert process.returncode == 1, process.stdout + process.stderr
