"""Baseline files: what is taken, what people may write in them, and what is refused."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from comparison_records import golden, launch
from trainmark.errors import RecordError, UsageError
from trainmark.judge.comparison import gate as baseline
from trainmark.record.record import Cause
from trainmark.record.trust import graded
from trainmark.record.work import work
from trainmark.spec import message

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.record.record import Record


def launches(rates: list[float], **changes: Any) -> list[Record]:
    return [
        launch(f"run-r{n}", n, n, figures={"p_train": rate}, **changes)
        for n, rate in enumerate(rates, 1)
    ]


def written(tmp_path: Path, **changes: str) -> Path:
    """Return a file with one figure, in which words are replaced."""
    text = baseline.dumps(baseline.take(launches([100.0]), ["p_train"]))
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "baseline.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        baseline.read(path)
    return str(caught.value)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    taken = baseline.take(launches([100.0, 102.0, 98.0]), [])
    path = tmp_path / "baseline.yaml"
    path.write_text(baseline.dumps(taken), encoding="utf-8")
    assert baseline.read(path) == taken
    (entry,) = taken.entries
    assert entry.taken == date(2026, 11, 21)
    assert entry.environment["driver"] == golden().environment["driver"]
    assert entry.environment["torch"] == golden().environment["packages"]["torch"]
    assert entry.work["ran_world"] == work(golden())["ran_world"]
    assert entry.work["compile"] == "false"
    assert list(entry.figures) == ["final_result", "p_train", "e2e_time", "mem"]
    assert entry.figures["p_train"].launches == [100.0, 102.0, 98.0]


@pytest.mark.parametrize(
    ("rates", "worse", "better"),
    [
        ([100.0], 0.03, 0.1),  # one launch: nothing is known of its scatter
        ([100.0, 100.4, 99.6], 0.03, 0.1),  # CV 0.4%, 6 of them
        ([100.0, 102.0, 98.0], 0.12, 0.24),  # CV 2%
        ([1.0, 100.0, 1000.0], 1.0, 1.0),
    ],
)
def test_tolerances_follow_the_scatter_of_launches(
    rates: list[float], worse: float, better: float
) -> None:
    (entry,) = baseline.take(launches(rates), ["p_train"]).entries
    expected = entry.figures["p_train"]
    assert (expected.worse_by, expected.better_by) == (worse, better)


@pytest.mark.parametrize(("count", "most"), [(3, 0.015), (5, 0.01), (10, 0.005)])
def test_a_later_launch_is_rarely_beyond_the_tolerance(count: int, most: float) -> None:
    """With normal noise of 2%, where the least tolerance does not help."""
    rng = np.random.default_rng(7)
    launched = 1 + 0.02 * rng.standard_normal((20_000, count))
    cvs = launched.std(axis=1, ddof=1) / launched.mean(axis=1)
    allowed = np.array([baseline.tolerance(float(cv), count) for cv in cvs])
    later = (1 + 0.02 * rng.standard_normal(20_000)) / np.exp(np.log(launched).mean(axis=1))
    assert np.mean(later < 1 - allowed) <= most


def test_an_update_changes_what_it_names_and_keeps_what_people_wrote(tmp_path: Path) -> None:
    other = launch("other", recipe={"micro_batch_size": 8}, figures={"p_train": 50.0})
    old = baseline.take([*launches([100.0]), other], ["p_train", "mem"])
    path = tmp_path / "baseline.yaml"
    text = baseline.dumps(old).replace("worse_by: 0.03", "worse_by: 0.07", 1)
    path.write_text(text, encoding="utf-8")
    new = baseline.take(launches([110.0], started="2026-12-01T00:00:00"), ["p_train"],
                        baseline.read(path))  # fmt: skip
    first, second = new.entries
    assert second == old.entries[1]
    assert first.taken == date(2026, 12, 1)
    assert (first.figures["p_train"].launches, first.figures["p_train"].worse_by) == ([110.0], 0.07)
    assert first.figures["mem"] == old.entries[0].figures["mem"]
    everything = baseline.take(launches([120.0]), [], new).entries[0].figures
    assert list(everything) == ["p_train", "mem"]  # none is added that was not asked for
    assert everything["p_train"].launches == [120.0]


def test_runs_that_failed_or_are_refuted_make_no_baseline() -> None:
    cause = Cause(kind="oom", message=message("exception", text="x"))
    lying = graded([message("evidence_altered", file="events.rank0.jsonl")])
    for bad in (launch("bad", status="oom", cause=cause), launch("bad", trust=lying)):
        with pytest.raises(RecordError) as caught:
            baseline.take([golden(), bad], [])
        assert caught.value.where == "bad"
    for records in ([], [golden(), golden()]):
        with pytest.raises(UsageError):
            baseline.take(records, [])


def test_a_figure_that_is_not_known_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        baseline.take([golden()], ["p_trian"])
    assert "did you mean p_train" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("worse_by: 0.03", "wrose_by: 0.03", ["figures.p_train.wrose_by"]),
        ("worse_by: 0.03", "worse_by: 3%", ["worse_by", "valid number"]),
        ("- 100.0", "- nan", ["launches"]),
    ],
)
def test_what_is_no_baseline_is_refused_at_its_line(
    tmp_path: Path, old: str, new: str, said: list[str]
) -> None:
    shown = refused(written(tmp_path, **{old: new}))
    assert [word for word in ("baseline.yaml", *said) if word not in shown] == []
