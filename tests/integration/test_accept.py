"""``trainmark accept`` for real: two processes on this machine's cores."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from trainmark.acceptance.evidence import EVIDENCE_DIR
from trainmark.acceptance.result import read_result

if TYPE_CHECKING:
    from pathlib import Path

# One round, in which each measurement takes 0.2 s, on two devices, which are cores.
TWO_DEVICES_ONE_ROUND = shlex.split("toy --device cpu --nproc 2 --repeats 1 --seconds 0.2")


def accept(*args: str) -> subprocess.CompletedProcess[str]:
    """Run ``trainmark accept`` with these arguments, until it ends."""
    return subprocess.run(
        [sys.executable, "-m", "trainmark", "accept", *args],
        capture_output=True,
        text=True,
        check=False,
    )


def count_events(folder: Path, kind: str) -> int:
    """Return how many events of a kind the evidence of an acceptance has."""
    paths = (folder / EVIDENCE_DIR).iterdir()
    lines = [line for path in paths for line in path.read_text().splitlines()]
    return sum(json.loads(line)["event"] == kind for line in lines)


def test_acceptance_of_a_machine_measures_judges_and_resumes(tmp_path: Path) -> None:
    """``TWO_DEVICES_ONE_ROUND``: the case toy on two devices, cores of the CPU, in one round."""
    folder = tmp_path / "accept"

    process = accept(*TWO_DEVICES_ONE_ROUND, "--out", str(folder), "--phases", "devices,nodes")

    # A busy machine may look slow, or give no verdict.
    assert process.returncode in (0, 1, 3), process.stderr
    result = read_result(folder)
    # Names are HOST:DEVICE.
    assert [member.name.rpartition(":")[2] for member in result.members] == ["0", "1"]
    assert all(member.step_s for member in result.members)
    # Both devices train the same few steps more than once. Deterministic: each repeats its own
    # bits, and they agree with one another.
    assert [comparison.control for comparison in result.bits] == ["deterministic"]
    assert {"step", "matmul", "memory_copy"} <= {
        comparison.name for comparison in result.quantities
    }
    assert count_events(folder, "measured") == 3  # each device alone, and both as a node
    assert (folder / "page.html").stat().st_size > 10_000  # it has its contents
    # Each device is in one of the three lists.
    listed_names = [
        name
        for file in ("passing.txt", "failing.txt", "undecided.txt")
        for name in (folder / file).read_text().splitlines()
    ]
    assert sorted(listed_names) == sorted(member.name for member in result.members)

    # The same work, reported as JSON: all measurements are found, and only judged again.
    second_call = accept(
        *TWO_DEVICES_ONE_ROUND, "--out", str(folder), "--phases", "devices,nodes", "--json", "-q"
    )

    assert second_call.returncode == process.returncode
    assert (
        json.loads(second_call.stdout)["members"] == json.loads(result.model_dump_json())["members"]
    )
    assert count_events(folder, "measured") == 3  # nothing was missing


TOLERANT = ("--worse-by", "10", "--rates-worse-by", "10")  # the machine may be busy


def test_exit_code_is_0_if_all_devices_pass_and_3_if_one_is_undecided(tmp_path: Path) -> None:
    """Two devices, which are cores, are measured alone (``--phases devices``) in three rounds.

    A measurement takes 0.2 s (``--seconds``). Which of the two exit codes comes is up to the
    machine; the test checks that it fits the verdicts. ``result.list_names`` returns the names of
    the devices with a verdict.
    """
    folder = tmp_path / "accept"
    args = ("toy", "--device", "cpu", "--nproc", "2", "--repeats", "3", "--seconds", "0.2")

    # ``TOLERANT``: no difference of this machine's cores is large enough to fail a device.
    process = accept(*args, "--out", str(folder), "--phases", "devices", *TOLERANT)

    result = read_result(folder)
    passing = result.list_names("pass")
    assert (folder / "passing.txt").read_text().splitlines() == passing
    # On a busy machine a device may be undecided.
    assert process.returncode == (0 if len(passing) == 2 else 3), process.stderr


def test_exit_code_is_3_if_one_round_cannot_decide(tmp_path: Path) -> None:
    folder = tmp_path / "accept"

    # ``TWO_DEVICES_ONE_ROUND`` asks for one round, which does not show the noise of a device's
    # times. ``TOLERANT``: limits so wide that no difference of this machine's cores fails a device.
    process = accept(*TWO_DEVICES_ONE_ROUND, "--out", str(folder), "--phases", "devices", *TOLERANT)

    assert process.returncode == 3, process.stderr
    result = read_result(folder)
    assert [member.doubt for member in result.members] == ["too_few_rounds"] * 2
    assert (folder / "undecided.txt").read_text().splitlines() == result.list_names("undecided")


def test_unknown_case_exits_with_2_and_creates_no_folder(tmp_path: Path) -> None:
    """The exit code 2 is that of a wrong command line."""
    process = accept("no_such_case", "--device", "cpu", "--out", str(tmp_path / "accept"))

    assert process.returncode == 2
    assert not (tmp_path / "accept").exists()


def test_record_of_a_run_is_a_baseline_for_one_device(tmp_path: Path) -> None:
    """The time of a step of an earlier run is what the device is compared with.

    One device, a core, is measured in three rounds of 0.2 s. ``TOLERANT``: limits so wide that no
    difference of this machine's cores fails a device.
    """
    run = subprocess.run(
        [
            sys.executable,
            *shlex.split("-m trainmark run toy --device cpu -q"),
            *("--out", str(tmp_path / "run")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    folder = tmp_path / "accept"
    args = ("toy", "--device", "cpu", "--nproc", "1", "--repeats", "3", "--seconds", "0.2")

    process = accept(
        *args,
        *("--out", str(folder)),
        *("--phases", "devices"),
        *("--baseline", str(tmp_path / "run")),
        *TOLERANT,
    )

    assert process.returncode in (0, 1, 3), process.stderr  # whatever the verdict
    result = read_result(folder)
    assert result.baseline == str(tmp_path / "run")
    (member,) = result.members
    # A single device has no peers, so without a baseline its step would be compared with nothing.
    assert member.step is not None


@pytest.mark.parametrize("phase", ["devices", "nodes", "pairs"])
@pytest.mark.nightly
def test_interrupted_phase_ends_and_resumes_with_the_same_work(tmp_path: Path, phase: str) -> None:
    """Three devices, which are cores, are measured in two rounds of each phase.

    A measurement takes 0.2 s (``--seconds``). ``count_events`` counts the events of a kind in the
    evidence of the acceptance. Processes of it name its folder among their arguments.
    ``TOLERANT``: limits so wide that no difference of this machine's cores fails a device.
    """
    folder = tmp_path / "accept"
    args = ("toy", "--device", "cpu", "--nproc", "3", "--repeats", "2", "--seconds", "0.2")
    command = [sys.executable, "-m", "trainmark", "accept", *args, "--out", str(folder)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if f"{phase}: round 1" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()

    assert process.returncode in (1, 3), err  # interrupted: never passed
    assert read_result(folder).interrupted == "SIGINT"
    remaining = [
        other
        for other in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(other.info["cmdline"] or [])
    ]
    _, alive = psutil.wait_procs(remaining, timeout=300)  # they may still be ending
    assert alive == []
    num_measured_before = count_events(folder, "measured")

    # The same work; only the limits of the verdicts differ.
    second_call = accept(*args, "--out", str(folder), *TOLERANT)

    assert second_call.returncode in (0, 1, 3), second_call.stderr
    assert read_result(folder).interrupted is None
    assert count_events(folder, "measured") > num_measured_before


def test_round_that_reaches_its_deadline_is_reported_and_others_continue(tmp_path: Path) -> None:
    """``--deadline``: the time limit of a round, in seconds.

    ``TWO_DEVICES_ONE_ROUND``: the case toy on two devices, which are cores. ``count_events`` counts
    the events of a kind in the evidence of the acceptance.
    """
    folder = tmp_path / "accept"

    # No round can end in 10 ms. Each of the two devices is tried, and reports that it measured
    # nothing.
    process = accept(
        *TWO_DEVICES_ONE_ROUND, "--out", str(folder), "--phases", "devices", "--deadline", "0.01"
    )

    assert process.returncode == 1, process.stderr
    result = read_result(folder)
    assert [member.findings[0].code for member in result.members] == ["no_answer", "no_answer"]
    assert count_events(folder, "not_measured") == 2
