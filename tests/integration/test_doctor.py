"""``trainmark doctor`` on the machine that runs the tests, whatever its state."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from trainmark.machine.doctor import CHECKS

pytestmark = pytest.mark.nightly


def run_doctor(*args: str, cwd, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``trainmark doctor`` in a folder; ``variables``: of its environment."""
    return subprocess.run(
        [sys.executable, "-m", "trainmark", "doctor", *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TRAINMARK_CACHE": str(cwd)} | variables,
    )


def test_full_doctor_runs_every_check(tmp_path):
    """``CHECKS`` has all checks by their codes; ``recipe`` is found by one with another code.

    A condition that ``stops`` a run gives the exit code 2, one that ``spoils`` its result 1.
    """
    process = run_doctor("toy", "--device", "cpu", "--json", cwd=tmp_path)
    document = json.loads(process.stdout)
    severities = {check["severity"] for check in document["checks"]}
    expected = 0
    if "spoils" in severities:
        expected = 1
    if "stops" in severities:
        expected = 2
    assert process.returncode == document["exit_code"] == expected
    assert (document["schema_version"], document["device"], document["nproc"]) == (1, "cpu", 1)
    severity_by_code = {check["code"]: check["severity"] for check in document["checks"]}
    # A CPU has no occupants and no settings, and one rank needs no network. Only some machines have
    # energy counters for the monitor, or governors.
    silent = {"occupants", "settings", "network"}  # these checks find no condition here
    of_some_machines = {"monitor", "governor"}
    expected_codes = set(CHECKS) - silent | {"recipe"}
    assert set(severity_by_code) | of_some_machines == expected_codes
    for code in ("torch", "data", "recipe"):
        assert severity_by_code[code] == "fine"
    assert all(check["fix"] for check in document["checks"] if check["severity"] != "fine")
    assert not (tmp_path / "runs").exists()  # the folder of runs was checked, but not made


def test_quick_does_not_import_torch(tmp_path):
    # ``main`` ends with ``SystemExit``; the last line says whether torch was imported by then.
    code = (
        "import sys; sys.argv = ['trainmark', 'doctor', '--device', 'cpu', '--quick']\n"
        "from trainmark.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: print('torch' in sys.modules)\n"
    )
    args = [sys.executable, "-c", code]
    output = subprocess.run(args, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "False"
