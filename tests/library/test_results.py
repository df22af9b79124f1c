"""``trainmark results``: exact answers on the command line."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sqlite3
import sys

import pytest
from pyarrow import parquet

from store_bodies import document, write
from trainmark.errors import UsageError
from trainmark.library.selection.words import select
from trainmark.library.store import database, index


@pytest.fixture
def runs(tmp_path):
    """Three runs of which one is of a plan, one failed, and one is on another device."""
    folder = tmp_path / "runs"
    h100 = {"environment__devices": [{"name": "NVIDIA H100 80GB HBM3"}] * 2}
    write(folder / "a", document("a", started="2026-11-01T08:00:00+00:00"))
    write(
        folder / "plan" / "b",
        document("b", started="2026-11-03T08:00:00+00:00", figures={"p_core": 900.5}, **h100),
    )
    cause = {"kind": "oom", "message": {"code": "oom", "args": {}}}
    failed = document(
        "c", started="2026-11-02T08:00:00+00:00", status="oom", cause=cause,
        figures={"p_core": None}, plan__recipe__precision="bf16", labels=["self-reported", "odd"],
        environment__packages={"torch": "2.11.0"},
    )  # fmt: skip
    write(folder / "c", failed)
    return folder


def listed(cli, *words):
    code, out, err = cli("results", *words, "--json")
    assert code == 0, err
    return [run["run_id"] for run in json.loads(out)["runs"]]


def test_a_folder_of_runs_is_listed_the_newest_first(cli, runs):
    assert listed(cli) == ["b", "c", "a"]
    code, out, err = cli("results")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines() if line.startswith("runs")] == [
        "runs/plan/b", "runs/c", "runs/a",
    ]  # fmt: skip


def test_a_folder_whose_name_is_not_utf_8_is_left_out(cli, runs):
    (runs / "a").rename(runs / os.fsdecode(b"\xff"))
    assert listed(cli) == ["b", "c"]


@pytest.mark.parametrize("word", ["absent", "reference:distilbert_sst2", "store:case=toy"])
def test_only_what_has_a_path_is_added(cli, runs, word):
    code, out, err = cli("results", "add", word)
    assert (code, out) == (2, "")
    assert word in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["case=distilbert_sst2"], "bca"),
        (["case=toy"], ""),
        (["device~h100"], "b"),
        (["device~H100", "p_core>100"], "b"),
        (["precision=bf16"], "c"),
        (["precision!=bf16"], "ba"),
        (["since=2026-11-02"], "bc"),
        (["until=2026-11-02T08:00"], "a"),
        (["started=2026-11-02T09:00:00+01:00"], "c"),
        (["p_core>100"], "ba"),
        (["p_core<=900.5"], "ba"),
        (["p_core=900.5"], "b"),
        (["p_core!=900.5"], "a"),
        (["status!=passed"], "c"),
        (["trust=noisy", "quality_reached=true"], "bca"),
        (["label=odd"], "c"),
        (["label!=odd"], "ba"),
        (["note=odd"], ""),
        (["env.torch~2.13"], "ba"),
        (["env.packages.torch=2.11.0"], "c"),
        (["env.cpu_cores>=128"], "bca"),
        (["env.cpu_cores!=128"], ""),
        (["env.devices.name!=NVIDIA H100 80GB HBM3"], "ca"),
        (["nnodes=1.5"], ""),
        (["world=2"], "bca"),
    ],
)
def test_filters_find_exactly_the_runs_that_meet_them(cli, runs, words, expected):
    assert listed(cli, *words) == list(expected)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("cas=toy", "did you mean case?"),
        ("p_cor>1", "did you mean p_core?"),
        ("env.torhc=1", "did you mean env.torch?"),
        ("p_core>fast", "numbers have"),
        ("p_core~1", "numbers have"),
        ("p_core>nan", "numbers have"),
        ("case>toy", "text has"),
        ("steady=perhaps", "true or false"),
        ("since=yesterday", "not a date"),
        ("since>2026-11-01", "since=DATE"),
        ("distilbert_sst2", "not a filter"),
    ],
)
def test_what_is_no_filter_is_refused_with_the_way_out(cli, runs, word, said):
    code, out, err = cli("results", word)
    assert (code, out) == (2, "")
    assert said in err


def test_runs_are_sorted_by_any_key_those_without_a_value_last(cli, runs):
    assert listed(cli, "--sort", "p_core") == ["a", "b", "c"]
    assert listed(cli, "--sort", "-p_core") == ["b", "a", "c"]
    assert listed(cli, "--sort", "started") == ["a", "c", "b"]
    assert listed(cli, "--sort", "precision") == ["c", "b", "a"]
    assert listed(cli, "--sort", "-p_core", "--limit", "1") == ["b"]
    assert cli("results", "--sort", "label")[0] == 2
    assert cli("results", "--sort", "p_cor")[0] == 2


def test_what_is_left_out_by_the_limit_is_said(cli, runs):
    code, out, err = cli("results", "--limit", "1", "--columns", "run_id,p_core")
    assert code == 0
    assert [line.split() for line in out.splitlines()][-1] == ["b", "900.5"]
    assert "1 of 3 runs" in err


def test_colours_of_a_terminal_are_not_escaped(cli, runs, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for words in (["results"], ["results", "history", "p_core"]):
        out = cli(*words)[1]
        assert ("\x1b[1m" in out, "u001b" in out) == (True, False)


def test_links_in_a_circle_hide_no_run(cli, runs):
    (runs / "round").symlink_to("round")
    (runs / "z").mkdir()
    (runs / "z" / "nowhere").symlink_to("gone")
    os.mkfifo(runs / "pipe")
    assert listed(cli) == ["b", "c", "a"]
    write(runs.parent / "far" / "d", document("d", started="2026-11-09T08:00:00+00:00"))
    (runs / "elsewhere").symlink_to(runs.parent / "far")
    assert listed(cli) == ["d", "b", "c", "a"]


def test_an_index_that_cannot_be_made_is_said_plainly(cli, runs):
    (runs / ".index").write_text("in the way")
    for words in ((), ("rebuild",)):
        code, _, err = cli("results", *words)
        assert (code, "runs/.index" in err) == (2, True)
    (runs / ".index").unlink()
    (runs / ".index" / "results.sqlite").mkdir(parents=True)
    for words in ((), ("rebuild",)):
        assert cli("results", *words)[0] == 2


def test_json_has_values_of_the_type_they_are_of(cli, runs):
    _, out, _ = cli("results", "run_id=c", "--json")
    document = json.loads(out)
    (run,) = document["runs"]
    assert (document["total"], document["unread"]) == (1, [])
    assert (run["p_core"], run["p_train"]) == (None, 457.1609984523195)
    assert (run["nproc"], run["steady"], run["cause_kind"]) == (2, True, "oom")
    words = "run_id=c", "--columns", "path,env.torch,env.cpu_cores,losses,label", "--json"
    _, out, _ = cli("results", *words)
    (run,) = json.loads(out)["runs"]
    assert (run["path"], run["env.torch"], run["env.cpu_cores"]) == ("runs/c", "2.11.0", 128)
    assert run["label"] == ["odd", "self-reported"]
    assert len(run["losses"]) == 32


def test_the_index_follows_the_files(cli, runs):
    assert listed(cli) == ["b", "c", "a"]
    write(runs / "d", document("d", started="2026-11-04T08:00:00+00:00"))
    assert listed(cli) == ["d", "b", "c", "a"]
    write(runs / "d", document("e", started="2026-11-05T08:00:00+00:00", figures={"p_core": 1.0}))
    assert listed(cli) == ["e", "b", "c", "a"]
    (runs / "a" / "record.json").unlink()
    assert listed(cli) == ["e", "b", "c"]
    assert listed(cli, "p_core<2") == ["e"]


def test_a_record_that_cannot_be_read_is_listed(cli, runs):
    (runs / "a" / "record.json").write_text('{"suite": ')
    code, out, err = cli("results")
    assert (code, "runs/c" in out, "runs/a" in out) == (0, True, False)
    assert err.startswith("runs/a: not taken into the index")
    document = json.loads(cli("results", "--json")[1])
    assert [(x["file"], x["line"]) for x in document["unread"]] == [("runs/a", 0)]
    assert document["unread"][0]["reason"]["code"] == "record_unreadable"


def test_rebuild_makes_the_index_anew(cli, runs):
    before = cli("results", "--json")
    shutil.rmtree(runs / ".index")
    assert cli("results", "rebuild", "--json") == before
    assert cli("results", "rebuild", "--json") == before


def test_no_folder_is_said_plainly(cli):
    code, _, err = cli("results")
    assert code == 2
    assert "trainmark run" in err
    assert cli("results", "--store", "mysql://host/db")[0] == 2
    code, _, err = cli("results", "--store", "postgresql://me:hidden@host:port/db")
    assert (code, "hidden" in err) == (2, False)


def test_history_shows_a_figure_over_time_for_each_piece_of_work(cli, runs):
    write(
        runs / "later",
        document("later", started="2026-11-05T08:00:00+00:00", figures={"p_core": 470.0}),
    )
    code, out, _ = cli("results", "history", "p_core", "case=distilbert_sst2", "--json")
    first, second = json.loads(out)
    assert code == 0
    assert [(x["path"], x["value"]) for x in first["points"]] == [
        ("runs/a", 464.57232729765695), ("runs/later", 470.0),
    ]  # fmt: skip
    assert (first["unit"], first["world"], first["device"]) == (
        "samples/s", 2, "NVIDIA A100-SXM4-40GB",
    )  # fmt: skip
    assert [(x["path"], x["value"]) for x in second["points"]] == [("runs/plan/b", 900.5)]
    code, out, _ = cli("results", "history", "p_core", "device~A100")
    assert (code, "▁█  464.6 to 470.0 samples/s" in out) == (0, True)
    assert cli("results", "history")[0] == 2
    assert cli("results", "history", "p_cor")[0] == 2
    code, out, err = cli("results", "history", "monitor")
    assert (code, out.strip(), "monitor" in err) == (0, "", True)


def test_csv_has_the_cells_of_the_report(cli, runs):
    code, out, _ = cli("results", "export", "--sort", "path")
    assert code == 0
    ours = list(csv.DictReader(io.StringIO(out)))
    words = (*("runs/a", "runs/c", "runs/plan/b"), "--format", "csv", "--no-verify")
    theirs = list(csv.DictReader(io.StringIO(cli("report", *words)[1])))
    assert [{name: row[name] for name in theirs[0]} for row in ours] == theirs
    assert [row["path"] for row in ours] == ["runs/a", "runs/c", "runs/plan/b"]


def test_parquet_has_types_and_nulls(cli, runs, tmp_path):
    code, _, err = cli("results", "export", "--sort", "path", "-o", "x.parquet")
    assert (code, err) == (0, "")
    table = parquet.read_table(tmp_path / "x.parquet")
    types = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert (types["case"], types["nproc"], types["steady"]) == ("string", "int64", "bool")
    assert (types["p_core_samples_per_s"], types["quality_value"]) == ("double", "double")
    rows = table.to_pylist()
    assert [row["p_core_samples_per_s"] for row in rows] == [464.57232729765695, None, 900.5]
    assert [row["cause_kind"] for row in rows] == [None, "oom", None]
    assert cli("results", "export", "case=distilbert_sst2", "-o", "x.csv")[0] == 0
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 4
    assert cli("results", "export", "-o", "x.xlsx")[0] == 2
    assert cli("results", "export", "-o", "missing/x.parquet")[0] == 2


PAGE = """\
| 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem |
|---|---|---|---|---|---|---|---|---|
| A100单机8卡（1x8） | fp32 | / | 361 | 1764.0 | 1861.9 | 1942.6 | 0.915 | 13.9/40.0 |
"""


def test_what_is_elsewhere_is_added_and_followed_by_rebuild(cli, runs, tmp_path):
    other = tmp_path / "other"
    write(other / "x", document("x", started="2026-11-09T08:00:00+00:00"))
    write(other / "y", document("y", started="2026-11-08T08:00:00+00:00"))
    (tmp_path / "page.md").write_text(PAGE)
    assert cli("results", "add", "other", "page.md")[0] == 0
    assert listed(cli, "kind=record") == ["x", "y", "b", "c", "a"]
    (row,) = json.loads(cli("results", "kind=row", "--json")[1])["runs"]
    assert (row["p_core"], row["device"], row["world"]) == (1942.6, "A100", 8)
    assert row["path"] == str(tmp_path / "page.md")
    shutil.rmtree(other / "y")
    assert cli("results", "rebuild")[0] == 0
    assert listed(cli, "kind=record") == ["x", "b", "c", "a"]
    shutil.rmtree(other)
    (tmp_path / "page.md").write_text(PAGE.replace("1942.6", "1900.5"))
    assert cli("results", "rebuild")[0] == 0
    assert listed(cli, "kind=record") == ["b", "c", "a"]
    assert listed(cli, "p_core=1900.5") == [None]


def test_queries_name_results_wherever_words_do(cli, runs, tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    assert cli("results", "add", "page.md")[0] == 0
    found = select(["store:p_core>100 kind=record since=2026-11-01"], verify=False)
    assert [x.run_id for x in found.records] == ["a", "b"]
    assert found.places == ["runs/a", "runs/plan/b"]
    assert [x.run_id for x in select(["store:runs?precision=bf16"], verify=False).records] == ["c"]
    (row,) = select(["store:kind=row"]).rows
    assert (row.figure("p_core"), row.line) == (1942.6, 3)
    with pytest.raises(UsageError, match="unknown key"):
        select(["store:cas=toy"])
    code, out, _ = cli("report", "store:status=oom", "--format", "csv", "--no-verify")
    assert (code, [row["run_id"] for row in csv.DictReader(io.StringIO(out))]) == (0, ["c"])


def test_a_damaged_index_is_made_anew_by_rebuild_only(cli, runs):
    before = cli("results", "--json")
    (runs / ".index" / "results.sqlite").write_bytes(b"SQLite format 3\x00" + b"\xff" * 8192)
    code, _, err = cli("results")
    assert (code, "results rebuild" in err) == (2, True)
    assert cli("results", "rebuild", "--json") == before


def test_an_index_of_a_newer_version_is_refused_plainly(cli, runs):
    assert cli("results")[0] == 0
    with sqlite3.connect(runs / ".index" / "results.sqlite") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    code, out, err = cli("results")
    assert (code, out) == (2, "")
    assert "newer" in err
    assert cli("results", "rebuild")[0] == 2


def test_a_folder_that_cannot_be_written_is_indexed_elsewhere(cli, runs, monkeypatch):
    monkeypatch.setattr(database.os, "access", lambda _, mode: mode != os.W_OK)
    assert listed(cli, "p_core>100") == ["b", "a"]
    assert not (runs / ".index" / "results.sqlite").exists()


def test_hostile_text_is_data(cli, runs):
    drop = "'; drop table runs; --"
    made = document(
        "hostile", case_key='"; --\x00', started="2026-11-06T08:00:00+00:00", plan__case=drop,
        labels=["a\x00b", "%_\\"], environment__machine="x" * 10_000_000,
        figures={drop: 1.0, "x\x1b[31m": 2.0},
    )  # fmt: skip
    write(runs / drop, made)
    assert listed(cli, f"case={drop}") == ["hostile"]
    assert listed(cli, "case~' OR 1=1") == []
    assert listed(cli, "label=a\\u0000b", "label~%_\\", "label!=%") == ["hostile"]
    assert listed(cli, "label~%a") == []
    assert listed(cli, "env.machine~xxx") == ["hostile"]
    assert listed(cli, "--sort", "-steps", "--limit", "1") == ["hostile"]
    out = cli("results", "run_id=hostile", "--json")[1]
    assert "\x1b" not in out
    assert json.loads(out)["runs"][0]["x\\u001b[31m"] == 2.0
    assert listed(cli) == ["hostile", "b", "c", "a"]


def test_looking_at_an_index_does_not_change_its_folder(cli, runs, monkeypatch):
    """Else all of 100,000 records would be looked at each time."""
    looked = []
    walk = index._walk

    def looking(*words):
        looked.append(words)
        return walk(*words)

    monkeypatch.setattr(index, "_walk", looking)
    monkeypatch.setattr(index, "_MOST_CHECKED", 2)
    monkeypatch.setattr(index, "_RACY_NS", 0)
    assert listed(cli) == ["b", "c", "a"]
    assert listed(cli) == ["b", "c", "a"]
    assert looked.count(("runs",)) == 1
    write(runs / "plan" / "d", document("d", started="2026-11-04T08:00:00+00:00"))
    assert listed(cli) == ["d", "b", "c", "a"]
    shutil.rmtree(runs / "c")
    assert listed(cli) == ["d", "b", "a"]
    assert looked.count(("runs",)) == 3
