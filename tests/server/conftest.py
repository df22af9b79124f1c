"""A store of three runs, and clients of servers of it."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from store_bodies import document, write
from trainmark.server import serving
from trainmark.server.app import create_app
from trainmark.server.settings import Settings


@pytest.fixture
def runs(tmp_path):
    """A store of three runs, the newest the fastest."""
    folder = tmp_path / "runs"
    for day, name in enumerate("abc", start=1):
        figures = {"p_core": 100.0 * day}
        made = document(name, started=f"2026-11-0{day}T08:00:00+00:00", figures=figures)
        write(folder / name, made)
    return folder


@pytest.fixture
def served(runs, monkeypatch):
    """Return a client of a server of that store with given settings.

    It looks at its folder at each request, which waits for that.
    """
    monkeypatch.setattr(serving, "_PATIENCE_S", 60.0)

    def make(**settings):
        asked = {"store": str(runs), "refresh_s": 0.0, **settings}
        return TestClient(create_app(Settings(**asked)), raise_server_exceptions=False)

    return make


@pytest.fixture
def client(served):
    """Return a client of a server as it is without options."""
    return served()
