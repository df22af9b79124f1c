"""Which runs a folder holds, each as the directories of its launches."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from trainmark.errors import LostRunError, RecordError
from trainmark.record import record
from trainmark.results.selection import find_runs, select_results

if TYPE_CHECKING:
    from pathlib import Path


def leave_records(folder: Path, *places: str) -> None:
    """Leave a record in each of ``places``, paths of new folders below ``folder``.

    It is an empty one, as runs are found by the name of this file alone.
    """
    for place in places:
        (folder / place).mkdir(parents=True)
        (folder / place / "record.json").write_text("{}")


def find_run_names(folder: Path) -> list[list[str]]:
    return [[str(path.relative_to(folder)) for path in run] for run in find_runs(folder)]


def test_runs_of_plan_files_and_repeats_are_found(tmp_path: Path) -> None:
    leave_records(tmp_path, "A", "S/r1", "S/r2", "S/r10", "P/x", "P/y", "P/z/r1", "P/z/r2")
    # Each of the folders has a record. Launches r1, r2, … of a folder are one run, in the order of
    # their numbers. So P has three runs, of which P/z has two launches. The result has a list for
    # each run, with the paths of its launches.
    assert find_run_names(tmp_path) == [
        ["A"],
        ["P/x"],
        ["P/y"],
        ["P/z/r1", "P/z/r2"],
        ["S/r1", "S/r2", "S/r10"],
    ]
    assert find_run_names(tmp_path / "P") == [["x"], ["y"], ["z/r1", "z/r2"]]
    assert find_run_names(tmp_path / "S") == [["r1", "r2", "r10"]]
    assert find_run_names(tmp_path / "A") == [["."]]


@pytest.mark.parametrize("other", ["b", "b/r1", "r2/r1"])
def test_run_of_a_plan_file_that_is_called_r1_is_no_repeat(tmp_path: Path, other: str) -> None:
    # P has the runs of a plan file, two: P/r1, and ``other`` or, as its only launch, the folder r1
    # in it. Launches r1, r2, … of a folder are one run, but P/r1 is the only one in P that has a
    # record: P/r2, if it exists, has only a folder with one.
    leave_records(tmp_path, "P/r1", f"P/{other}")
    assert sorted(find_run_names(tmp_path)) == sorted([["P/r1"], [f"P/{other}"]])


def test_folders_inside_runs_and_below_repeats_are_not_runs(
    tmp_path: Path,
) -> None:
    # A run is at most three levels deep: plan, run, repeat. 1/2/3/4 is a level too deep.
    leave_records(tmp_path, "A", "A/inside", "1/2/3/4")
    assert find_run_names(tmp_path) == [["A"]]
    # A path that is named exactly is a run, wherever it is, and even if nothing is there.
    assert find_runs(tmp_path / "1" / "2" / "3" / "4" / "record.json") == [
        [tmp_path / "1" / "2" / "3" / "4" / "record.json"]
    ]
    assert find_runs(tmp_path / "none") == [[tmp_path / "none"]]


@pytest.mark.parametrize("content", ["", "{}", '{"schema_version": 1,'])
def test_damaged_record_is_computed_again_after_it_is_removed(run_dir: Path, content: str) -> None:
    # ``content`` replaces the record of a run that has its plan and events: no text, a record
    # without any key, and one that is cut off. ``fix`` is the advice of the error.
    record_file = run_dir / "record.json"
    record_file.write_text(content)
    with pytest.raises(RecordError) as caught:
        select_results([str(run_dir)])
    assert f"trainmark report {run_dir}" in str(caught.value.fix)
    record_file.unlink()  # as the fix says
    (loaded,) = select_results([str(run_dir)]).records
    assert loaded.verification == "verified"


@pytest.mark.parametrize("file", ["plan.json", "events.launcher.jsonl"])
def test_damaged_record_without_plan_or_events_is_not_to_be_removed(
    run_dir: Path, file: str
) -> None:
    (run_dir / "record.json").write_text("{}")
    (run_dir / file).unlink()
    with pytest.raises(RecordError) as caught:
        select_results([str(run_dir)])
    # Otherwise the fix is to remove the record, and to let this command compute it from both files.
    assert "trainmark report" not in str(caught.value.fix)


@pytest.mark.parametrize("rows", [True, False])
def test_missing_plan_is_named_if_the_record_is_missing_too(run_dir: Path, *, rows: bool) -> None:
    # ``rows``: whether the path may also name figures that others published.
    # Without a record, one would be computed from plan and events, but the plan is missing too.
    for name in ("plan.json", "record.json"):
        (run_dir / name).unlink()
    with pytest.raises(RecordError) as caught:
        select_results([str(run_dir)], rows=rows)
    assert (caught.value.where, caught.value.what) == (str(run_dir), "plan.json is missing")


@pytest.mark.parametrize(
    ("code", "first_step"),
    [(errno.ENOSPC, "free space"), (errno.EDQUOT, "free space"), (errno.EACCES, "make the folder")],
)
def test_record_that_could_not_be_written_is_written_after_the_fix(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, code: int, first_step: str
) -> None:
    # The system's errors are: no space, no space left of the user's share, and no permission.
    # ``first_step`` is how the error's advice (``fix``) begins. A run without a record gets one
    # when it is read.
    def raise_error(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    (run_dir / "record.json").unlink()
    with monkeypatch.context() as full_disk:
        full_disk.setattr(record, "write_record", raise_error)
        for _ in range(2):  # a report on a full disk ends in the same way
            with pytest.raises(LostRunError) as caught:
                select_results([str(run_dir)])
            fix = str(caught.value.fix)
            assert fix.startswith(first_step)
            assert fix.endswith(f"`trainmark report {run_dir}`")
    (loaded,) = select_results([str(run_dir)]).records  # as that command does
    assert loaded.verification == "verified"
