"""``trainmark accept`` for real: two processes on this machine's cores."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from trainmark.acceptance.evidence import EVIDENCE_DIR
from trainmark.acceptance.result import read_result

if TYPE_CHECKING:
    from pathlib import Path

WORDS = ("toy", "--device", "cpu", "--nproc", "2", "--repeats", "1", "--seconds", "0.2")


def accept(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainmark", "accept", *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def num_events(folder: Path, kind: str) -> int:
    paths = (folder / EVIDENCE_DIR).iterdir()
    lines = [line for path in paths for line in path.read_text().splitlines()]
    return sum(json.loads(line)["event"] == kind for line in lines)


def test_machine_is_measured_judged_and_gone_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "accept"

    ended = accept(*WORDS, "--out", str(folder), "--phases", "devices,nodes")

    assert ended.returncode in (0, 1, 3), ended.stderr  # the machine may be busy
    result = read_result(folder)
    assert [member.name.rpartition(":")[2] for member in result.members] == ["0", "1"]
    assert all(member.step_s for member in result.members)
    assert [one.control for one in result.bits] == ["deterministic"]
    assert {"step", "matmul", "memory_copy"} <= {one.name for one in result.quantities}
    assert num_events(folder, "measured") == 3
    assert (folder / "page.html").stat().st_size > 10_000
    names = [
        name
        for file in ("passing.txt", "failing.txt", "undecided.txt")
        for name in (folder / file).read_text().splitlines()
    ]
    assert sorted(names) == sorted(member.name for member in result.members)

    again = accept(*WORDS, "--out", str(folder), "--phases", "devices,nodes", "--json", "-q")

    assert again.returncode == ended.returncode
    assert json.loads(again.stdout)["members"] == json.loads(result.model_dump_json())["members"]
    assert num_events(folder, "measured") == 3  # nothing was missing


def test_round_that_reaches_its_deadline_is_reported_and_the_rest_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "accept"

    ended = accept(*WORDS, "--out", str(folder), "--phases", "devices", "--deadline", "0.01")

    assert ended.returncode == 1, ended.stderr
    result = read_result(folder)
    assert [one.findings[0].code for one in result.members] == ["no_answer", "no_answer"]
    assert num_events(folder, "not_measured") == 2
