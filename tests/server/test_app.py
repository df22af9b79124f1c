"""What the server answers: the site, lists, comparisons, and to whom."""

from __future__ import annotations

import base64
import csv
import io

import pytest

from store_bodies import document, write
from trainmark.errors import UsageError
from trainmark.pages.site import writing
from trainmark.server import serving
from trainmark.server.app import create_app
from trainmark.server.serving import Settings
from trainmark.server.tokens import Tokens


def test_the_site_is_served_and_follows_the_store(served, runs):
    client = served()
    page = client.get("/")
    assert (page.status_code, 'href="runs/a.html"' in page.text) == (200, True)
    assert 'action="compare"' in page.text
    assert 'action="compare"' in client.get("/zh/index.html").text
    assert client.get("/runs/a.html").status_code == 200
    assert client.get("/runs/a.json").json()["run_id"] == "a"
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert client.get("/runs/d.html").status_code == 404
    write(runs / "d", document("d"))
    client.app.state.serving.refresh()
    assert client.get("/runs/d.html").status_code == 200
    assert client.get("/health").json() == {"status": "ok", "runs": 4}
    assert client.get("/.serve/tokens.json").status_code == 404


def test_what_comes_before_the_first_pages_are_written_is_asked_to_wait(runs):
    from starlette.testclient import TestClient

    answer = TestClient(create_app(Settings(store=str(runs)))).get("/")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_a_full_disk_does_not_stop_reading(served, runs, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    client = served()
    monkeypatch.setattr(serving, "write_site", full)
    write(runs / "d", document("d"))
    client.app.state.serving.refresh()
    assert client.get("/health").json()["status"] == "stale"
    assert client.get("/runs/a.html").status_code == 200
    monkeypatch.setattr(serving, "write_site", writing.write_site)
    client.app.state.serving.refresh()
    assert client.get("/health").json()["status"] == "ok"
    assert client.get("/runs/d.html").status_code == 200


def test_runs_stand_side_by_side(served):
    client = served()
    page = client.get("/compare?run=c&run=a")
    assert (page.status_code, "200%" in page.text or "side" in page.text) == (200, True)
    assert 'href="runs/a.html"' in page.text
    assert "并排比较" in client.get("/zh/compare?run=c&run=a").text
    assert client.get("/compare?run=a").status_code == 400
    missing = client.get("/compare?run=a&run=<b>")
    assert (missing.status_code, "<b>" in missing.text) == (404, False)


def test_lists_are_json_and_csv_without_places_on_the_server(served, runs):
    client = served()
    found = client.get("/runs.json").json()
    assert [(run["run_id"], run["p_core"]) for run in found["runs"]] == [
        ("c", 300.0), ("b", 200.0), ("a", 100.0),
    ]  # fmt: skip
    table = client.get("/runs.csv").text
    assert [row["run_id"] for row in csv.DictReader(io.StringIO(table))] == ["c", "b", "a"]
    assert str(runs) not in table + str(found)


def test_where_tokens_read_nobody_else_does(served, runs):
    client, tokens = served(read="token"), Tokens(runs)
    reader, lab = tokens.make("reader", ["read"]), tokens.make("lab", ["upload"])

    def status(path, authorization=None):
        headers = {"Authorization": authorization} if authorization else {}
        return client.get(path, headers=headers).status_code

    basic = base64.b64encode(f"any:{reader}".encode()).decode()
    for path in ("/", "/runs/a.html", "/runs/a.json", "/runs.csv", "/compare?run=a&run=b"):
        assert status(path) == 401
        assert status(path, f"Bearer {lab}") == 403
        assert status(path, f"Bearer {reader}") == 200
        assert status(path, f"Basic {basic}") == 200
    assert client.get("/").headers["www-authenticate"].startswith("Basic")
    assert status("/health") == 200
    tokens.revoke("reader")
    assert status("/", f"Bearer {reader}") == 401


def test_a_data_folder_within_the_stores_and_tokens_without_a_folder_are_refused(runs, tmp_path):
    with pytest.raises(UsageError):
        create_app(Settings(store=str(runs), data=runs / "uploads"))
    with pytest.raises(UsageError, match="tokens need a folder"):
        create_app(Settings(store=f"sqlite:///{tmp_path}/index.sqlite", read="token"))
