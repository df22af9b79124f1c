"""The index of results: its contents, updates, and answers."""

from __future__ import annotations

import os
import shutil

import pytest

from support.fakes import GOLDEN, launch_event, rank_events, write_run
from support.store_bodies import (
    add_records_while_killing_writers,
    list_index_entries,
    make_document,
    open_index,
    write_record_file,
)
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.results.store.index import INDEX_FILE, Index
from trainmark.results.store.query import list_runs


@pytest.fixture(scope="module")
def index_of_many(tmp_path_factory):
    """Return an index of runs r0 to r3, each with its own values in the fields that are filtered.

    r1 is not steady: the second half of its steps is slower. r2 has no measured steps.

    They are copies of a stored record with other values, each named by the path of its keys, such
    as ``plan__nproc``. The figure ``own`` is one that only its case knows.
    """
    folder = tmp_path_factory.mktemp("many")
    values = [100.0, 80.5, None, 120.0]
    times, warmup = (make_document("r")["steps"][name] for name in ("time_ns", "warmup"))
    slower = [
        2 * time_ns if 2 * index > len(times) else time_ns for index, time_ns in enumerate(times)
    ]
    for number, value in enumerate(values):
        document = make_document(
            f"r{number}",
            plan__case=("toy", "Gpt_x%y")[number % 2],
            plan__nproc=number + 1,
            started=f"2026-11-01T0{number}:00:00+00:00",
            labels=["odd"] if number % 2 else [],
            steps__time_ns=slower if number == 1 else times,
            steps__warmup=len(times) if number == 2 else warmup,
            environment__packages={"torch": f"2.{11 + number}.0+cpu"},
            figures={"p_core": value, "own": 1.0},
        )
        write_record_file(folder / f"r{number}", document)
    return open_index(folder)


@pytest.mark.parametrize(
    ("args", "runs"),
    [
        ("", "3210"), ("case=toy", "20"), ("case!=toy", "31"), ("case~PT_", "31"),
        ("case~%y", "31"), ("case~t%", ""), ("p_core>80.5", "30"), ("p_core>=8.05e1", "310"),
        ("p_core!=100", "31"),
        ("nproc=2", "1"), ("steady=true", "30"), ("steady!=true", "1"),
        ("case=Gpt_x%y", "31"), ("status=oom", ""), ("kernels=own", ""), ("case=dlrm_criteo", ""),
        ("labels=odd", "31"), ("torch~2.13", "2"), ("started_utc>=2026-11-01T01:00", "321"),
        ("started_utc<2026-11-01T01:00", "0"), ("case>a", "20"),
        ("case=toy p_core<1000", "0"),
        # A date stands for the whole day, hour or minute.
        ("started_utc=2026-11-01", "3210"), ("started_utc!=2026-11-01", ""),
        ("started_utc<=2026-11-01", "3210"), ("started_utc>2026-11-01", ""),
        ("started_utc=2026-11", "3210"), ("started_utc>2026-10", "3210"),
        ("started_utc<2027", "3210"), ("started_utc=2026-11-02", ""),
        ("started_utc=2026-11-01T03", "3"), ("started_utc!=2026-11-01T03:00:00", "210"),
        ("started_utc>2026-11-01T02:00", "3"), ("started_utc<=2026-11-01T02:00", "210"),
        ("started_utc=2026-11-01T03:00Z", "3"), ("started_utc=2026-11-01T11:00+08:00", "3"),
        ("started_utc>=2026-10-31T23:30-02:30", "32"), ("started_utc~T03", "3"),
    ],
)  # fmt: skip
def test_filters_select_runs_that_meet_all_conditions(index_of_many, args, runs):
    """Each case: conditions as a user writes them, and the numbers of the runs that are listed.

    Runs r0 to r3, of which the newest, r3, comes first, have in this order: ``case`` toy, Gpt_x%y,
    toy, Gpt_x%y; ``p_core`` 100, 80.5, none, 120; ``nproc`` 1 to 4; torch 2.11.0 to 2.14.0; a start
    at 0 to 3 o'clock. r1 and r3 have the label ``odd``. r1 is not steady, and of r2 this is not
    known. A missing value never matches. ``~``: contains the text, in upper or lower case. ``<``
    and ``>`` compare texts by their characters, of which capitals come before "a".
    """
    listing = list_runs(index_of_many, args.split(), columns=["run_id"])
    assert "".join(run_id[1] for (run_id,) in listing.rows) == runs
    assert listing.total == len(runs)


def test_space_in_a_time_stands_for_the_t(index_of_many):
    # r0 to r3 started at 0, 1, 2 and 3 o'clock.
    listing = list_runs(index_of_many, ["started_utc>2026-11-01 01:00"], columns=["run_id"])
    assert listing.rows == [["r3"], ["r2"]]


def test_path_is_filtered_and_sorted_as_it_is_listed(index_of_many):
    folder = index_of_many.folder  # of the store, in which the run r1 has the path ``r1``
    for word in (f"path={folder}/r1", f"path~{folder.name}/R1"):
        listing = list_runs(index_of_many, [word], columns=["path"])
        assert listing.rows == [[f"{folder}/r1"]]
    listing = list_runs(index_of_many, [f"path>{folder}/r1"], columns=["path"], sort="path")
    assert listing.rows == [[f"{folder}/r2"], [f"{folder}/r3"]]


def test_runs_are_sorted_with_those_without_a_value_last_and_limited(index_of_many):
    # The index has r0 to r3 with the ``p_core`` 100, 80.5, none and 120. From the lowest one; with
    # "-" from the highest. ``total`` counts the runs without the limit.
    assert list_runs(index_of_many, columns=["run_id"], sort="p_core").rows == [
        ["r1"],
        ["r0"],
        ["r3"],
        ["r2"],
    ]
    listing = list_runs(index_of_many, columns=["run_id", "p_core"], sort="-p_core", limit=2)
    assert (listing.total, listing.rows) == (4, [["r3", 120.0], ["r0", 100.0]])


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("cas=toy", "did you mean case?"),
        ("own=1", "unknown key"),  # a figure in the records, but no key
        ("p_core>fast", "p_core>fast: 'fast' is not a number; numbers must"),
        ("steady=perhaps", "true or false"),
        ("bs>abc", "'abc' is not a number"),
        ("bs=sixteen", "'sixteen' is not a number"),
        ("compile=perhaps", "true or false"),
        ("status=pass", "did you mean passed?"),
        ("precision=fp31", "did you mean fp32?"),
        ("verification=none", "known: contradicted, unverified, verified"),
        ("started_utc>yesterday", "'yesterday' is not a date"),
        ("started_utc>2026-13", "'2026-13' is not a date"),  # there is no month 13
        ("started_utc<9999-12-31", "'9999-12-31' is not a date"),  # no next day in ``datetime``
        ("case=tooy", "did you mean toy?"),
        ("case!=tooy", "did you mean toy?"),
        ("p_core~1", "p_core~1: not a valid comparison; numbers must"),
        (
            "distilled",
            "set --store to a folder, or name a case: did you mean distilbert_sst2? Known: ",
        ),
    ],
)
def test_invalid_filter_is_refused_with_fix(index_of_many, word, reason):
    # ``word`` is a condition as a user writes it, and ``reason`` a part of the error. Fields of
    # recipes such as ``bs`` and ``compile`` are keys too. The runs of the index are of two cases,
    # toy and Gpt_x%y. A word without an operator may be the name of a case, which stands for
    # ``case=NAME``, or was meant as the folder of the store.
    with pytest.raises(UsageError) as refused:
        list_runs(index_of_many, [word])
    assert reason in str(refused.value)


def test_unit_of_the_final_result_is_that_of_the_listed_runs(tmp_path):
    # ``units`` has the unit of each listed column, here of one.
    for name, unit in (("toy", "samples/s"), ("gpt", "tokens/s")):
        write_record_file(
            tmp_path / name, make_document(name, plan__case=name, figures__final_result__unit=unit)
        )
    index = open_index(tmp_path)
    # Runs with different units have none in common.
    for args, unit in ((["case=toy"], "samples/s"), (["case=gpt"], "tokens/s"), ([], "")):
        assert list_runs(index, args, columns=["final_result"]).units == [unit]


def list_run_ids(folder, *args):
    listing = list_runs(open_index(folder), args, columns=["run_id"])
    return "".join(name for (name,) in listing.rows)


def test_index_is_updated_with_the_files(tmp_path):
    # Runs a, b and c start on the days 1, 3 and 2. ``list_run_ids`` updates the index and joins the
    # ids of the listed runs, each of one letter, in the order of the list.
    for name, day in zip("abc", (1, 3, 2), strict=True):
        write_record_file(
            tmp_path / name, make_document(name, started=f"2026-11-0{day}T08:00:00+00:00")
        )
    assert list_run_ids(tmp_path) == "bca"  # the newest first
    write_record_file(
        tmp_path / "plan" / "r1", make_document("d", started="2026-11-04T08:00:00+00:00")
    )
    assert list_run_ids(tmp_path) == "dbca"
    # One record is replaced and one is removed.
    changed = make_document("e", started="2026-11-05T08:00:00+00:00", figures={"p_core": 1.0})
    write_record_file(tmp_path / "plan" / "r1", changed)
    (tmp_path / "a" / "record.json").unlink()
    (tmp_path / "round").symlink_to("round")  # a link to itself changes nothing
    assert list_run_ids(tmp_path) == "ebc"
    assert list_run_ids(tmp_path, "p_core<2") == "e"  # the others have about 465


def test_run_whose_launcher_was_killed_gets_its_record(tmp_path):
    # The launcher's events do not end, as after a kill.
    write_run(tmp_path / "a", [launch_event()], rank_events())
    (tmp_path / "a" / "plan.json").write_bytes((GOLDEN / "plan_toy.json").read_bytes())
    listing = list_runs(open_index(tmp_path), columns=["case", "status"])
    assert listing.rows == [["toy", "interrupted"]]
    assert (tmp_path / "a" / "record.json").exists()


def test_rebuilt_index_has_same_entries(tmp_path):
    # The index lies in the folder ``.index`` of the store, here ``runs``, which also has a link to
    # another folder with a run.
    write_record_file(tmp_path / "runs" / "a", make_document("a"))
    write_record_file(tmp_path / "far/b", make_document("b"))
    (tmp_path / "runs/others").symlink_to(tmp_path / "far")
    before = list_index_entries(open_index(tmp_path / "runs"))
    assert [run["run_id"] for run in before] == ["a", "b"]
    # The index holds nothing that is not in the records.
    shutil.rmtree(tmp_path / "runs" / ".index")
    assert list_index_entries(open_index(tmp_path / "runs")) == before


def test_folder_that_cannot_be_written_is_indexed_elsewhere(tmp_path, monkeypatch):
    write_record_file(tmp_path / "a", make_document("a"))
    # No folder is writable, as one of another user.
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    assert list_run_ids(tmp_path) == "a"  # by an index, which is in another folder
    assert not (tmp_path / ".index").exists()


def test_stores_that_cannot_be_opened_are_refused(tmp_path):
    # A folder that does not exist; the advice is to make a run.
    with pytest.raises(EnvironmentFault, match="trainmark run"):
        Index(str(tmp_path / "none"))
    (tmp_path / ".index").mkdir()
    # The begin of an SQLite file, and then no valid content.
    (tmp_path / INDEX_FILE).write_bytes(b"SQLite format 3\x00" + b"\xff" * 8192)
    with pytest.raises(EnvironmentFault, match="remove it"):
        Index(str(tmp_path))


def test_hostile_text_is_stored_as_data(tmp_path):
    # ``drop``, the case and the folder of the run, would delete a table if it became part of an SQL
    # statement.
    drop = "'; drop table runs; --"
    document = make_document(
        "x",
        plan__case_key='"; --\x00',
        plan__case=drop,
        labels=["a\x00b", "%_\\"],
        environment__cpu="x" * 10_000,
    )
    write_record_file(tmp_path / drop, document)
    # Control characters are stored escaped; % and _ stand for themselves in a filter.
    filters = (f"case={drop}", "cpu~xxx", "labels~a\\u0000b", "labels~%_\\")
    assert list_run_ids(tmp_path, *filters) == "x"
    assert list_run_ids(tmp_path, "case~' OR 1=1") == ""  # not part of the query


@pytest.mark.nightly
def test_no_acknowledged_record_is_lost_when_writers_are_killed(tmp_path):
    # Six processes add ten records each at the same time, and up to three of them are killed.
    # Acknowledged: a writer has said that the record is in the index. ``where`` is the store that
    # is indexed, ``folder`` the one for the records: here the same.
    acknowledged_ids = add_records_while_killing_writers(where=str(tmp_path), folder=tmp_path)
    index = Index(str(tmp_path))
    with index.open_connection() as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    listing = list_runs(index, columns=["run_id"])
    assert {run_id for (run_id,) in listing.rows} >= acknowledged_ids
    # And none is there twice.
    assert len({run_id for (run_id,) in listing.rows}) == listing.total
