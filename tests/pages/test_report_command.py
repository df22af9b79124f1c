"""``trainmark report``: the file, and what it is compared with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from fakes import GOLDEN
from trainmark.cli.app import main
from trainmark.record.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Call = Callable[..., tuple[int, str]]

BERT = Record.model_validate_json((GOLDEN / "record_distilbert.json").read_text(encoding="utf-8"))
TOY = Record.model_validate_json((GOLDEN / "record_toy.json").read_text(encoding="utf-8"))


@pytest.fixture
def report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Write three runs; return a function that calls the verb and returns its exit code."""
    other = BERT.model_copy(
        update={"run_id": "other", "environment": BERT.environment | {"kernel": "9.9 other"}}
    )
    for name, record in (("bert", BERT), ("other", other), ("toy", TOY)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(record.model_dump_json(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["trainmark", "report", *words])
        code: Any = 0
        try:
            main()
        except SystemExit as ending:
            code = ending.code or 0
        return code, capsys.readouterr().err

    return call


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_a_report_is_compared_with_chosen_runs(report: Call, tmp_path: Path) -> None:
    assert report("bert", "-o", "page.html", "--against", "other")[0] == 0
    made = read(tmp_path / "page.html")
    assert "(own run)" in made


def test_without_a_choice_it_is_compared_with_the_case_s_published_rows(
    report: Call, tmp_path: Path
) -> None:
    assert report("bert", "-o", "page.html")[0] == 0
    assert "Nothing comparable; the nearest is A100" in read(tmp_path / "page.html")


def test_without_a_choice_earlier_runs_beside_it_are_on_the_ruler(
    report: Call, tmp_path: Path
) -> None:
    case = BERT.plan.case
    for place, kept in (("01", True), ("03", True), ("04", False)):
        folder = tmp_path / f"202611{place}T000000Z-{case}-a"
        folder.mkdir()
        record = BERT.model_copy(update={"run_id": folder.name})
        (folder / "record.json").write_text(record.model_dump_json() if kept else "{")
    assert report(f"20261103T000000Z-{case}-a", "-o", "page.html")[0] == 0
    assert read(tmp_path / "page.html").count("(own run)") == 1
    assert report(f"20261101T000000Z-{case}-a", "-o", "first.html")[0] == 0
    assert "(own run)" not in read(tmp_path / "first.html")


@pytest.mark.parametrize("words", [["--format", "md"], ["--scaling", "-o", "x.html"]])
def test_only_a_report_as_html_is_compared(report: Call, words: list[str]) -> None:
    code, err = report("bert", *words, "--against", "other")
    assert code == 2
    assert "--against" in err


def test_a_choice_that_holds_no_result_is_refused(report: Call, tmp_path: Path) -> None:
    chosen = ["--against", "other", "--against", "reference:gpt_megatron"]  # which has no rows
    code, err = report("bert", "-o", "page.html", *chosen)
    assert code == 2
    assert "reference:gpt_megatron" in err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG"), ("svg", b"<svg ")])
def test_each_chart_becomes_a_file(report: Call, tmp_path: Path, form: str, begins: bytes) -> None:
    assert report("bert", "--format", form, "-o", "charts")[0] == 0
    found = sorted(path.stem for path in (tmp_path / "charts").iterdir())
    assert {"step-time", "loss", "quality"} <= set(found)
    assert {path.suffix for path in (tmp_path / "charts").iterdir()} == {f".{form}"}
    for path in (tmp_path / "charts").iterdir():
        assert path.read_bytes().startswith(begins)


def test_charts_of_several_cases_do_not_replace_each_other(report: Call, tmp_path: Path) -> None:
    assert report("bert", "toy", "--format", "svg", "-o", "charts")[0] == 0
    assert (tmp_path / "charts" / "1-loss.svg").exists()
    assert (tmp_path / "charts" / "2-loss.svg").exists()


@pytest.mark.parametrize("words", [(), ("-o", "-")])
def test_charts_need_a_folder(report: Call, words: tuple[str, ...]) -> None:
    code, told = report("bert", "--format", "png", *words)
    assert code == 2
    assert "-o FOLDER" in told
