"""What compares and judges results takes a witnessed one as it is, and says that it is one."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.comparison_records import read_golden_record
from support.fake_backends import STAND_INS
from support.witnessed_programs import PROGRAMS, WORK
from trainmark import api
from trainmark.errors import UsageError
from trainmark.record.record import read_record

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(name="runs", scope="module")
def _runs(tmp_path_factory) -> Path:
    """Measure a program twice, and the same program with another command.

    ``WORK`` is the file of ``--witness``, which states what ``plain.py``, in the folder
    ``PROGRAMS``, does in a step.
    """
    folder = tmp_path_factory.mktemp("runs")
    (folder / "work.toml").write_text(WORK)
    for name, steps in (("first", 20), ("second", 20), ("longer", 30)):
        command = [sys.executable, str(PROGRAMS / "plain.py"), "--steps", str(steps)]
        words = ["run", "--witness", str(folder / "work.toml"), "--device", "cpu"]
        process = call(*words, "--out", str(folder / name), "--", *command)
        assert process.returncode == 0, process.stderr
    return folder


def call(*words: str) -> subprocess.CompletedProcess[str]:
    """Run ``trainmark`` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "trainmark", *words], capture_output=True, text=True, check=False
    )


def test_launches_of_one_program_compare(runs):
    # Two runs of the same program with the same command.
    process = call("compare", str(runs / "first"), str(runs / "second"))
    assert process.returncode == 3  # one launch on each side is too few to tell
    # Both sides are marked: ``witnessed`` is the label of a user's own program.
    assert process.stdout.count("witnessed") == 2


def test_runs_of_different_commands_are_not_compared(runs):
    # ``longer`` is a run of the same program with another value of ``--steps``.
    with pytest.raises(UsageError) as fault:
        api.compare(runs / "first", runs / "longer")
    assert "witnessed" in f"{fault.value.what} {fault.value.where}"


def test_case_is_other_work(runs):
    with pytest.raises(UsageError):
        api.compare([read_golden_record()], runs / "first")


def test_gate_compares_a_program_with_its_earlier_runs(runs):
    # ``runs`` has two runs of one command, and ``longer``, a run with another number of steps. Exit
    # code 0: the gate passes; 2: the command cannot be carried out.
    words = ["gate", str(runs / "second"), "--baseline", str(runs / "first"), "--worse-by", "1"]
    # A loss of 100% is allowed, so that noise cannot fail the gate.
    process = call(*words, "--figure", "mem")
    assert process.returncode == 0, process.stderr
    assert "witnessed" in process.stdout
    # The program with another command is other work, which is not compared.
    assert call("gate", str(runs / "longer"), "--baseline", str(runs / "first")).returncode == 2


def test_audit_takes_witnessed_records(runs):
    # ``first`` is a run of a user's own program, which has passed.
    process = call("audit", str(runs / "first"), "--json")
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["findings"] == []


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_page_and_terminal_say_that_it_is_witnessed(runs, lang):
    # ``first`` is a run of a user's own program, the label of which is ``witnessed``.
    assert "witnessed" in (runs / "first" / f"page.{lang}.md").read_text().splitlines()[0]
    process = call("report", str(runs / "first"), "--lang", lang)
    assert process.returncode == 0, process.stderr
    assert "witnessed" in process.stdout
    assert "witnessed" in (runs / "first" / "page.html").read_text()


def test_verification_computes_the_same_again(runs):
    assert call("verify", str(runs / "first")).returncode == 0


def test_bundle_and_site_take_witnessed_runs(runs, tmp_path):
    # ``runs`` has three runs of a user's own program, the label of which is ``witnessed``.
    bundle = str(tmp_path / "first.trainmark.zip")
    assert call("bundle", str(runs / "first"), "-o", bundle).returncode == 0
    assert call("verify", bundle).returncode == 0
    process = call("site", str(runs), "-o", str(tmp_path / "site"))
    assert process.returncode == 0, process.stderr
    # The name of a page has the run's id, and so "program", as ``WORK`` calls the program.
    pages = [page.read_text() for page in (tmp_path / "site" / "runs").glob("*program*.html")]
    # One page for each of the three runs.
    assert ["witnessed" in page for page in pages] == [True] * 3


def test_follower_takes_the_steps_of_a_program(runs, monkeypatch):
    # ``first`` of ``runs`` is a run of a user's own program, which has passed. ``STAND_INS`` has a
    # fake wandb, which writes the arguments of its calls to a file: one call for each step, and at
    # last how the run ended. ``keep`` is the name of the project.
    monkeypatch.setenv("PYTHONPATH", str(STAND_INS))
    monkeypatch.setenv("STAND_IN_CALLS", str(runs / "calls.jsonl"))
    process = call("follow", str(runs / "first"), "--to", "wandb=keep")
    assert process.returncode == 0, process.stderr
    calls = [json.loads(line) for line in (runs / "calls.jsonl").read_text().splitlines()]
    losses = [call["train/loss"] for call in calls if "train/step" in call]
    assert losses == read_record(runs / "first").steps.loss
    assert (calls[-1]["status"], calls[-1]["exit_code"]) == ("passed", 0)
