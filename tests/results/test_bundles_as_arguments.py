"""Bundles as arguments of commands that read results."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from trainmark.record import record
from trainmark.results.selection import select_results

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_bundle_gives_the_records_in_it(bundle_path: Path, run_dir: Path) -> None:
    # The bundle has the run of ``run_dir`` in its folder 1-toy. ``select_results`` reads and
    # verifies the records at paths of bundles and runs; ``places`` says where each is, and
    # ``refuted`` which are contradicted by their evidence.
    selection = select_results([str(bundle_path), str(run_dir)])
    first, second = selection.records
    # The record in the bundle has no names of folders, but the same figures.
    assert (first.figures, first.steps) == (second.figures, second.steps)
    assert second == record.read_record(run_dir).model_copy(update={"verification": "verified"})
    assert selection.places == [f"{bundle_path}/1-toy", str(run_dir)]
    assert selection.refuted == []


def test_report_reads_bundles_and_verify_takes_several_paths(
    bundle_path: Path, run_dir: Path, cli: Callable[..., Any]
) -> None:
    # ``cli`` runs the program with these words; it returns the exit code and what was printed to
    # standard output and standard error. The run, also in the bundle, is of the case "toy", whose
    # data are generated. ``verify`` prints each path, and below it a line for each check; those of
    # the bundle name the run in it, "1-toy".
    code, out, _ = cli("report", bundle_path, "--format", "md")
    assert code == 0
    assert "toy" in out
    code, out, _ = cli("verify", bundle_path, run_dir)
    printed = out.splitlines()
    assert code == 0
    assert [line for line in printed if not line.startswith(" ")] == [
        str(bundle_path),
        str(run_dir),
    ]
    assert any(line.startswith("  ok    record: ") for line in printed)
    assert any(line.startswith("  ok    record 1-toy: ") for line in printed)
    (trust_line,) = [line for line in printed if line.startswith("  -     trust: ")]
    assert "do not quote, generated data" in trust_line
    (run_dir / "plan.json").write_text("{}")  # now its evidence contradicts the record
    assert cli("verify", bundle_path, run_dir)[0] == 1
    (run_dir / "record.json").unlink()
    # A path that cannot be read does not hide the result of the other one.
    code, out, err = cli("verify", run_dir, bundle_path, "--json")
    assert [item["path"] for item in json.loads(out)] == [str(bundle_path)]
    assert code == 2
    assert f"{run_dir}: cannot be read" in err


@pytest.fixture
def run_with_damaged_record(run_dir: Path) -> Path:
    """Return a run with a damaged record, beside the valid one of ``run_dir``."""
    folder = run_dir.with_name("broken")
    folder.mkdir()
    (folder / "record.json").write_text('{"suite": ')
    return folder


@pytest.mark.parametrize(
    ("args", "expected_text"),
    [
        (("report", "{folder}", "--format", "md"), "toy"),
        (("report", "{run}", "{broken}", "--format", "md"), "toy"),
        (("export", "{folder}", "--to", "csv"), "toy"),
        (("export", "{broken}", "{run}", "--to", "perflog"), "toy"),
        (("audit", "{folder}"), "1 result audited"),
        (("audit", "{folder}", "--rules"), "toy"),
        (("results", "--store", "{folder}"), "toy"),
    ],
)
def test_damaged_record_among_others_is_named_and_fails(
    args: tuple[str, ...],
    expected_text: str,
    run_dir: Path,
    run_with_damaged_record: Path,
    cli: Callable[..., Any],
) -> None:
    # The words of a command, with the names of three paths in braces: a valid run of the case
    # "toy", one whose record is cut off, and the folder that has both. ``expected_text`` shows that
    # the command still used the valid one. ``cli`` returns exit code, stdout and stderr.
    places = {"folder": run_dir.parent, "run": run_dir, "broken": run_with_damaged_record}
    code, out, err = cli(*(word.format(**places) for word in args))
    assert code == 1
    assert expected_text in out + err
    assert str(run_with_damaged_record) in err


def test_site_with_a_damaged_record_has_the_other_runs_and_fails(
    run_dir: Path, run_with_damaged_record: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    # The folder has two runs: a valid one, which gets a page, and one whose record is cut off.
    # ``cli`` returns the program's exit code, stdout and stderr.
    code, _, err = cli("site", run_dir.parent, "-o", tmp_path / "site")
    assert code == 1
    assert str(run_with_damaged_record) in err
    assert "launches: 1, pages written: 1" in err


def test_damaged_record_in_a_baseline_fails_the_gate(
    run_dir: Path, run_with_damaged_record: Path, cli: Callable[..., Any]
) -> None:
    """``gate`` compares a run with the runs of a baseline; one that it cannot read is no success.

    ``run_dir``, the copy of its run under another id, and ``run_with_damaged_record`` lie in the
    same folder. ``--unverified`` accepts the copy, which has no evidence files.
    """
    other = run_dir.with_name("other")
    shutil.copytree(run_dir, other)
    document = json.loads((other / "record.json").read_text())
    document["run_id"] = document["plan"]["run_id"] = "20260102T030405Z-toy-def456"
    (other / "record.json").write_text(json.dumps(document))
    # Its evidence belongs to the run that it was copied from.
    for name in ("plan.json", "events.launcher.jsonl", "events.rank0.jsonl"):
        (other / name).unlink()
    args = ("gate", run_dir, "--unverified", "--json", "--baseline")
    assert cli(*args, other)[0] == 0
    # The folder of all three is the baseline now.
    code, out, err = cli(*args, f"{other.parent}")
    assert (code, json.loads(out)["exit_code"]) == (1, 1)
    assert str(run_with_damaged_record) in err


def test_damaged_record_among_judged_runs_is_a_failed_judgement(
    run_dir: Path, run_with_damaged_record: Path, cli: Callable[..., Any]
) -> None:
    # ``gate`` judges the runs of a folder, here a valid one and one whose record is cut off, by
    # earlier runs (``--history``). It prints a judgement on each figure; of a record that cannot be
    # read there is one on "record" instead. ``--history`` needs some run; the valid one itself
    # does, as this test is not about its verdict.
    code, out, _ = cli("gate", run_dir.parent, "--history", run_dir, "--json")
    judged = [
        (judgement["figure"], judgement["verdict"]) for judgement in json.loads(out)["judgements"]
    ]
    assert code == 1
    assert ("record", "failed") in judged


def test_bundle_with_a_damaged_record_is_not_written(
    run_dir: Path, run_with_damaged_record: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    # The folder has a valid run and one whose record is cut off. ``cli`` runs the program with
    # these words; it returns exit code, stdout and stderr.
    file = tmp_path / "all.trainmark.zip"
    code, _, err = cli("bundle", run_dir.parent, "-o", file)
    assert code == 2
    assert not file.exists()
    assert str(run_with_damaged_record) in err


def test_damaged_records_alone_are_an_error(
    run_with_damaged_record: Path, cli: Callable[..., Any]
) -> None:
    # The record of the run is cut off. ``cli`` runs the program with these words; it returns exit
    # code, stdout and stderr.
    for verb in ("report", "audit"):
        code, out, err = cli(verb, run_with_damaged_record)
        assert (code, out) == (2, "")
        assert str(run_with_damaged_record) in err


def test_wrong_path_among_others_is_an_error(
    run_dir: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    # ``run_dir`` is a valid run; at the other path is nothing. ``cli`` returns the program's exit
    # code, stdout and stderr.
    code, out, err = cli("report", run_dir, tmp_path / "typo")
    assert (code, out) == (2, "")
    assert "typo" in err
