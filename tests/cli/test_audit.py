"""``trainmark audit`` and ``list audit-rules``: output, and which exit code means what."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import GOLDEN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Cli = Callable[..., tuple[int, str, str]]


def write_record_with(path: Path, **changed: Any) -> Path:
    """Write the golden record with changed figures into the new folder ``path``; return it.

    The golden record is that of a toy run, without faults.

    Args:
        changed: new values of figures, by name.
    """
    document = json.loads((GOLDEN / "record_toy.json").read_text(encoding="utf-8"))
    for name, value in changed.items():
        document["figures"][name]["value"] = value
    path.mkdir()
    (path / "record.json").write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_sound_record_has_no_findings_and_ends_with_0(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("audit", write_record_with(tmp_path / "sound"), "--json")
    assert (code, json.loads(out)) == (0, {"findings": [], "audited": 1})
    assert "1 result audited, no findings" in err


def test_an_error_is_printed_with_its_arithmetic_and_ends_with_1(cli: Cli, tmp_path: Path) -> None:
    # p_core leaves out pauses that p_train includes, so it cannot be lower.
    page = tmp_path / "rows.csv"
    page.write_text("configuration,model,p_train,p_core\nA100 1x1,toy,256,255\n")
    code, out, _ = cli("audit", page, "--json")
    (finding,) = json.loads(out)["findings"]
    assert code == 1
    # The text of the message is checked below.
    assert finding | {"message": ""} == {
        "rule": "ordering",
        "severity": "error",
        "file": str(page),
        "line": 2,
        "configuration": "A100 1x1",
        "code": "audit_order",
        "message": "",
        "arithmetic": {
            "above": "p_core",
            "below": "p_train",
            "above_rate": 255.0,
            "below_rate": 256.0,
        },
    }
    assert "256" in finding["message"]
    code, out, _ = cli("audit", page, "--lang", "zh")
    assert code == 1
    assert out.startswith(f"error ordering {page}:2 A100")
    assert "高于" in out  # "higher than"


def test_a_record_that_contradicts_itself_ends_with_1(cli: Cli, tmp_path: Path) -> None:
    # ``write_record_with`` writes the record of a toy run with another p_core, the rate without
    # pauses. The record's times and samples give about 256 samples/s, not 255.
    code, _, err = cli("audit", write_record_with(tmp_path / "run", p_core=255.0), "--json")
    assert code == 1
    assert "does not match" in err


def test_a_record_that_its_evidence_contradicts_ends_with_1(cli: Cli, tmp_path: Path) -> None:
    run = write_record_with(tmp_path / "run")
    # A run folder with a plan but no events cannot have given these figures.
    shutil.copy(GOLDEN / "plan_toy.json", run / "plan.json")
    code, _, err = cli("audit", run, "--json")
    assert code == 1
    assert "does not match its raw events" in err


def test_rows_of_an_unknown_model_get_a_fix(cli: Cli, tmp_path: Path) -> None:
    # The row does not say which model was trained, so rules about data and FLOPs are skipped.
    (tmp_path / "rows.csv").write_text("configuration,precision,p_train\nA100 1x1,fp32,100000\n")
    _, _, err = cli("audit", tmp_path / "rows.csv")
    assert "add a column `model`" in err


def test_table_without_a_known_heading_is_refused(cli: Cli, tmp_path: Path) -> None:
    # Without the heading "configuration" of the first column, this is no table of results.
    (tmp_path / "rows.csv").write_text("what,precision,p_train\nA100 1x1,fp32,100000\n")
    code, _, err = cli("audit", tmp_path / "rows.csv")
    assert code == 2
    assert "trainmark import" not in err  # which would find no table either
    assert "choose another page" in err


def write_acceptance(folder: Path) -> Path:
    """Write what ``accept`` writes before it measures: the request and a plan; return the folder.

    The plan has a published row, a reference of its case. An import would read it as a result.
    """
    plan = json.loads((GOLDEN / "plan_toy.json").read_text(encoding="utf-8"))
    plan["about"]["references"] = {"rows": [{"configuration": "A100 1x8", "p_train": "256"}]}
    plan_dir = folder / "plans" / "1-devices"
    plan_dir.mkdir(parents=True)
    (plan_dir / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    (folder / "request.json").write_text("{}", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("command", "options"),
    [("audit", ()), ("report", ()), ("verify", ()), ("bundle", ("-o", "test.trainmark.zip"))],
)
def test_folder_of_an_acceptance_test_is_refused_by_its_name(
    cli: Cli, tmp_path: Path, command: str, options: tuple[str, ...]
) -> None:
    folder = write_acceptance(tmp_path / "acceptance")
    code, out, err = cli(command, folder, *options)
    assert (code, out) == (2, "")
    assert "this is the folder of an acceptance test, not of a run" in err
    assert "open page.html in this folder" in err


def test_pages_beside_acceptance_tests_are_audited_alone(cli: Cli, tmp_path: Path) -> None:
    write_acceptance(tmp_path / "all" / "acceptance")
    page = tmp_path / "all" / "rows.csv"
    page.write_text("configuration,model,p_train,p_core\nA100 1x1,toy,256,257\n")
    code, out, err = cli("audit", tmp_path / "all", "--json")
    assert (code, json.loads(out)) == (0, {"findings": [], "audited": 1})
    assert "1 result audited, no findings" in err
    assert "skipped" not in err  # nothing of the acceptance test was read
