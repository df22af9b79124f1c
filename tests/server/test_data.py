"""What programs are answered: lists, tables, runs, histories, comparisons, references."""

from __future__ import annotations

import csv
import io
import os
import re
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path

import pytest

from fakes import GOLDEN as PLANS
from fakes import S, event, launch_event, rank_events, write_run
from store_bodies import document, write
from trainmark.library.bundle import pack
from trainmark.library.selection.indexing import add
from trainmark.pages.site import reading
from trainmark.record import building, evidence, record
from trainmark.record.verify import verify

PAGE = """\
| 配置 | precision | p_core |
|---|---|---|
| A100单机8卡（1x8） | fp32 | 1942.6 |
"""
PROBLEM = {"what", "where", "rule", "remedy"}


def names(answer):
    return [run["run_id"] for run in answer.json()["runs"]]


def test_the_newest_runs_come_first_and_pages_follow_each_other(client):
    first = client.get("/api/runs", params={"limit": 2})
    second = client.get("/api/runs", params={"limit": 2, "page": 2})
    assert (first.json()["total"], names(first), names(second)) == (3, ["c", "b", "a"][:2], ["a"])


def test_runs_are_filtered_and_sorted(client):
    asked = {"filter": ["case=distilbert_sst2", "p_core<300"], "sort": "p_core"}
    found = client.get("/api/runs", params=asked)
    assert names(found) == ["a", "b"]
    assert found.json()["units"]["p_core"] == "samples/s"
    assert found.json()["runs"][0]["p_core"] == 100.0


@pytest.mark.parametrize(
    "asked",
    [
        {"filter": "nothing=1"}, {"filter": "'"}, {"filter": "p_core>x"}, {"sort": "labels_"},
        {"filter": "path~/"}, {"filter": "source!=x"}, {"sort": "path"}, {"sort": "-source"},
        {"limit": 0}, {"page": 10**30}, {"q": "case=toy"}, {"filter": "case=" + "x" * 301},
        {"limit": "\x00"}, {"filter": ["case=toy"] * 22},
    ],
)  # fmt: skip
def test_what_is_not_a_question_is_refused_in_the_one_form(client, asked):
    answer = client.get("/api/runs", params=asked)
    assert answer.status_code in (400, 422)
    assert set(answer.json()["error"]) == PROBLEM


def test_where_files_lie_on_the_server_cannot_be_guessed(client):
    for address in ("/?q=path~/", "/?sort=path", "/api/history?figure=p_core&filter=source~/"):
        assert client.get(address).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/nothing", 404), ("DELETE", "/api/history", 405),
        ("GET", "/api/runs/none", 404), ("GET", "/api/runs/none/record.json", 404),
        ("GET", "/api/compare?run=a", 422), ("GET", "/api/compare?run=a&run=none", 404),
        ("GET", "/api/references?case=none", 400), ("GET", "/api/history?figure=none", 400),
    ],
)  # fmt: skip
def test_every_refusal_has_the_same_form(client, method, path, status):
    answer = client.request(method, path)
    assert (answer.status_code, set(answer.json()["error"])) == (status, PROBLEM)


def test_nothing_says_where_files_lie_on_the_server(client, runs):
    for path in ("/api/runs", "/api/runs.csv", "/api/runs/a", "/api/history?figure=p_core"):
        assert str(runs.parent) not in client.get(path).text
    own = {"value": 1.0, "unit": "s", "reason": None, "note": None}
    made = document("d", started="2026-11-04T08:00:00+00:00")
    made["figures"] |= dict.fromkeys(("path", "source", "steps"), own)
    write(runs / "d", made)
    table = client.get("/api/runs.csv").text
    assert (str(runs.parent) in table, "path" in table.partition("\n")[0]) == (False, False)
    run = client.get("/api/runs/d").json()["run"]
    assert ("path" in run, "source" in run, run["steps"]) == (False, False, made["counts"]["steps"])
    (runs / "a" / "record.json").write_text("{")
    answer = client.get("/api/runs/a/record.json")
    assert (answer.status_code, str(runs.parent) in answer.text) == (404, False)


def test_the_links_of_the_list_give_the_runs_of_the_list(client, tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    add(client.app.state.serving.index, [str(tmp_path / "page.md")])
    assert client.get("/api/runs").json()["total"] == 4
    page = client.get("/?q=p_core>1").text
    data = [unescape(address) for address in re.findall(r'href="(/api/[^"]*)"', page)]
    table, listed = (client.get(address) for address in data)
    assert (table.headers["x-total-count"], listed.json()["total"]) == ("3", 3)


def test_the_table_has_the_columns_of_an_export_and_says_how_many_there_are(client):
    answer = client.get("/api/runs.csv", params={"limit": 2})
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["run_id"] for row in rows] == ["c", "b"]
    assert answer.headers["x-total-count"] == "3"
    assert answer.headers["content-disposition"] == 'attachment; filename="runs.csv"'


def test_a_run_has_its_figures_and_its_record_as_it_is_written(client, runs):
    told = client.get("/api/runs/b").json()
    assert (told["run"]["p_core"], told["units"]["p_core"]) == (200.0, "samples/s")
    assert client.get("/api/runs/b/record.json").content == (runs / "b/record.json").read_bytes()


def test_of_two_runs_with_one_id_the_figures_and_the_record_are_the_newest_ones(client, runs):
    for place, day, speed in [("a", 1, 100.0), ("d", 4, 400.0)]:
        started = f"2026-11-0{day}T08:00:00+00:00"
        made = document("twice", started=started, figures={"p_core": speed})
        write(runs / place, made)
    run = client.get("/api/runs/twice").json()["run"]
    record = client.get("/api/runs/twice/record.json").json()
    assert run["p_core"] == record["figures"]["p_core"]["value"] == 400.0
    assert "2026-11-04" in client.get("/runs/twice").text


def test_the_record_of_a_run_in_a_bundle_is_read_out_of_it(client, tmp_path):
    folder = tmp_path / "one"
    agent = event("agent_exit", 13 * S, exit_code=0, failures=[])
    write_run(folder, [launch_event(), agent], rank_events())
    (folder / "plan.json").write_bytes((PLANS / "plan_toy.json").read_bytes())
    evidence.redact(folder)
    made = building.build(folder)
    record.write(made, folder)
    pack([[folder]], tmp_path / "one.trainmark.zip")
    add(client.app.state.serving.index, [str(tmp_path / "one.trainmark.zip")])
    answer = client.get(f"/api/runs/{made.run_id}/record.json")
    assert (answer.status_code, answer.json()["run_id"]) == (200, made.run_id)


def test_a_history_has_the_oldest_run_first(client):
    (piece,) = client.get("/api/history", params={"figure": "p_core"}).json()
    assert [(point["run_id"], point["value"]) for point in piece["points"]] == [
        ("a", 100.0), ("b", 200.0), ("c", 300.0),
    ]  # fmt: skip


def test_a_history_is_of_the_newest_runs(client):
    (piece,) = client.get("/api/history", params={"figure": "p_core", "limit": 2}).json()
    assert [point["run_id"] for point in piece["points"]] == ["b", "c"]


def test_runs_are_compared_with_the_first_and_other_work_is_refused(client, runs):
    write(runs / "d", document("d", plan__recipe__precision="bf16"))
    same, other = client.get("/api/compare?run=a&run=b&run=d").json()
    assert (same["a"], same["b"], same["refused"]) == ("a", "b", None)
    assert same["comparison"]["figures"]
    assert (other["comparison"], set(other["refused"])) == (None, PROBLEM)


def test_references_have_rows_and_findings(client):
    told = client.get("/api/references?case=distilbert_sst2").json()
    assert told["rows"]
    assert {finding["severity"] for finding in told["findings"]} <= {"error", "warning", "note"}


def test_a_run_that_ends_while_the_server_runs_is_listed(client, runs):
    assert names(client.get("/api/runs")) == ["c", "b", "a"]
    write(runs / "d", document("d", started="2026-11-05T08:00:00+00:00"))
    assert names(client.get("/api/runs")) == ["d", "c", "b", "a"]


def test_health_counts_what_the_index_holds(client):
    client.get("/api/runs")
    assert client.get("/health").json() == {"status": "ok", "runs": 3}


def test_a_folder_that_is_gone_is_told_as_stale(client, runs, tmp_path):
    client.get("/api/runs")
    runs.rename(tmp_path / "elsewhere")
    client.get("/api/runs")
    assert client.get("/health").status_code in (200, 503)


def test_a_look_that_fails_in_any_way_is_told_as_stale(served, monkeypatch):
    client = served()
    look = client.app.state.serving.index
    monkeypatch.setattr(look, "refresh", "\udcff".encode)
    client.get("/api/runs")
    assert client.get("/health").json()["status"] == "stale"


@pytest.mark.parametrize(
    ("page", "gone"),
    [
        ("/runs/a", "a"),
        ("/compare?run=b&run=a", "a"),
        ("/api/runs/a/record.json", "a/record.json"),
    ],
)
def test_a_run_that_is_removed_while_it_is_read_is_not_found(client, runs, monkeypatch, page, gone):
    def read(*asked):
        if (runs / gone).exists():
            (runs / gone).rename(runs.parent / "elsewhere")
        return verify(*asked)

    client.get("/api/runs")
    monkeypatch.setattr(client.app.state.serving, "follow", lambda: None)
    monkeypatch.setattr(reading, "verify", read)
    assert client.get(page).status_code == 404


def test_the_document_of_the_api_names_every_route_and_its_refusals(client):
    told = client.get("/openapi.json").json()
    for path in ("/api/runs", "/api/runs.csv", "/api/history", "/api/compare", "/health"):
        answers = told["paths"][path]["get"]["responses"]
        assert {"200", "4XX"} <= answers.keys()
        assert "422" not in answers


def test_a_wrong_method_is_told_all_that_there_are(client):
    assert client.delete("/api/runs").headers["allow"] == "GET, POST"


def test_a_folder_that_cannot_be_written_is_served_all_the_same(served, runs, monkeypatch):
    """Each request may be answered in another thread: all see one index."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != runs)
    client = served()
    assert names(client.get("/api/runs")) == ["c", "b", "a"]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: names(client.get("/api/runs")), range(8)))
    assert found == [["c", "b", "a"]] * 8
    assert not (runs / ".index").exists()
