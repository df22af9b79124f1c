"""Several processes write to one index, and some of them are killed."""

from __future__ import annotations

import os
import shutil

import pytest

from store_bodies import acknowledged, document, everything, write
from trainmark.library.store.database import Database
from trainmark.library.store.index import Index
from trainmark.library.store.query import listing, unread


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_acknowledged_record_is_lost_when_writers_are_killed(tmp_path, seed):
    told = acknowledged(str(tmp_path), tmp_path, seed=seed)
    index = Index(Database(str(tmp_path)))
    with index.database.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
    found = listing(index.database, columns=["run_id", "p_core", "label", "losses"])
    assert {row[0] for row in found.rows} >= told
    assert len(told) >= 40  # of the writers that nobody killed
    assert len({row[0] for row in found.rows}) == found.total
    # All of a record is there, also where its writer was killed at once after it.
    assert {(p_core, len(labels), len(losses)) for _, p_core, labels, losses in found.rows} == {
        (464.57232729765695, 2, 32)
    }
    index.refresh()
    followed = everything(index.database)
    assert {run["run_id"] for run in followed} == {
        path.name for path in tmp_path.iterdir() if (path / "record.json").exists()
    }
    index.refresh(everything=True)
    assert everything(index.database) == followed
    shutil.rmtree(tmp_path / ".index")
    anew = Index(Database(str(tmp_path)))
    anew.refresh()
    assert everything(anew.database) == followed
    assert unread(anew.database) == []


def test_a_transaction_that_fails_leaves_nothing_and_later_ones_work(tmp_path, monkeypatch):
    index = Index(Database(str(tmp_path)))
    write(tmp_path / "a", document("a"))

    def full(*_, **__):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr("trainmark.library.store.index.to_json", full)
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "record.json").write_text("{}")
        with pytest.raises(OSError, match="No space"):
            index.refresh()
    assert listing(index.database).total == 0
    index.refresh()
    found = listing(index.database, columns=["run_id", "env.torch", "p_core"])
    assert found.rows == [["a", "2.13.0+cu130", 464.57232729765695]]
    assert [path for path, _, _ in unread(index.database)] == [str(tmp_path / "b")]
