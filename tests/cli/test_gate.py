"""``trainmark gate``: files, outputs and exit codes."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from support.comparison_records import make_launch
from support.fakes import GOLDEN
from trainmark.record.record import write_record
from trainmark.record.verify import check_record

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take records as they are written: their figures are invented."""
    monkeypatch.setattr("trainmark.results.selection.check_record", lambda record, _: record)


@pytest.fixture
def cli_unverified(cli: Call) -> Call:
    """Return a function that runs a command that accepts records without evidence."""
    return lambda verb, *args: cli(verb, "--unverified", *args)


def write_run_record(folder: str, rate: float, **changes: Any) -> Path:
    """Write the record of a launch with this p_train into ``runs/folder``; return its folder.

    Args:
        changes: other values of the launch, as ``make_launch`` takes them, such as ``started``.
    """
    path = Path("runs") / folder
    path.mkdir(parents=True)
    write_record(make_launch(folder, figures={"p_train": rate}, **changes), path)
    return path


def test_later_runs_are_judged_by_a_baseline(cli_unverified: Call) -> None:
    # By default up to 3% slower is no regression: 99 passes by the baseline of 100, 90 does not.
    # ``cli_unverified`` adds --unverified, as the written records have no raw events.
    for name, rate in (("good", 100.0), ("same", 99.0), ("slow", 90.0)):
        write_run_record(name, rate)
    args = ("--baseline", "runs/good", "--figure", "p_train")
    code, out, err = cli_unverified("gate", "runs/same", *args)
    assert (code, out.count("passed"), err) == (0, 1, "")
    code, out, _ = cli_unverified("gate", "runs/slow", *args, "--json")
    document = json.loads(out)
    assert (code, document["exit_code"]) == (1, 1)
    assert [judgement["verdict"] for judgement in document["judgements"]] == ["regressed"]
    # 20% slower is allowed.
    assert cli_unverified("gate", "runs/slow", *args, "--worse-by", "0.2")[0] == 0


def test_junit_report_is_written_for_a_pipeline(cli_unverified: Call) -> None:
    # 90 is 10% slower than the baseline of 100, and by default up to 3% are allowed.
    write_run_record("good", rate=100.0)
    write_run_record("slow", rate=90.0)
    code, _, err = cli_unverified(
        "gate", "runs/slow", "--baseline", "runs/good", "--junit", "gate.xml"
    )
    # stderr names the written file.
    assert (code, err) == (1, "gate.xml\n")
    assert "<failure" in Path("gate.xml").read_text(encoding="utf-8")


@pytest.mark.parametrize("args", [["--baseline", "runs/good"], ["--history", "runs"]])
def test_record_without_evidence_is_refused_naming_the_option_that_accepts_it(
    cli: Call, args: list[str]
) -> None:
    # The written record has no raw events beside it, so that its figures cannot be verified.
    write_run_record("good", rate=100.0)
    code, out, err = cli("gate", "runs/good", *args)
    assert (code, out) == (2, "")
    assert "good: the record is not verified" in err
    assert "--unverified" in err


def test_run_is_judged_by_its_history(cli_unverified: Call) -> None:
    first = datetime(2026, 1, 5, tzinfo=timezone.utc)
    # 20 nights at a rate of 100, then 5 nights at 90.
    # ``night % 3 / 10`` adds 0, 0.1 or 0.2, so that rates differ a little as those of real runs do.
    for night in range(25):
        rate = (100.0 if night < 20 else 90.0) + night % 3 / 10
        write_run_record(f"n{night:02}", rate, started=(first + timedelta(night)).isoformat())
    args = ("--history", "runs", "--figure", "p_train")
    # Undecided (3): too few nights before it, or a single slow one. 0: as before. 1: slow again.
    for night, code in ((8, 3), (15, 0), (20, 3), (24, 1)):
        exit_code, out, _ = cli_unverified("gate", f"runs/n{night:02}", *args)
        assert (night, exit_code) == (night, code)
    assert "n20" in out  # where the change began


@pytest.mark.parametrize(
    ("args", "expected_error"),
    [
        (["gate", "runs/good"], "--baseline RUNS or --history RUNS"),
        (["gate", "runs/good", "--baseline", "none"], "none"),
        (["gate", "runs/good", "--baseline", "runs", "--junit", "no/where.xml"], "no/where.xml"),
        (["gate", "runs/good", "--baseline", "runs", "--figure", "p_trian"], "mean p_train"),
        (["gate", "runs/good", "--baseline", "runs/good"], "is its own baseline"),
        (["gate", "runs/good", "--baseline", "runs"], "is its own baseline"),
    ],
)
def test_input_that_cannot_be_judged_is_a_usage_error(
    cli_unverified: Call, args: list[str], expected_error: str
) -> None:
    # ``args``: a command with something missing or wrong; ``expected_error``: a part of the
    # message. The only run is runs/good, so that the baseline "runs" holds nothing but the judged
    # run itself.
    write_run_record("good", rate=100.0)
    code, out, err = cli_unverified(*args)
    assert (code, out) == (2, "")
    assert expected_error in err
    assert "Traceback" not in err


def test_a_record_that_its_evidence_contradicts_fails(
    cli: Call, cli_unverified: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run_record("good", rate=100.0)
    bad = write_run_record("bad", rate=100.0)
    # Check records again, which this file's fixture turns off.
    monkeypatch.setattr("trainmark.results.selection.check_record", check_record)
    # A folder with a plan but no events cannot have given the figures of its record.
    (bad / "plan.json").write_text((GOLDEN / "plan_toy.json").read_text(encoding="utf-8"))
    for options in (["--unverified"], []):  # it fails, whether or not unverified ones are accepted
        code, out, _ = cli("gate", "runs/bad", "--history", "runs", *options)
        assert code == 1
        assert "does not match" in out
    # Nothing can be judged by such a baseline.
    code, _, err = cli_unverified("gate", "runs/good", "--baseline", "runs/bad")
    assert code == 2
    assert "bad" in err


@pytest.mark.parametrize("page", ["compare.md", "compare.zh.md"])
def test_the_pipeline_of_the_documentation_works(cli_unverified: Call, page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    # The last block of YAML on the page.
    workflow = yaml.safe_load(text.split("```yaml\n")[-1].split("```")[0])
    steps = [step["run"].split() for step in workflow["jobs"]["gate"]["steps"] if "run" in step]
    assert [step[:2] for step in steps] == [["trainmark", "run"], ["trainmark", "gate"]]
    # Records stand in for the runs of the pipeline: its baseline, and the folder that the last
    # word of its ``trainmark run`` names.
    for name in ("runs/first", steps[0][-1]):
        for n in range(1, 6):
            write_run_record(f"{Path(name).name}/r{n}", 100.0 + n)
    # The page's baseline is a bundle, which does not exist here.
    args = [word.replace("ci/first.trainmark.zip", "runs/first") for word in steps[1]]
    assert cli_unverified(*args[1:])[0] == 0
    # One for each figure that the gate judges if none is named: the final result, the training
    # rate, the time and the memory. All but the rate are those of the golden record, from which
    # ``write_run_record`` makes its records.
    assert Path("gate.xml").read_text(encoding="utf-8").count("<testcase") == 4
