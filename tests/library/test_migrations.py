"""The schema: as declared, brought up to date from an older one, and made once by many at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from store_bodies import document, migrated_with_one_command, remarks, with_a_later_schema, write
from trainmark.library.store import database
from trainmark.library.store.database import Database
from trainmark.library.store.index import Index
from trainmark.library.store.query import listing
from trainmark.library.store.tables import HEAD, METADATA, RUNS
from trainmark.pages.exports.tables import COLUMNS


def test_an_index_has_the_tables_that_are_declared(tmp_path):
    with Database(str(tmp_path)).reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    assert set(COLUMNS) <= set(RUNS.c.keys())
    config = Config()
    config.set_main_option("script_location", str(database._MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_an_index_of_a_folder_brings_itself_up_to_date(tmp_path, monkeypatch):
    write(tmp_path / "runs" / "a", document("a"))
    Index(Database(str(tmp_path / "runs"))).refresh()
    with_a_later_schema(monkeypatch, tmp_path)
    found = Database(str(tmp_path / "runs"))
    assert remarks(found) == ["from record"]
    assert listing(found, columns=["run_id", "p_core"]).rows == [["a", 464.57232729765695]]


def test_a_database_by_url_is_migrated_with_one_command(tmp_path, monkeypatch, cli):
    url = f"sqlite:///{tmp_path / 'team.db'}"
    assert migrated_with_one_command(url, tmp_path, monkeypatch, cli)


def test_many_may_open_a_new_index_at_once(tmp_path):
    code = f"from trainmark.library.store.database import Database; Database({str(tmp_path)!r})"
    words = [sys.executable, "-c", code]
    opened = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    assert [(process.communicate()[1], process.returncode) for process in opened] == [("", 0)] * 6
    assert Path(tmp_path, ".index", "results.sqlite").exists()
