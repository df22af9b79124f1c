"""A store of three runs, and clients of servers of it."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from support.store_bodies import make_document, write_record_file
from trainmark.server.app import create_app


@pytest.fixture
def runs(tmp_path):
    """Return a store of three runs, a, b and c: c is the newest and the fastest.

    ``p_core`` is their rate in samples per second: 100, 200 and 300.
    """
    folder = tmp_path / "runs"
    for day, name in enumerate("abc", start=1):
        figures = {"p_core": 100.0 * day}
        document = make_document(name, started=f"2026-11-0{day}T08:00:00+00:00", figures=figures)
        write_record_file(folder / name, document)
    return folder


@pytest.fixture
def start_client(runs):
    """Return a function that makes a client of a server of the store, with its site written.

    Its ``settings`` are those of ``create_app``: limits such as ``max_upload_bytes``.
    """

    def make(**settings):
        app = create_app(str(runs), **settings)
        app.state.serving.refresh()
        return TestClient(app, raise_server_exceptions=False)  # an error is answered with 500

    return make
