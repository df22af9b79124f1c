"""The case of docs/adding-a-case.md in both languages, written and run as the page says."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainmark import cases
from trainmark.conformance import probe
from trainmark.conformance.case_check import find_definition_faults
from trainmark.conformance.new_case import read_example_files, write_new_case
from trainmark.errors import UsageError
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import resolve
from trainmark.record import record

DOCS = Path(__file__).parents[2] / "docs"
FILE = re.compile(r"^## `(\w+\.\w+)`\n.*?^```\w+\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILES_OF_A_CASE = ["case.py", "data.py", "job.py", "prepare.py", "figures.py", "page.toml"]


def read_printed_files(page: str) -> dict[str, str]:
    """Return the files that a page of ``docs`` prints: the text of each by its name."""
    return dict(FILE.findall((DOCS / page).read_text(encoding="utf-8")))


@pytest.fixture
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the guide's case ``line`` where the program finds it; return a folder for results."""
    folder = tmp_path / "cases" / "line"
    folder.mkdir(parents=True)
    for name, text in read_printed_files("adding-a-case.md").items():
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv(cases.PATH_VARIABLE, str(folder.parent))
    return tmp_path


@pytest.mark.parametrize("page", ["adding-a-case.md", "adding-a-case.zh.md"])
def test_guide_shows_the_files_of_the_template(page: str) -> None:
    """UPDATE_GOLDEN=1 writes the files of the template into the guide."""
    if os.environ.get("UPDATE_GOLDEN"):
        text = (DOCS / page).read_text(encoding="utf-8")
        files = read_example_files()
        # Group 1 of ``FILE`` is a file's name, group 2 the text that the guide prints for it.
        text = FILE.sub(lambda match: match[0].replace(match[2], files[match[1]]), text)
        (DOCS / page).write_text(text, encoding="utf-8")
    assert read_printed_files(page) == read_example_files()
    assert list(read_printed_files(page)) == FILES_OF_A_CASE


def test_template_creates_a_case_with_the_given_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``write_new_case`` writes the files of the template as a case, and returns its folder.

    ``FILES_OF_A_CASE``: the names of these files. ``PATH_VARIABLE`` is the environment variable
    with the folder in which the program looks for cases. ``find_definition_faults`` lists what is
    wrong with the definition of a case.
    """
    folder = write_new_case("points", tmp_path / "cases")
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES_OF_A_CASE)
    monkeypatch.setenv(cases.PATH_VARIABLE, str(folder.parent))
    assert cases.load("points").name == "points"
    assert find_definition_faults("points") == []


@pytest.mark.parametrize("name", ["Points", "1st", "my-case", "toy", "../up", ""])
def test_template_refuses_other_names_and_existing_folders(name: str, tmp_path: Path) -> None:
    # A capital letter, a digit at the start, a hyphen, an existing case, a path, and no name.
    with pytest.raises(UsageError):
        write_new_case(name, tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "points").mkdir()
    with pytest.raises(UsageError, match="already exists"):
        write_new_case("points", tmp_path)
    assert list((tmp_path / "points").iterdir()) == []


def test_job_of_the_guide_passes_all_checks(work_folder: Path) -> None:
    """``work_folder`` has the case ``line`` that the guide prints, where the program finds it."""
    assert find_definition_faults("line") == []
    plan = resolve(RunRequest(case="line", device="cpu"), generated_root=work_folder / "generated")
    plan.save(work_folder)
    facts = probe.probe_job(work_folder)  # of the plan that was saved there
    assert facts["waits"] is None  # a CPU cannot tell whether a step waits for the device
    # Operations of a step: what the case claims, and what was counted.
    assert facts["model_flops"] == pytest.approx(facts["counted"], rel=0.01)


@pytest.mark.nightly
def test_commands_of_the_guide_work(work_folder: Path, trainmark: Any) -> None:
    """``work_folder`` has the case ``line`` that the guide prints, where the program finds it.

    Of 1,200 points ``rows=900`` takes 900 for the training; the remaining 300 are for validation.
    ``features`` is a figure that the case adds to those of all cases.
    """
    checked = trainmark("check", "line", "--device", "cpu")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "FAULT" not in checked.stdout

    points = np.random.default_rng(7).standard_normal((1200, 9))  # of each the last is the target
    np.savetxt(work_folder / "points.csv", points, delimiter=",")
    args = ("prepare", "line", "--from", "points.csv", "--data", "points")
    refused = trainmark(*args, "rows=0")
    assert refused.returncode == 2
    assert "rows is '0'; 1 to 999999" in refused.stderr
    prepared = trainmark(*args, "rows=900")
    assert (prepared.returncode, prepared.stderr) == (0, "train: 900 rows\nvalidation: 300 rows\n")

    process = trainmark(
        *shlex.split("run line --device cpu --data points --recipe tiny --out run --nproc 2"),
        *shlex.split("target_value=none max_epochs=2 window_steps=1 warmup_steps=1 bs=16 --quiet"),
    )
    assert process.returncode == 0, process.stderr
    built = record.read_record(work_folder / "run")
    assert built.plan.data.train_samples == 900
    features, rate = built.figures["features"].value, built.figures["p_core"].value
    assert features is not None
    assert rate is not None
    assert features > 0
    report = trainmark("report", "run", "--all")
    assert "features/s" in report.stdout
    listed = json.loads(trainmark("list", "--json").stdout)
    assert "line" in [case["name"] for case in listed["cases"]]
