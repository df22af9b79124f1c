"""The index in PostgreSQL: the answers of SQLite, writers at once, and the way from a URL."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from engines.postgres_server import programs, server
from store_bodies import acknowledged, document, everything, opened, write
from trainmark.library.store.index import METADATA, Index
from trainmark.library.store.query import listing
from trainmark.server.app import create_app
from trainmark.server.serving import Settings

pytest.importorskip("psycopg", reason="no driver of PostgreSQL here (make test-engines)")
pytestmark = pytest.mark.skipif(programs() is None, reason="no PostgreSQL here (make test-engines)")


@pytest.fixture(scope="module")
def url():
    with server() as found:
        yield found


@pytest.fixture
def empty(url):
    """Return the URL of the database, which is empty again."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        METADATA.drop_all(connection)
    engine.dispose()
    return url


QUERIES = [
    [], ["case=toy"], ["case~T"], ["case~é"], ["case~É"], ["case!=toy"], ["device~h100"],
    ["p_core>450"], ["p_core<=464.57232729765695", "status=passed"], ["nproc!=1.5"],
    ["quality_reached=true"], ["steady!=true"], ["started_utc>=2026-11-05"], ["labels=odd"],
    ["labels!=odd"], ["labels~%"], ["notes=odd"], ["torch~2.13"], ["kind=row"], ["world=8"],
    ["own>3"], ["own!=2.5"],
]  # fmt: skip
SORTS = ["-started_utc", "-own", "case", "-case", "p_core", "-p_core", "quality_value", "precision"]
COLUMNS = ["run_id", "own", "case", "device", "p_core", "MFU", "labels", "notes", "torch",
           "quality_reached", "world", "work", "kind"]  # fmt: skip
PAGE = """\
| 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem |
|---|---|---|---|---|---|---|---|---|
| A100单机8卡（1x8） | fp32 | / | 361 | 1764.0 | 1861.9 | 1942.6 | 0.915 | 13.9/40.0 |
"""


def some_runs(folder):
    cases = ("toy", "Toy", "é", "É", "b", "B", "_", "'; drop table runs; --")
    for number in range(24):
        made = document(
            f"r{number:02}", plan__case=cases[number % 8], labels=["odd", "%"][: number % 3],
            started=f"2026-11-{number % 9 + 1:02}T08:00:00+00:00", steps__steady=number % 2 == 0,
            figures={"p_core": None if number % 5 == 0 else 440.0 + number, "own": number / 2},
            environment__cpu="a\x00b",
            notes=[{"code": "odd", "args": {"x": 1}}] if number % 4 == 0 else [],
        )  # fmt: skip
        write(folder / f"r{number:02}", made)


def answers(database):
    """Return what an index answers to all queries in all orders."""
    found = {}
    for words in QUERIES:
        for sort in SORTS[: 7 if not words else 2]:
            listed = listing(database, words, columns=COLUMNS, sort=sort, limit=15)
            found[json.dumps([words, sort])] = (listed.total, listed.heads, listed.rows)
    return found


def test_postgresql_and_sqlite_give_equal_answers(empty, tmp_path):
    folder = tmp_path / "runs"
    some_runs(folder)
    (tmp_path / "page.md").write_text(PAGE)
    indexes = [Index(str(folder)), Index(empty)]
    indexes[0].refresh()
    for index in indexes:
        index.add([str(folder), str(tmp_path / "page.md")])
    of_sqlite, of_postgresql = (answers(index) for index in indexes)
    assert of_sqlite == of_postgresql
    assert of_sqlite['[[], "-started_utc"]'][0] == 25
    assert of_sqlite['[["p_core>450"], "-started_utc"]'][0] == 12
    assert everything(indexes[0]) == everything(indexes[1])
    assert answers(opened(empty, empty=True)) == of_sqlite
    (folder / "r01" / "record.json").unlink()
    assert listing(opened(empty, empty=True)).total == 24


def test_no_acknowledged_record_is_lost_when_writers_are_killed(empty, tmp_path):
    told = acknowledged(empty, tmp_path)
    index = Index(empty)
    found = listing(index, columns=["run_id", "p_core"])
    names = {row[0] for row in found.rows}
    assert names >= told
    assert len(names) == found.total
    assert {p_core for _, p_core in found.rows} == {464.57232729765695}


def test_a_server_answers_out_of_postgresql(empty, tmp_path):
    write(tmp_path / "a", document("a"))
    Index(empty).take([str(tmp_path / "a")])
    client = TestClient(create_app(Settings(store=empty)))
    client.app.state.serving.refresh()
    assert client.get("/health").json() == {"status": "ok", "runs": 1}
    for path in ("/", "/runs/a.html", "/cases/distilbert_sst2.html", "/runs.json"):
        assert client.get(path).status_code == 200
