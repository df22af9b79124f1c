"""Pages of a list, the best of each group, counts by value, and the search in all names."""

from __future__ import annotations

import pytest

from store_bodies import document, questions, write
from trainmark.errors import UsageError
from trainmark.library.store.database import Database
from trainmark.library.store.index import Index
from trainmark.library.store.query import counts, listing


@pytest.fixture
def opened(tmp_path):
    for number in range(7):
        made = document(
            f"run-{number}",
            plan__case=("toy", "gpt")[number % 2],
            started=f"2026-11-0{number + 1}T00:00:00+00:00",
            status="failed" if number == 6 else "passed",
            cause={"kind": "error", "message": {"code": "x", "args": {}}} if number == 6 else None,
            figures={"p_core": (100.0, 80.0, 90.0, 120.0, None, 70.0, 300.0)[number]},
        )
        write(tmp_path / f"run-{number}", made)
    index = Index(Database(str(tmp_path)))
    index.refresh()
    return index.database


def test_answers_of_lists_and_groups(opened):
    assert questions(opened) == {
        "a page of a list": (7, [["run-3"], ["run-2"]]),
        "a page beyond the end": (7, []),
        "the best of each case": (2, [["gpt", "run-3"], ["toy", "run-0"]]),
        "how many of each": [
            (("gpt", "passed"), 3),
            (("toy", "failed"), 1),
            (("toy", "passed"), 3),
        ],
        "how many of some": [(("passed",), 3)],
        "found by text": [["run-5"], ["run-3"], ["run-1"]],
    }


def test_text_is_for_searching_only(opened):
    with pytest.raises(UsageError, match="unknown key 'text'"):
        listing(opened, ["text=toy"])
    with pytest.raises(UsageError, match="unknown key 'text'"):
        listing(opened, sort="text")
    assert counts(opened, ["case"], ["text~no such"]) == []


def test_a_figure_called_as_a_column_is_left_out(tmp_path):
    made = document("a")
    own = {"value": 0.5, "unit": "s", "reason": None, "note": None}
    made["figures"] |= dict.fromkeys(("path", "source", "steps"), own)
    write(tmp_path / "a", made)
    index = Index(Database(str(tmp_path)))
    index.refresh()
    found = listing(index.database)
    assert sorted(found.columns) == sorted(set(found.columns))
    assert "source" not in found.columns
    assert found.documents()[0]["steps"] == made["counts"]["steps"]
    found = found.without("path")
    assert {len(found.columns)} == {len(x) for x in (found.heads, found.units, *found.rows)}
    assert "path" not in found.columns


def test_units_are_those_of_the_runs_that_are_listed(tmp_path):
    for name, unit in (("toy", "samples/s"), ("gpt", "tokens/s")):
        made = document(name, plan__case=name, figures__final_result__unit=unit)
        made["figures"]["own"] = {"value": 1.0, "unit": unit, "reason": None, "note": None}
        write(tmp_path / name, made)
    index = Index(Database(str(tmp_path)))
    index.refresh()

    def unit(*words):
        found = listing(index.database, words)
        return dict(zip(found.columns, found.units, strict=True))["final_result"]

    assert (unit("case=toy"), unit("case=gpt"), unit(), unit("case=none")) == (
        "samples/s", "tokens/s", "", "",
    )  # fmt: skip
    assert listing(index.database, ["case=gpt"], columns=["own"]).units == ["tokens/s"]
