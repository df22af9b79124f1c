"""Uploads: who may, what is refused and with which status, what is on the disk afterwards."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256

import pytest
from fastapi.testclient import TestClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from bundles import packed, recorded
from trainmark.errors import UsageError
from trainmark.library import bundle
from trainmark.server import intake
from trainmark.server.app import create_app
from trainmark.server.examining import examined
from trainmark.server.refused import Refused
from trainmark.server.settings import Settings
from trainmark.server.tokens import Tokens
from trainmark.server.uploads import Uploads

ZIP = {"Content-Type": "application/zip"}


@pytest.fixture
def store(tmp_path):
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def served(store):
    """Start servers of the store, each in its place of the former."""
    clients = []

    def start(**settings):
        app = create_app(Settings(store=str(store), refresh_s=0.0, rate=0.0, **settings))
        clients.append(TestClient(app))
        return clients[-1].__enter__()

    yield start
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def sent(store):
    """Send a file with a token that may, and return the answer."""
    secret = Tokens(store).make("lab", ["upload"])

    def send(client, file, **headers):
        told = ZIP | {"Authorization": f"Bearer {secret}"} | headers
        return client.post("/api/runs", content=file.read_bytes(), headers=told)

    return send


def changes(store, *keys):
    lines = (store / ".serve" / "changes.jsonl").read_text().splitlines()
    return [tuple(json.loads(line).get(key) for key in keys) for line in lines]


def left(store):
    return list((store / ".serve" / "incoming").iterdir())


def listed(client):
    client.app.state.serving.refresh()
    return sorted(run["run_id"] for run in client.get("/api/runs").json()["runs"])


def test_a_bundle_is_stored_under_the_digest_of_its_bytes_and_listed(store, served, sent, tmp_path):
    client, file = served(), packed(tmp_path, "a-1")
    answer = sent(client, file)
    digest = sha256(file.read_bytes()).hexdigest()
    assert answer.status_code == 201
    assert answer.json() == {"digest": digest, "runs": [{"run_id": "a-1", "page": "/runs/a-1"}]}
    assert answer.headers["location"] == "/runs/a-1"
    assert (store / digest / "bundle.trainmark.zip").read_bytes() == file.read_bytes()
    assert (store / digest / "1-toy" / "record.json").exists()
    assert listed(client) == ["a-1"]
    assert client.get("/api/runs/a-1/bundle").content == file.read_bytes()
    assert left(store) == []
    assert changes(store, "action", "result", "token", "digest") == [
        ("make token", "made", "lab", None),
        ("upload", "storing", "lab", digest),
        ("upload", "stored", "lab", digest),
    ]


def test_the_same_bundle_again_is_the_same_answer_and_stored_once(store, served, sent, tmp_path):
    client, file = served(), packed(tmp_path, "a-1")
    first, second = sent(client, file), sent(client, file)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert listed(client) == ["a-1"]


def test_a_run_that_another_bundle_brought_is_listed_once(store, served, sent, tmp_path):
    client = served()
    assert sent(client, packed(tmp_path, "a-1")).status_code == 201
    both = packed(tmp_path, "a-1", "b-1", name="both")
    assert sent(client, both).status_code == 201
    assert [run["run_id"] for run in sent(client, both).json()["runs"]] == ["a-1", "b-1"]
    assert listed(client) == ["a-1", "b-1"]
    assert client.get("/api/runs/b-1/bundle").content == both.read_bytes()


def test_uploads_are_counted_by_what_came_of_them(served, sent, tmp_path):
    client, file = served(), packed(tmp_path, "a-1")
    sent(client, file)
    sent(client, file)
    sent(client, file, **{"Content-Type": "text/plain"})
    sent(client, file, Authorization="Bearer trainmark_0")
    families = text_string_to_metric_families(client.get("/metrics").text)
    uploads = next(x for x in families if x.name == "trainmark_uploads").samples
    counts = {x.labels["outcome"]: x.value for x in uploads if x.name.endswith("_total")}
    assert counts == {"stored": 1, "known": 1, "refused": 2}


def test_a_run_with_other_content_is_refused_and_the_first_one_stays(store, served, sent, tmp_path):
    client, file = served(), packed(tmp_path, "a-1")
    sent(client, file)
    other = packed(tmp_path, "a-1", name="other", started="2026-01-02T03:04:06+00:00")
    answer = sent(client, other)
    assert (answer.status_code, answer.json()["error"]["where"]) == (409, "a-1")
    assert client.get("/api/runs/a-1/bundle").content == file.read_bytes()
    assert len([path for path in store.iterdir() if len(path.name) == 64]) == 1
    assert changes(store, "result", "status")[-1] == ("refused", 409)


def test_a_run_of_the_stores_own_is_not_stored_again(store, served, sent, tmp_path):
    run = recorded(store / "own", "own-1")
    bundle.pack([[run]], tmp_path / "own.trainmark.zip")
    client = served()
    assert listed(client) == ["own-1"]
    answer = sent(client, tmp_path / "own.trainmark.zip")
    assert (answer.status_code, answer.json()["runs"][0]["run_id"]) == (200, "own-1")
    assert client.get("/api/runs/own-1/bundle").status_code == 404


def test_the_bundle_of_an_id_is_the_one_that_brought_its_newest_run(store, served, sent, tmp_path):
    client, file = served(), packed(tmp_path, "a-1")
    sent(client, file)
    recorded(store / "older", "a-1", started="2025-01-02T03:04:05+00:00")
    assert listed(client) == ["a-1", "a-1"]
    assert client.get("/api/runs/a-1/bundle").content == file.read_bytes()
    recorded(store / "newer", "a-1", started="2027-01-02T03:04:05+00:00")
    assert listed(client) == ["a-1", "a-1", "a-1"]
    assert client.get("/api/runs/a-1/bundle").status_code == 404
    assert "/api/runs/a-1/bundle" not in client.get("/runs/a-1").text


def test_the_launches_of_a_repeated_run_are_all_listed(store, served, sent, tmp_path):
    runs = [recorded(tmp_path / f"r{n}", f"a-r{n}") for n in (1, 2)]
    bundle.pack([runs], tmp_path / "a.trainmark.zip")
    client = served()
    assert sent(client, tmp_path / "a.trainmark.zip").status_code == 201
    assert listed(client) == listed(client) == ["a-r1", "a-r2"]  # also after the folder is followed


def test_one_changed_byte_is_refused_by_the_name_of_the_check(store, served, sent, tmp_path):
    file = packed(tmp_path, "a-1")
    content = bytearray(file.read_bytes())
    content[200] ^= 1
    file.write_bytes(content)
    answer = sent(served(), file)
    assert answer.status_code == 422
    assert [check["name"] for check in answer.json()["checks"]] == ["archive"]
    assert str(store) not in answer.text
    assert left(store) == []
    assert changes(store, "token", "result", "status")[-1] == ("lab", "refused", 422)


def test_a_bundle_that_its_evidence_contradicts_is_refused(
    store, served, sent, tmp_path, monkeypatch
):
    run = recorded(tmp_path / "run", "a-1")
    told = json.loads((run / "record.json").read_bytes())
    told["figures"]["p_core"]["value"] *= 2
    (run / "record.json").write_text(json.dumps(told))
    monkeypatch.setattr("trainmark.library.bundle.packing.verify", lambda *_: [])
    bundle.pack([[run]], tmp_path / "a.trainmark.zip")
    answer = sent(served(), tmp_path / "a.trainmark.zip")
    assert answer.status_code == 422
    assert {check["name"] for check in answer.json()["checks"]} == {"record"}
    assert answer.json()["checks"][0]["said"][0]["code"] == "evidence_disagrees"


@pytest.mark.parametrize("run_ids", [("a/../b",), ("<script>alert(1)</script>",), ("a-1", "a-1")])
def test_an_id_that_is_no_name_of_one_page_is_refused(served, sent, tmp_path, run_ids):
    runs = [[recorded(tmp_path / f"run{n}", name)] for n, name in enumerate(run_ids)]
    bundle.pack(runs, tmp_path / "a.trainmark.zip")
    assert sent(served(), tmp_path / "a.trainmark.zip").status_code == 422


def test_what_is_no_bundle_is_refused_without_a_trace_of_it(store, served, sent, tmp_path):
    client, file = served(max_upload_bytes=1000), tmp_path / "file"
    file.write_bytes(b"x" * 1001)
    assert sent(client, file).status_code == 413
    chunks = iter([b"x" * 600] * 2)  # no Content-Length
    headers = dict(sent(client, file).request.headers) | {"content-length": ""}
    del headers["content-length"]
    assert client.post("/api/runs", content=chunks, headers=headers).status_code == 413
    file.write_bytes(b"x" * 1000)
    assert sent(client, file, **{"Content-Type": "text/html"}).status_code == 415
    assert sent(client, file).status_code == 422
    file.write_bytes(b"")
    assert sent(client, file).status_code == 422
    assert left(store) == []
    assert [status for (status,) in changes(store, "status")[1:]] == [413, 413, 413, 415, 422, 422]


def test_who_has_no_token_for_it_is_refused(store, served, tmp_path):
    client, file = served(), packed(tmp_path, "a-1")
    reader = Tokens(store).make("reader", ["read"])
    told = {"Authorization": f"Bearer {reader}"}
    answers = [
        client.post("/api/runs", content=file.read_bytes(), headers=ZIP | headers)
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic x"}, told)
    ]
    assert [answer.status_code for answer in answers] == [401, 401, 401, 403]
    assert all("WWW-Authenticate" in answer.headers for answer in answers)
    assert not (store / ".serve" / "incoming").exists()
    assert changes(store, "token", "result", "status")[1:] == [("reader", "refused", 403)]


def test_a_token_that_is_revoked_while_the_bundle_comes_stores_nothing(
    store, served, sent, tmp_path, monkeypatch
):
    received = Uploads._received

    async def slow(*asked):
        digest = await received(*asked)
        Tokens(store).revoke("lab")
        return digest

    monkeypatch.setattr(Uploads, "_received", slow)
    client = served()
    assert sent(client, packed(tmp_path, "a-1")).status_code == 401
    assert (listed(client), left(store)) == ([], [])


@pytest.mark.parametrize("removed", ["1-toy", "1-toy/record.json", "upload.json", "2-toy"])
def test_what_somebody_removed_of_an_upload_is_there_again_once_it_is_sent_again(
    store, served, sent, tmp_path, removed
):
    client, file = served(), packed(tmp_path, "a-1", "b-1")
    digest = sent(client, file).json()["digest"]
    place = store / digest / removed
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    assert sent(client, file).status_code == (200 if removed == "upload.json" else 201)
    assert listed(client) == ["a-1", "b-1"]
    assert sent(client, file).status_code == 200
    assert left(store) == []


def test_a_run_of_two_bundles_is_there_again_once_the_one_that_stayed_is_sent_again(
    store, served, sent, tmp_path
):
    client, both = served(), packed(tmp_path, "a-1", "b-1", name="both")
    first = sent(client, packed(tmp_path, "a-1")).json()["digest"]
    sent(client, both)
    shutil.rmtree(store / first)
    assert listed(client) == ["b-1"]
    assert sent(client, both).status_code == 201
    assert listed(client) == ["a-1", "b-1"]
    assert client.get("/api/runs/a-1/bundle").content == both.read_bytes()
    assert sent(client, both).status_code == 200


def test_an_upload_in_part_does_not_take_the_place_of_a_run_with_other_content(
    store, served, sent, tmp_path
):
    client, file = served(), packed(tmp_path, "a-1", "b-1")
    digest = sent(client, file).json()["digest"]
    for place in ("1-toy", "2-toy"):
        shutil.rmtree(store / digest / place)
    recorded(store / "own", "a-1", started="2026-01-02T03:04:06+00:00")
    assert listed(client) == ["a-1"]
    answer = sent(client, file)
    assert (answer.status_code, answer.json()["error"]["where"]) == (409, "a-1")
    assert listed(client) == ["a-1"]


def test_a_verification_that_takes_too_long_is_ended(tmp_path):
    packed(tmp_path, "a-1").rename(tmp_path / "bundle.trainmark.zip")
    with pytest.raises(Refused) as found:
        examined(tmp_path, most_s=0.001)
    assert found.value.status == 422


def test_a_data_folder_within_the_stores_is_refused(store):
    with pytest.raises(UsageError):
        create_app(Settings(store=str(store), data=store / "uploads"))


def test_a_full_disk_is_said_and_leaves_nothing(store, served, sent, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    client, file = served(), packed(tmp_path, "a-1")
    monkeypatch.setattr(intake, "examined", full)
    assert sent(client, file).status_code == 507
    assert left(store) == []


def test_more_uploads_than_there_is_room_for_are_sent_away(store, served, sent, tmp_path):
    client, file = served(), packed(tmp_path, "a-1")
    client.app.state.uploads._under_way = 8
    answer = sent(client, file)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    client.app.state.uploads._under_way = 0
    assert sent(client, file).status_code == 201


class Killed(BaseException):
    """What ends an upload at once."""


def cut_off(client, file, monkeypatch, where):
    """Take a bundle in until ``where`` is called; return its digest."""

    def killed(*_):
        raise Killed

    shelf, digest = client.app.state.uploads.intake, sha256(file.read_bytes()).hexdigest()
    staged = shelf.stage()
    (staged.folder / "bundle.trainmark.zip").write_bytes(file.read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(where, killed)
        with pytest.raises(Killed):
            shelf.take(staged, digest, "lab")
    return digest


def test_an_upload_that_was_stored_and_not_indexed_is_indexed_at_the_next_start(
    store, served, sent, tmp_path, monkeypatch
):
    file = packed(tmp_path, "a-1")
    digest = cut_off(served(), file, monkeypatch, "trainmark.server.intake.Intake._complete")
    assert (store / digest).exists()
    again = served()
    assert changes(store, "result", "token", "digest")[-1] == ("stored", "lab", digest)
    assert listed(again) == ["a-1"]
    assert sent(again, file).status_code == 200


def test_an_upload_that_was_cut_off_before_it_was_stored_leaves_nothing(
    store, served, sent, tmp_path, monkeypatch
):
    file = packed(tmp_path, "a-1")
    cut_off(served(), file, monkeypatch, "pathlib.Path.rename")
    (store / ".serve" / "incoming" / "0123456789abcdef").mkdir()  # as a killed server leaves
    again = served()
    assert left(store) == []
    assert changes(store, "result")[-1] == ("cut off",)
    assert listed(again) == []
    assert sent(again, file).status_code == 201


def test_what_another_server_receives_now_is_not_removed(store, served):
    staged = served().app.state.uploads.intake.stage()
    served()
    assert left(store) == [staged.folder]
    staged.remove()
    assert left(store) == []


def test_uploads_go_into_a_database_by_url_as_well(tmp_path, served, sent, store):
    client = served(data=tmp_path / "data")
    secret = Tokens(tmp_path / "data").make("lab", ["upload"])
    file = packed(tmp_path, "a-1")
    answer = sent(client, file, Authorization=f"Bearer {secret}")
    assert answer.status_code == 201
    url = f"sqlite:///{tmp_path}/index.sqlite"
    app = create_app(Settings(store=url, data=tmp_path / "data", rate=0.0))
    with TestClient(app) as other:
        second = packed(tmp_path, "b-1")
        assert sent(other, second, Authorization=f"Bearer {secret}").status_code == 201
        # The first one as well: an index that lost it, as with the power, has it again.
        assert listed(other) == ["a-1", "b-1"]
        assert other.get("/api/runs/b-1/bundle").content == second.read_bytes()
        shutil.rmtree(tmp_path / "data" / sha256(second.read_bytes()).hexdigest())
        assert listed(other) == ["a-1"]


def test_a_server_without_a_folder_takes_no_uploads(tmp_path):
    app = create_app(Settings(store=f"sqlite:///{tmp_path}/index.sqlite", rate=0.0))
    with TestClient(app) as client:
        assert client.post("/api/runs", content=b"", headers=ZIP).status_code == 403
        assert client.get("/api/runs/a-1/bundle").status_code == 404
