"""``trainmark gate``: files, outputs and exit codes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from comparison_records import launch
from fakes import GOLDEN
from trainmark.record.record import write
from trainmark.record.verify import checked

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take records as they are written: their figures are invented."""
    monkeypatch.setattr("trainmark.library.selection.words.checked", lambda record, _: record)


def run(folder: str, rate: float, **changes: Any) -> Path:
    path = Path("runs") / folder
    path.mkdir(parents=True)
    write(launch(folder, figures={"p_train": rate}, **changes), path)
    return path


def test_a_baseline_is_written_and_held_against_later_runs(cli: Call) -> None:
    for name, rate in (("good", 100.0), ("same", 99.0), ("slow", 90.0)):
        run(name, rate)
    code, out, err = cli("gate", "runs/good", "--write", "b.yaml", "--figure", "p_train")
    assert (code, out, err) == (0, "", "b.yaml\n")
    assert (
        cli("gate", "runs/good", "--write", "-", "--figure", "p_train")[1]
        == Path("b.yaml").read_text()
    )
    code, out, _ = cli("gate", "runs/same", "--baseline", "b.yaml")
    assert (code, out.count("passed")) == (0, 1)
    assert cli("gate", "runs/same", "--baseline", "b.yaml", "--quiet")[:2] == (0, "\n")
    code, out, _ = cli("gate", "runs/slow", "--baseline", "b.yaml", "--json")
    found = json.loads(out)
    assert (code, found["exit_code"]) == (1, 1)
    assert [one["verdict"] for one in found["judgements"]] == ["regressed"]
    code, _, _ = cli("gate", "runs/slow", "--write", "b.yaml")
    assert (code, cli("gate", "runs/slow", "--baseline", "b.yaml")[0]) == (0, 0)


def test_reports_for_a_pipeline(cli: Call) -> None:
    run("good", 100.0)
    run("slow", 90.0)
    cli("gate", "runs/good", "--write", "b.yaml", "--figure", "p_train")
    words = ("gate", "runs/slow", "--baseline", "b.yaml", "--junit", "gate.xml")
    code, _, err = cli(*words)
    assert (code, err) == (1, "trainmark: slow: unverified\n")
    assert "<failure" in Path("gate.xml").read_text(encoding="utf-8")
    _, out, _ = cli(*words, "--lang", "zh")
    assert "结论" in out.splitlines()[0]


def test_a_figure_is_named_for_a_history_only(cli: Call) -> None:
    run("good", 100.0)
    cli("gate", "runs/good", "--write", "b.yaml", "--figure", "p_train")
    code, out, err = cli("gate", "runs/good", "--baseline", "b.yaml", "--figure", "p_core")
    assert (code, out) == (2, "")
    assert "--history" in err


def test_runs_against_their_own_history(cli: Call) -> None:
    first = datetime(2026, 1, 5, tzinfo=UTC)
    for night in range(25):
        rate = (100.0 if night < 20 else 90.0) + night % 3 / 10
        run(f"n{night:02}", rate, started=(first + timedelta(night)).isoformat())
    words = ("--history", "runs", "--figure", "p_train", "--json")
    for night, code in ((8, 3), (15, 0), (20, 3), (24, 1)):
        found, out, _ = cli("gate", f"runs/n{night:02}", *words)
        assert (night, found) == (night, code)
    assert json.loads(out)["judgements"][0]["message"]["args"]["since"] == "n20"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gate", "runs/good"], "--baseline FILE or --history WORD"),
        (["gate", "runs/good", "--baseline", "none.yaml"], "cannot be read"),
        (["gate", "runs/good", "--baseline", "b.yaml", "--junit", "no/where.xml"], "no/where.xml"),
        (["gate", "runs/good", "--write", "-", "--figure", "p_trian"], "did you mean p_train"),
        (["gate", "runs/good", "--write", "-", "--baseline", "b.yaml"], "makes the baseline"),
    ],
)
def test_what_cannot_be_judged_is_a_usage_error(cli: Call, words: list[str], said: str) -> None:
    run("good", 100.0)
    cli("gate", "runs/good", "--write", "b.yaml")
    Path("page.md").write_text("| a | b |\n|---|---|\n| 1 | 2 |\n", encoding="utf-8")
    code, out, err = cli(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_a_record_that_its_evidence_contradicts_fails(
    cli: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("good", 100.0)
    cli("gate", "runs/good", "--write", "b.yaml", "--figure", "p_train")
    bad = run("bad", 100.0)
    monkeypatch.setattr("trainmark.library.selection.words.checked", checked)
    (bad / "plan.json").write_text((GOLDEN / "plan_toy.json").read_text(encoding="utf-8"))
    code, out, _ = cli("gate", "runs/bad", "--baseline", "b.yaml", "--json")
    assert code == 1
    assert [one["message"]["code"] for one in json.loads(out)["judgements"]] == ["gate_refuted"]
    code, _, err = cli("gate", "runs/bad", "--write", "-")
    assert code == 2
    assert "bad" in err


@pytest.mark.parametrize("page", ["compare.md", "compare.zh.md"])
def test_the_pipeline_of_the_documentation_works(cli: Call, page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    first = next(
        line for line in text.splitlines() if line.startswith("trainmark gate runs/first --write")
    )
    workflow = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    steps = [step["run"].split() for step in workflow["jobs"]["gate"]["steps"] if "run" in step]
    assert [step[:2] for step in steps] == [["trainmark", "run"], ["trainmark", "gate"]]
    for name in (first.split()[2], steps[0][-1]):
        for n in range(1, 6):
            run(f"{Path(name).name}/r{n}", 100.0 + n)
    Path("ci").mkdir()
    assert cli(*first.split()[1:])[0] == 0
    assert cli(*steps[1][1:])[:1] == (0,)
    assert Path("gate.xml").read_text(encoding="utf-8").count("<testcase") == 4
