"""Pages over HTTP: language, permalinks, refusals that people read, files, who may read."""

from __future__ import annotations

import re
from html import unescape

import pytest

from store_bodies import document, write
from trainmark.pages.site.links import Links
from trainmark.server.answers import preferred
from trainmark.server.tokens import Tokens

LINKS = Links()


@pytest.mark.parametrize(
    ("accepted", "lang"),
    [
        ("", "en"), ("zh-CN,zh;q=0.9,en;q=0.8", "zh"), ("en-GB,zh;q=0.9", "en"), ("de,zh", "zh"),
        ("zh;q=0.3, en;q=0.7", "en"), ("*", "en"), ("zh;q=x", "en"), (";;,,=\x00", "en"),
    ],
)  # fmt: skip
def test_the_language_is_the_one_that_the_browser_likes_best(accepted, lang):
    assert preferred(accepted) == lang


def test_the_address_decides_on_the_language_before_the_browser(client):
    chinese = {"Accept-Language": "zh-CN"}
    assert '<html lang="zh-Hans">' in client.get("/", headers=chinese).text
    english = client.get("/?lang=en", headers=chinese).text
    assert '<html lang="en">' in english
    assert "/runs/c?lang=en" in english  # and so do the pages that it leads to
    assert '<html lang="en">' in client.get("/?lang=xx").text
    assert "Accept-Language" in client.get("/").headers["vary"]


def test_an_address_is_all_that_a_page_depends_on(client):
    page = client.get("/?case=distilbert_sst2&q=p_core%3E150&sort=p_core").text
    assert page.index("/runs/b") < page.index("/runs/c")
    assert "/runs/a" not in page
    assert client.get("/runs/a").status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [("/none", 404), ("/runs/none", 404), ("/?q=none%3D1", 400), (f"/?q={'e+' * 21}", 400),
     ("/?page=0", 422), ("/?page=2", 400), ("/runs/%00%ff", 404), ("/cases/none", 404),
     ("/references/none", 404), ("/compare", 400), ("/compare?run=a&run=none", 404)],
)  # fmt: skip
def test_people_are_refused_with_a_page(client, path, status):
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert "<main" in answer.text


@pytest.mark.parametrize(
    "path",
    ["/cases/distilbert_sst2", "/compare?run=a&run=b&run=c", "/references",
     "/references/distilbert_sst2"],
)  # fmt: skip
@pytest.mark.parametrize("lang", ["en", "zh-Hans"])
def test_pages_about_several_runs_are_served_in_both_languages(client, path, lang):
    answer = client.get(path, headers={"Accept-Language": lang})
    assert (answer.status_code, f'<html lang="{lang}">' in answer.text) == (200, True)


@pytest.mark.parametrize(
    ("run_id", "case"), [("b/c", "toy/x"), ("x\x1by", "toy\x1b"), ("é b", "?#%")]
)
def test_every_link_to_a_run_of_an_odd_name_leads_there(client, runs, run_id, case):
    write(runs / "odd" / "r1", document(run_id, plan__case=case, plan__repeat_index=7))
    write(runs / "odd" / "r2", document(f"{run_id}/2", plan__case=case, plan__repeat_index=2))
    [shown] = [one for one in client.get("/api/runs").json()["runs"] if one["repeat_index"] == 7]
    pages = [LINKS.runs(), LINKS.run(shown["run_id"]), LINKS.case(shown["case"]),
             LINKS.compare([shown["run_id"], "a"])]  # fmt: skip
    addresses = {
        unescape(address)
        for page in pages for address in re.findall(r'href="(/[^"]*)"', client.get(page).text)
    }  # fmt: skip
    assert {*pages, LINKS.api(shown["run_id"]), LINKS.record(shown["run_id"])} <= addresses | {
        *pages
    }
    for address in sorted(addresses | {*pages}):
        assert client.get(address).status_code == 200, address
    assert client.get(LINKS.record(shown["run_id"])).json()["run_id"] == run_id


@pytest.mark.parametrize("name", ["site.css", "site.js", "charts.js", "icon.svg"])
def test_a_file_is_sent_once_and_then_only_looked_at(client, name):
    first = client.get(f"/static/{name}")
    assert first.status_code == 200
    again = client.get(f"/static/{name}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert client.get(f"/static/{name}", headers={"If-None-Match": 'W/"0"'}).status_code == 200


def test_files_are_those_that_pages_load_and_no_others(client):
    for name in ("none.js", "..%2fviews.py", "site.css%00"):
        assert client.get(f"/static/{name}").status_code == 404


@pytest.mark.parametrize("path", ["/", "/runs/a", "/api/runs", "/metrics", "/openapi.json"])
def test_only_a_token_to_read_reads_where_reading_is_not_public(served, runs, path):
    tokens = Tokens(runs)
    reader, sender = tokens.make("reader", ["read"]), tokens.make("sender", ["upload"])
    client = served(read="token")
    asked = client.get(path)
    assert (asked.status_code, asked.headers["www-authenticate"].split()[0]) == (401, "Basic")
    assert client.get(path, headers={"Authorization": f"Bearer {sender}"}).status_code == 403
    allowed = client.get(path, headers={"Authorization": f"Bearer {reader}"})
    assert allowed.status_code == 200
    assert allowed.headers["cache-control"].startswith("private")
    assert client.get(path, auth=("anybody", reader)).status_code == 200  # as a browser asks
    assert client.get(path, auth=("anybody", "other")).status_code == 401
    for text in ("Basic x", "Basic é".encode("latin-1"), b"Basic gICA"):  # the last one is no text
        assert client.get(path, headers={"Authorization": text}).status_code == 401
    tokens.revoke("reader")
    assert client.get(path, headers={"Authorization": f"Bearer {reader}"}).status_code == 401


def test_what_tells_nothing_of_runs_needs_no_token(served):
    client = served(read="token")
    assert client.get("/health").status_code == 200
    assert client.get("/static/site.css").status_code == 200


def test_a_browsers_own_password_does_not_upload(served, runs):
    secret = Tokens(runs).make("both", ["read", "upload"])
    told = {"Content-Type": "application/zip"}
    answer = served(read="token").post("/api/runs", auth=("x", secret), headers=told, content=b"x")
    assert answer.status_code == 401
