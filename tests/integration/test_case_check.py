"""`trainmark check` as its users call it: a sound case, and one of their own that is not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nightly

BROKEN_CASE = """
from dataclasses import replace
from trainmark.cases.toy.case import CASE as TOY
CASE = replace(TOY, name="broken", aliases=())
"""
DATA = "from trainmark.cases.toy.data import check, generate\n"
BROKEN_JOB = """
from dataclasses import replace
from trainmark.cases.toy.job import ToyJob, load_data

class Broken(ToyJob):
    def model_flops(self, counts):
        return 3 * super().model_flops(counts)

    def evaluate(self):
        found = super().evaluate()
        return replace(found, samples=found.samples - 1)

build = Broken
"""


@pytest.fixture
def check(trainmark: Any) -> Any:
    """Check a case; return the exit code and the checks by name."""

    def call(case: str) -> tuple[int, dict[str, dict[str, Any]]]:
        ended = trainmark("check", case, "--json", "--steps", "40", "--device", "cpu")
        assert ended.stdout, ended.stderr
        return ended.returncode, {item["check"]: item for item in json.loads(ended.stdout)}

    return call


def test_a_sound_case_passes(check: Any) -> None:
    code, found = check("toy")
    assert [name for name, item in found.items() if not item["ok"]] == []
    assert code == 0


def test_a_broken_case_of_ones_own_is_told_what_is_wrong(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cases" / "broken"
    folder.mkdir(parents=True)
    (folder / "case.py").write_text(BROKEN_CASE)
    (folder / "job.py").write_text(BROKEN_JOB)
    (folder / "data.py").write_text(DATA)
    monkeypatch.setenv("TRAINMARK_CASE_PATH", str(folder.parent))
    code, found = check("broken")
    told = {
        name: [fault["code"] for fault in item["faults"]]
        for name, item in found.items()
        if item["faults"]
    }
    assert told == {
        "evaluation": ["check_evaluation_rows", "check_evaluation_rows"],
        "flops": ["check_flops"],
    }
    assert code == 1
