"""Uploads: permissions, refusals with their status, and the files left on disk."""

from __future__ import annotations

import errno
import shutil
from hashlib import sha256

import pytest
from starlette.testclient import TestClient

from support.bundles import write_bundle, write_recorded_run
from trainmark.errors import EnvironmentFault
from trainmark.results import bundle
from trainmark.server import serving, uploads
from trainmark.server.app import create_app
from trainmark.server.serving import Tokens

ZIP = {"Content-Type": "application/zip"}


@pytest.fixture
def store(tmp_path):
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def start_client(store):
    """Return a function that makes a client of a server of ``store``, with these settings."""

    def make(**settings):
        return TestClient(create_app(str(store), **settings))

    return make


@pytest.fixture
def send_file(store):
    """Return a function that sends a file with a valid token and returns the answer.

    Its arguments are a client of the server, the file, and ``headers``, which replace those of a
    usual upload. ``ZIP`` has the content type of a bundle; "lab" is the name of the token.
    """
    secret = Tokens(store).create("lab")

    def send_bundle(client, file, **headers):
        headers = ZIP | {"Authorization": f"Bearer {secret}"} | headers
        return client.post("/api/runs", content=file.read_bytes(), headers=headers)

    return send_bundle


def list_files_left(store):
    return list((store / ".serve" / "incoming").iterdir())


def list_run_ids(client):
    client.app.state.serving.refresh()
    return sorted(run["run_id"] for run in client.get("/runs.json").json()["runs"])


def test_bundle_is_stored_once_under_its_digest(store, start_client, send_file, tmp_path):
    # The bundle has one run with the id a-1, in its folder 1-toy. ``list_files_left``: what is left
    # in the folder that receives uploads.
    client, file = start_client(), write_bundle(tmp_path, "a-1")
    first, second = send_file(client, file), send_file(client, file)
    digest = sha256(file.read_bytes()).hexdigest()
    assert (first.status_code, second.status_code) == (201, 200)  # created, then known
    expected = {"digest": digest, "runs": [{"run_id": "a-1", "page": "/runs/a-1.html"}]}
    assert first.json() == second.json() == expected
    assert first.headers["location"] == "/runs/a-1.html"
    assert (store / digest / "1-toy" / "record.json").exists()
    assert list_run_ids(client) == ["a-1"]
    assert client.get("/runs/a-1.html").status_code == 200
    assert list_files_left(store) == []
    # Who deletes the folder deletes the run.
    shutil.rmtree(store / digest)
    assert list_run_ids(client) == []


def test_existing_run_is_not_replaced(store, start_client, send_file, tmp_path):
    client = start_client()
    assert send_file(client, write_bundle(tmp_path, "a-1")).status_code == 201
    (path,) = store.glob("*/1-toy/record.json")
    first_record = path.read_bytes()
    # A bundle of two runs: b-1, and one with the same id a-1 that started a second later.
    both = write_bundle(tmp_path, "b-1", "a-1", name="both", started="2026-01-02T03:04:06+00:00")
    answer = send_file(client, both)
    assert (answer.status_code, answer.json()["error"]["where"]) == (409, "a-1")
    stored = {path: path.read_bytes() for path in store.rglob("record.json")}
    assert stored == {path: first_record}
    # ``list_files_left``: what is left in the folder that receives uploads.
    # The other run of that bundle was not stored either.
    assert (list_run_ids(client), list_files_left(store)) == (["a-1"], [])
    write_recorded_run(store / "own", "own-1")  # a run that was not uploaded
    assert list_run_ids(client) == ["a-1", "own-1"]


def test_run_of_a_bundle_that_is_not_indexed_yet_is_refused(
    start_client, send_file, tmp_path, monkeypatch
):
    # ``write_bundle`` writes a bundle of runs with these ids, and ``send_file`` uploads it. Status
    # 201: stored; 409: a run of this id is known already.
    client = start_client()
    # As if the request of the first bundle waited to update index and site.
    monkeypatch.setattr(client.app.state.serving, "refresh", lambda: None)
    assert send_file(client, write_bundle(tmp_path, "a-1")).status_code == 201
    # A bundle of two runs: b-1, and one with the same id a-1 that started a second later.
    both = write_bundle(tmp_path, "b-1", "a-1", name="both", started="2026-01-02T03:04:06+00:00")
    answer = send_file(client, both)
    assert (answer.status_code, answer.json()["error"]["where"]) == (409, "a-1")


def test_a_bundle_that_does_not_verify_is_refused(store, start_client, send_file, tmp_path):
    # The bundle has one run, with the id a-1. Status 422: the server understands the upload, but
    # does not accept it. ``list_files_left``: what is left in the folder that receives uploads.
    client, file = start_client(), write_bundle(tmp_path, "a-1")
    content = bytearray(file.read_bytes())
    content[200] ^= 1  # a bit of a file in it: byte 200 of the bundle is in the first one
    file.write_bytes(content)
    answer = send_file(client, file)
    assert answer.status_code == 422
    assert str(store) not in answer.text
    assert list_files_left(store) == []


def test_run_whose_id_is_not_a_file_name_has_a_page(start_client, send_file, tmp_path):
    # A run is a list of its launches, here one with the id a/../b. The server writes a page for it,
    # in a file whose name it makes of the id.
    launches = [write_recorded_run(tmp_path / "run", "a/../b")]
    bundle.pack(runs=[launches], output=tmp_path / "a.trainmark.zip")
    client = start_client()
    (run,) = send_file(client, tmp_path / "a.trainmark.zip").json()["runs"]
    assert run["run_id"] == "a/../b"
    assert ".." not in run["page"]
    assert client.get(run["page"]).status_code == 200


def test_file_that_is_not_a_bundle_is_refused_and_leaves_no_file(
    store, start_client, send_file, tmp_path
):
    # ``list_files_left``: what is left in the folder that receives uploads. The largest upload may
    # have 1000 bytes. Status 413: too large; 415: of a wrong type; 422: not a bundle that can be
    # verified.
    client, file = start_client(max_upload_bytes=1000), tmp_path / "file"
    file.write_bytes(b"x" * 1001)
    large = send_file(client, file)
    assert large.status_code == 413
    chunks = iter([b"x" * 600] * 2)  # no Content-Length
    headers = {name: large.request.headers[name] for name in ("authorization", "content-type")}
    assert client.post("/api/runs", content=chunks, headers=headers).status_code == 413
    file.write_bytes(b"x" * 1000)
    # As large as allowed, but of another type; then of the right type, but not a bundle.
    assert send_file(client, file, **{"Content-Type": "text/html"}).status_code == 415
    assert send_file(client, file).status_code == 422
    assert list_files_left(store) == []


def test_upload_without_a_valid_token_is_refused(start_client, tmp_path):
    # The headers ``ZIP`` have the content type of a bundle. "x" is no token of the server.
    client, file = start_client(), write_bundle(tmp_path, "a-1")
    for headers in ({}, {"Authorization": "Bearer x"}):
        answer = client.post("/api/runs", content=file.read_bytes(), headers=ZIP | headers)
        # Closed, because the content is not read.
        assert (answer.status_code, answer.headers["connection"]) == (401, "close")


def test_a_store_that_cannot_be_written_is_not_served(store, tmp_path, monkeypatch):
    # Without its folder of states, the store cannot be written, not even by root.
    monkeypatch.setattr(serving, "create_state_folder", lambda _: tmp_path / "none")
    with pytest.raises(EnvironmentFault, match="cannot write"):
        create_app(str(store))


def test_full_disk_is_reported_and_leaves_no_file(
    store, start_client, send_file, tmp_path, monkeypatch
):
    # The bundle has one run. Status 507: the server has no space. ``list_files_left``: what is left
    # in the folder that receives uploads.
    def raise_disk_full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    client, file = start_client(), write_bundle(tmp_path, "a-1")
    monkeypatch.setattr(uploads, "_verify_bundle", raise_disk_full)  # which unpacks the bundle
    assert send_file(client, file).status_code == 507
    assert list_files_left(store) == []
