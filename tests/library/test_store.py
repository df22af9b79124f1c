"""The index of results: what it holds, how it follows the files, and what it answers."""

from __future__ import annotations

import math
import operator
import os
import shutil
import sqlite3
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes import GOLDEN, launch_event, rank_events, write_run
from store_bodies import acknowledged, document, everything, questions, write
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.library.selection.indexing import add, opened
from trainmark.library.store import database
from trainmark.library.store.database import INDEX_FILE, Database
from trainmark.library.store.index import Index
from trainmark.library.store.query import counts, listing, unread

COMPARE = {
    "=": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge, "<": operator.lt,
    "<=": operator.le,
}  # fmt: skip
LABELS = ("odd", "Odd", "even", "100%", "a_b", "ä", "Ä", "o'd")
CASES = ("toy", "Toy", "gpt", "é", "É", "x%y", "x_y", "\\")
NUMBERS = (0.0, -1.5, 1.0, 464.5, 1e150, 5e-324)
TORCHES = ("2.11.0", "2.13.0+cpu", "2.13.0+CPU", None)
CORES = (2, 128, None)
STARTED = ("2026-10-31T23:59:59+00:00", "2026-11-01T00:00:00+00:00", "2026-11-02T08:00:00+00:00")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Index varied records once; return it with what each run has."""
    folder = tmp_path_factory.mktemp("many")
    runs = {}
    for number in range(120):
        run = {
            "case": CASES[number * 7 % len(CASES)],
            "started": STARTED[number % 3],
            "label": [label for at, label in enumerate(LABELS) if number >> at % 7 & 1],
            "p_core": None if number % 5 == 0 else NUMBERS[number % len(NUMBERS)],
            "own": None if number % 4 == 0 else number / 2,
            "steady": (True, False, None)[number % 3],
            "nproc": number % 4 + 1,
            "env.torch": TORCHES[number % 4],
            "env.cpu_cores": CORES[number % 3],
        }
        made = document(
            f"r{number}", plan__case=run["case"], started=run["started"], labels=run["label"],
            steps__steady=run["steady"], plan__nproc=run["nproc"],
            environment__packages={"torch": run["env.torch"]} if run["env.torch"] else {},
            environment__cpu_cores=run["env.cpu_cores"],
            figures={"p_core": run["p_core"], "own": run["own"]},
        )  # fmt: skip
        write(folder / f"r{number}", made)
        runs[f"r{number}"] = run
    return opened(str(folder))[0].database, runs


def lower(text: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


def met(value: Any, sign: str, given_: str) -> bool:
    """Tell whether one value meets a condition, as docs/results.md says."""
    if isinstance(value, list):
        alike = [met(item, "=" if sign == "!=" else sign, given_) for item in value]
        return not any(alike) if sign == "!=" else any(alike)
    if value is None:
        return False
    if isinstance(value, bool):
        return COMPARE[sign](value, given_ == "true")
    if sign == "~":
        return lower(given_) in lower(value)
    return COMPARE[sign](value, given_ if isinstance(value, str) else float(given_))


WORDS = st.one_of(
    st.tuples(st.just("case"), st.sampled_from(("=", "!=", "~")),
              st.sampled_from((*CASES, "T", "%", "_", "É"))),
    st.tuples(st.just("label"), st.sampled_from(("=", "!=", "~")),
              st.sampled_from((*LABELS, "D", "%", "_"))),
    st.tuples(st.sampled_from(("p_core", "nproc", "own")), st.sampled_from(tuple(COMPARE)),
              st.sampled_from((*map(repr, NUMBERS), "2", "2.5"))),
    st.tuples(st.just("steady"), st.sampled_from(("=", "!=")), st.sampled_from(("true", "false"))),
    st.tuples(st.just("env.torch"), st.sampled_from(("=", "!=", "~")),
              st.sampled_from(("2.13.0+cpu", "2.13", "+CPU", "9"))),
    st.tuples(st.just("env.cpu_cores"), st.sampled_from(tuple(COMPARE)),
              st.sampled_from(("2", "128.0", "64"))),
    st.tuples(st.just("started"), st.sampled_from(tuple(COMPARE)), st.sampled_from(STARTED)),
)  # fmt: skip


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.lists(WORDS, min_size=1, max_size=4), sort=st.sampled_from(("p_core", "-own")))
def test_filters_agree_with_plain_python(many, words, sort):
    index, runs = many
    expected = {
        name for name, run in runs.items()
        if all(met(run[key], sign, value) for key, sign, value in words)
    }  # fmt: skip
    columns = ["run_id", sort.removeprefix("-")]
    found = listing(index, ["".join(word) for word in words], columns=columns, sort=sort)
    assert {name for name, _ in found.rows} == expected
    assert found.total == len(expected)
    values = [value for _, value in found.rows]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=sort.startswith("-"))
    assert values[len(known) :] == [None] * (len(values) - len(known))


def test_dates_have_zones(many):
    index, runs = many
    late = sum(run["started"] >= "2026-11-01" for run in runs.values())
    assert listing(index, ["since=2026-11-01"]).total == late
    assert listing(index, ["since=2026-11-01T02:00+02:00"]).total == late
    assert listing(index, ["since=2026-11-01T00:00:01"]).total < late


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("cas=toy", "did you mean case?"),
        ("env.torhc=1", "did you mean env.torch?"),
        ("p_core>fast", "numbers have"),
        ("p_core~1", "numbers have"),
        ("case>toy", "text has"),
        ("steady=perhaps", "true or false"),
        ("label>odd", "labels and notes have"),
        ("since=yesterday", "2026-11-01 or"),
        ("since>2026-11-01", "since=DATE"),
        ("distilbert_sst2", "not a filter"),
    ],
)
def test_what_is_no_filter_is_refused_with_the_way_out(many, word, reason):
    with pytest.raises(UsageError) as refused:
        listing(many[0], [word])
    assert reason in str(refused.value)


def test_answers_of_lists_and_groups(tmp_path):
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
    index = opened(str(tmp_path))[0].database
    assert questions(index) == {
        "the first of a list": (7, [["run-6"], ["run-5"]]),
        "the best of each case": (2, [["gpt", "run-3"], ["toy", "run-0"]]),
        "how many of each": [
            (("gpt", "passed"), 3),
            (("toy", "failed"), 1),
            (("toy", "passed"), 3),
        ],
        "how many of some": [(("passed",), 3)],
    }
    assert counts(index, ["case"], ["case~no such"]) == []
    with pytest.raises(UsageError, match="no order by 'label'"):
        listing(index, sort="label")


def test_the_environment_of_a_run_is_shown_and_searched(tmp_path):
    write(tmp_path / "a", document("a", environment__others_cpu_share=0.25))
    write(tmp_path / "b", document("b", environment__devices=[{"name": "H100"}, {"name": "H200"}]))
    index = opened(str(tmp_path))[0].database
    columns = ["env.torch", "env.cpu_cores", "env.devices.name", "env.others_cpu_share"]
    first, second = listing(index, columns=columns, sort="run_id").rows
    assert first == ["2.13.0+cu130", 128, "NVIDIA A100-SXM4-40GB", 0.25]
    assert second[2] == "H100, H200"
    assert listing(index, ["env.devices.name!=H200"], columns=["run_id"]).rows == [["a"]]
    assert listing(index, ["env.others_cpu_share>0.2"], columns=["run_id"]).rows == [["a"]]


def test_a_figure_called_as_a_column_is_left_out(tmp_path):
    made = document("a")
    own = {"value": 0.5, "unit": "s", "reason": None, "note": None}
    made["figures"] |= dict.fromkeys(("path", "source", "steps", "own"), own)
    write(tmp_path / "a", made)
    found = listing(opened(str(tmp_path))[0].database)
    assert sorted(found.columns) == sorted(set(found.columns))
    assert "source" not in found.columns
    assert found.documents()[0]["steps"] == made["counts"]["steps"]
    assert (found.columns[-1], found.heads[-1], found.units[-1]) == ("own", "own_s", "s")
    found = found.without("path")
    assert {len(found.columns)} == {len(x) for x in (found.heads, found.units, *found.rows)}


def test_the_unit_of_the_final_result_is_that_of_the_runs_that_are_listed(tmp_path):
    for name, unit in (("toy", "samples/s"), ("gpt", "tokens/s")):
        write(tmp_path / name, document(name, plan__case=name, figures__final_result__unit=unit))
    index = opened(str(tmp_path))[0].database
    for words, unit in ((["case=toy"], "samples/s"), (["case=gpt"], "tokens/s"), ([], "")):
        assert listing(index, words, columns=["final_result"]).units == [unit]


def listed(folder, *words):
    found = listing(opened(str(folder))[0].database, words, columns=["run_id"])
    return "".join(name for (name,) in found.rows)


def test_the_index_follows_the_files(tmp_path):
    for name, day in zip("abc", (1, 3, 2), strict=True):
        write(tmp_path / name, document(name, started=f"2026-11-0{day}T08:00:00+00:00"))
    assert listed(tmp_path) == "bca"
    write(tmp_path / "plan" / "r1", document("d", started="2026-11-04T08:00:00+00:00"))
    assert listed(tmp_path) == "dbca"
    changed = document("e", started="2026-11-05T08:00:00+00:00", figures={"p_core": 1.0})
    write(tmp_path / "plan" / "r1", changed)
    (tmp_path / "a" / "record.json").unlink()
    assert listed(tmp_path) == "ebc"
    assert listed(tmp_path, "p_core<2") == "e"
    (tmp_path / "round").symlink_to("round")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "c").rename(tmp_path / os.fsdecode(b"\xff"))  # no database holds such a name
    assert listed(tmp_path) == "eb"


def test_a_run_whose_launcher_was_killed_gets_its_record(tmp_path):
    write_run(tmp_path / "a", [launch_event()], rank_events())
    (tmp_path / "a" / "plan.json").write_bytes((GOLDEN / "plan_toy.json").read_bytes())
    found = listing(opened(str(tmp_path))[0].database, columns=["case", "status"])
    assert found.rows == [["toy", "interrupted"]]
    assert (tmp_path / "a" / "record.json").exists()


def test_a_record_that_cannot_be_read_is_told(tmp_path):
    write(tmp_path / "b", document("b"))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "record.json").write_text('{"suite": ')
    assert listed(tmp_path) == "b"
    ((path, line, reason),) = unread(Database(str(tmp_path)))
    assert (path, line, reason.code) == (str(tmp_path / "a"), 0, "record_unreadable")


def test_an_index_of_another_form_is_made_anew_with_what_was_added(tmp_path):
    write(tmp_path / "runs" / "a", document("a"))
    write(tmp_path / "other" / "b", document("b"))
    index, _ = opened(str(tmp_path / "runs"))
    add(index, [str(tmp_path / "other")])
    before = everything(index.database)
    assert [run["run_id"] for run in before] == ["a", "b"]
    file = tmp_path / "runs" / INDEX_FILE
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE form SET form = 'of another version'")
        connection.execute("ALTER TABLE runs DROP COLUMN configuration")
    connection.close()
    assert everything(opened(str(tmp_path / "runs"))[0].database) == before
    file.write_bytes(b"SQLite format 3\x00" + b"\xff" * 8192)
    with pytest.raises(EnvironmentFault, match="results rebuild"):
        opened(str(tmp_path / "runs"))
    anew, unreached = opened(str(tmp_path / "runs"), rebuild=True)
    assert [run["run_id"] for run in everything(anew.database)] == ["a"]  # damage lost the rest
    assert unreached == []


def test_what_was_added_and_is_gone_leaves_the_index_when_it_is_rebuilt(tmp_path):
    (tmp_path / "runs").mkdir()
    for name in ("b", "c"):
        write(tmp_path / "far" / name / "x", document(name))
    where = f"sqlite:///{tmp_path}/index.sqlite"
    index = Index(Database(where))
    add(index, [str(tmp_path / "far" / name) for name in "bc"])
    shutil.rmtree(tmp_path / "far" / "b")
    index, unreached = opened(where, rebuild=True)
    assert (listed(where), unreached) == ("c", [])
    (tmp_path / "far").rename(tmp_path / "unmounted")
    index, unreached = opened(where, rebuild=True)
    assert (listed(where), unreached) == ("", [str(tmp_path / "far" / "c")])
    (tmp_path / "unmounted").rename(tmp_path / "far")
    assert listed(where) == "c"


def test_a_folder_that_cannot_be_written_is_indexed_elsewhere(tmp_path, monkeypatch):
    write(tmp_path / "a", document("a"))
    monkeypatch.setattr(database.os, "access", lambda _, mode: mode != os.W_OK)
    assert listed(tmp_path) == "a"
    assert not (tmp_path / ".index").exists()


def test_stores_that_cannot_be_opened_are_refused(tmp_path):
    with pytest.raises(EnvironmentFault, match="trainmark run"):
        Database(str(tmp_path / "none"))
    with pytest.raises(UsageError, match="not a store"):
        Database("mysql://host/db")
    with pytest.raises(UsageError) as refused:
        Database("postgresql://me:hidden@host:port/db")
    assert "hidden" not in str(refused.value)
    (tmp_path / ".index").write_text("in the way")
    with pytest.raises(EnvironmentFault, match="cannot be made"):
        Database(str(tmp_path))


def test_hostile_text_is_data(tmp_path):
    drop = "'; drop table runs; --"
    made = document(
        "x", case_key='"; --\x00', plan__case=drop, labels=["a\x00b", "%_\\"],
        environment__machine="x" * 10_000, figures={drop: 1.0, "x\x1b[31m": 2.0},
    )  # fmt: skip
    write(tmp_path / drop, made)
    assert listed(tmp_path, f"case={drop}", "env.machine~xxx") == "x"
    assert listed(tmp_path, "case~' OR 1=1") == ""
    assert listed(tmp_path, "label=a\\u0000b", "label~%_\\", "label!=%") == "x"
    (run,) = listing(Database(str(tmp_path))).documents()
    assert run["x\\u001b[31m"] == 2.0
    assert math.isclose(run[drop], 1.0)


def test_a_transaction_that_fails_leaves_nothing_and_later_ones_work(tmp_path, monkeypatch):
    index = Index(Database(str(tmp_path)))
    write(tmp_path / "a", document("a"))

    def full(*_, **__):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr("trainmark.library.store.index._environments", full)
        with pytest.raises(OSError, match="No space"):
            index.refresh()
    assert listing(index.database).total == 0
    index.refresh()
    found = listing(index.database, columns=["run_id", "env.torch", "p_core"])
    assert found.rows == [["a", "2.13.0+cu130", 464.57232729765695]]


@pytest.mark.nightly
def test_no_acknowledged_record_is_lost_when_writers_are_killed(tmp_path):
    names = acknowledged(str(tmp_path), tmp_path)
    index = Index(Database(str(tmp_path)))
    with index.database.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
    found = listing(index.database, columns=["run_id", "p_core", "label"])
    assert {row[0] for row in found.rows} >= names
    assert len({row[0] for row in found.rows}) == found.total
    # All of a record is there, also where its writer was killed at once after it.
    assert {(p_core, len(labels)) for _, p_core, labels in found.rows} == {(464.57232729765695, 2)}
    index.refresh()
    assert {run["run_id"] for run in everything(index.database)} == {
        path.name for path in tmp_path.iterdir() if (path / "record.json").exists()
    }
