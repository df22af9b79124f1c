"""Answers of the server: the site, lists, comparisons."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from support.store_bodies import make_document, write_record_file
from trainmark.pages.site import writing
from trainmark.server import serving
from trainmark.server.app import create_app


def test_site_is_served_and_updated_with_the_store(start_client, runs):
    # The store has the runs a, b and c. ``start_client`` writes their pages and returns a client of
    # the server; ``refresh`` is what the server does from time to time. The form for comparing runs
    # has the action "compare".
    client = start_client()
    page = client.get("/")
    assert page.status_code == 200
    assert 'href="runs/a.html"' in page.text
    assert 'action="compare"' in page.text
    assert 'action="compare"' in client.get("/zh/index.html").text
    assert client.get("/runs/a.html").status_code == 200
    assert client.get("/runs/a.json").json()["run_id"] == "a"
    assert client.get("/runs/d.html").status_code == 404
    write_record_file(runs / "d", make_document("d"))
    client.app.state.serving.refresh()
    assert client.get("/runs/d.html").status_code == 200
    assert client.get("/health").json() == {"status": "ok", "results": 4}  # a, b, c and d
    assert client.get("/.serve/tokens").status_code == 404  # files of the server itself


def test_request_before_the_first_pages_gets_a_retry_answer(runs):
    answer = TestClient(create_app(str(runs))).get("/")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), MemoryError()],  # the second has no text
)
def test_a_failed_update_does_not_stop_reading(start_client, runs, monkeypatch, error):
    # The server has the pages of runs a, b and c. While the disk or the memory is full, run d is
    # added to the store, and ``refresh``, which writes the pages anew, fails: they are "stale".
    def fail(*_, **__):
        raise error

    client = start_client()
    monkeypatch.setattr(serving, "write_site", fail)
    write_record_file(runs / "d", make_document("d"))
    client.app.state.serving.refresh()
    assert client.get("/health").json()["status"] == "stale"
    assert client.get("/runs/a.html").status_code == 200  # as it was written before
    monkeypatch.setattr(serving, "write_site", writing.write_site)
    client.app.state.serving.refresh()
    assert client.get("/health").json()["status"] == "ok"
    assert client.get("/runs/d.html").status_code == 200


def test_selected_runs_are_shown_side_by_side(start_client):
    # The store has the runs a, b and c. A single run cannot be compared (status 400), and "<b>" is
    # no run (404).
    client = start_client()
    page = client.get("/compare?run=c&run=a")
    assert page.status_code == 200
    assert "Side by side" in page.text
    assert 'href="runs/a.html"' in page.text
    assert "并排比较" in client.get("/zh/compare?run=c&run=a").text
    single_run_page = client.get("/compare?run=a")
    assert single_run_page.status_code == 400
    assert "1 runs" not in single_run_page.text  # a plural of one
    missing = client.get("/compare?run=a&run=<b>")
    assert missing.status_code == 404
    assert "<b>" not in missing.text
    assert "&lt;b&gt;" in missing.text  # the run is named


def test_list_is_json_without_server_paths(start_client, runs):
    # The store has a, b and c, with the ``p_core`` 100, 200 and 300; c is the newest.
    client = start_client()
    listing = client.get("/runs.json").json()
    assert [(run["run_id"], run["p_core"]) for run in listing["runs"]] == [
        ("c", 300.0),
        ("b", 200.0),
        ("a", 100.0),
    ]
    assert str(runs) not in str(listing)  # the folder of the store


def test_files_outside_the_site_are_not_served(start_client, runs):
    """The server sends the file ``x.gz`` of its site for the address ``/x``, and no other files.

    The site is a folder in ``.serve``, so that ``secret.gz`` lies beside the site, not in it.
    """
    (runs / ".serve").mkdir(exist_ok=True)
    (runs / ".serve" / "secret.gz").write_bytes(b"")
    client = start_client()
    # Also as an absolute path, a folder, and a name with a zero byte.
    for path in ("/../secret", "/%2e%2e/secret", f"/{runs}/.serve/secret", "/runs", "/a%00b"):
        assert client.get(path).status_code == 404


def test_page_that_is_removed_while_it_is_read_is_not_found(start_client, monkeypatch):
    # The server finds the file of a page and reads it. Meanwhile the site may be written anew.
    client = start_client()
    assert client.get("/index.html").status_code == 200

    def read_removed(file):
        raise FileNotFoundError(file)

    monkeypatch.setattr(Path, "read_bytes", read_removed)
    assert client.get("/index.html").status_code == 404


def test_unknown_address_has_a_not_found_page(start_client):
    # For each address, the heading in its language, and the link to the first page of that
    # language. It is relative, with "../" for each slash between folders: /a/b//c has three.
    client = start_client()
    for path, text, home in (
        ("/runs/gone.html", "Page not found", "../index.html"),
        ("/zh/runs/gone.html", "页面不存在", "../index.html"),
        ("/a/b//c", "Page not found", "../../../index.html"),
        ("/javascript:alert(1)", "Page not found", "index.html"),
        ("/a%00%3Cb%3E", "Page not found", "index.html"),
    ):
        answer = client.get(path)
        assert answer.status_code == 404
        assert answer.headers["content-type"].startswith("text/html")
        assert f"<h1>{text}</h1>" in answer.text
        assert f'href="{home}"' in answer.text
        # Nothing of the address is in the page.
        assert not any(word in answer.text for word in ("javascript:", "<b>", "gone"))


def test_pages_are_plain_for_clients_without_gzip_and_not_sent_twice(start_client):
    client = start_client()
    page = client.get("/", headers={"Accept-Encoding": "gzip"})
    plain = client.get("/", headers={"Accept-Encoding": "identity"})
    assert page.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert page.text == plain.text
    unchanged_page = client.get("/", headers={"If-None-Match": page.headers["etag"]})
    # A page that the client has already is not sent again.
    assert (unchanged_page.status_code, unchanged_page.content) == (304, b"")
