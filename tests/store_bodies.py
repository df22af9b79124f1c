"""Records of many kinds, made cheaply, and what stores must answer about them."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from trainmark.errors import EnvironmentFault
from trainmark.library.selection import indexing
from trainmark.library.store import database
from trainmark.library.store.database import Database
from trainmark.library.store.index import Index
from trainmark.library.store.query import counts, listing
from trainmark.pages.exports.tables import COLUMNS
from trainmark.record.figures import FIGURES as SPECS

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).parent / "golden" / "record_distilbert.json"


def document(run_id: str, **changes: Any) -> dict[str, Any]:
    """Return a record as a document; ``figures`` are values by name, None: not known."""
    made = json.loads(GOLDEN.read_text(encoding="utf-8"))
    figures = changes.pop("figures", {})
    for name, value in figures.items():
        entry = made["figures"].setdefault(name, {"unit": "", "reason": None, "note": None})
        entry["value"] = value
    for path, value in changes.items():
        place = made
        *above, last = path.split("__")
        for key in above:
            place = place[key]
        place[last] = value
    return made | {"run_id": run_id}


def write(folder: Path, made: dict[str, Any]) -> Path:
    """Write a record into a run directory."""
    folder.mkdir(parents=True, exist_ok=True)
    staging = folder / ".staging"
    staging.write_text(json.dumps(made), encoding="utf-8")
    staging.rename(folder / "record.json")
    return folder


def add_records(where: str, folder: Path, name: str, count: int, told: Connection) -> None:
    """Write records and add them to an index one by one, telling each that is in it."""
    index = Index(Database(where))
    for number in range(count):
        path = write(folder / f"{name}-{number}", document(f"{name}-{number}"))
        index.take([str(path.relative_to(where) if index.database.folder else path)])
        told.send(path.name)


def acknowledged(where: str, folder: Path, *, seed: int, writers: int = 8) -> set[str]:
    """Let writers add records at once and kill half of them, one after another, anywhere.

    Return the names of the records that they were told are in the index.
    """
    random, context = Random(seed), multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["store_bodies"])
    pipes, processes, told = {}, [], set()
    for number in range(writers):
        ours, theirs = context.Pipe(duplex=False)
        words = (where, folder, f"s{seed}w{number}", 10, theirs)
        processes.append(context.Process(target=add_records, args=words))
        processes[-1].start()
        theirs.close()
        pipes[ours] = processes[-1]
    kill_at = sorted(random.sample(range(2, 40), writers // 2))
    while pipes:
        for pipe in wait(list(pipes)):
            try:
                told.add(pipe.recv())
            except EOFError:
                del pipes[pipe]
                continue
            if kill_at and len(told) >= kill_at[0]:
                kill_at.pop(0)
                random.choice(processes).kill()
    for process in processes:
        process.join()
    assert {process.exitcode for process in processes} == {0, -signal.SIGKILL}
    return told


def everything(opened: Database) -> list[dict[str, Any]]:
    """Return all that an index says of its runs but for their paths."""
    columns = [*COLUMNS, *SPECS, "label", "note", "step_times", "losses", "env.torch", "world"]
    return listing(opened, columns=columns, sort="run_id").documents()


LATER = """
from alembic import op
import sqlalchemy as sa

revision, down_revision = "0003", "0002"


def upgrade():
    with op.batch_alter_table("runs") as table:
        table.add_column(sa.Column("remark", sa.Text()))
    op.execute("UPDATE runs SET remark = 'from ' || kind")
"""


def with_a_later_schema(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the program be one whose index has one revision more."""
    shutil.copytree(database._MIGRATIONS, folder / "migrations")
    (folder / "migrations" / "versions" / "0003_later.py").write_text(LATER)
    monkeypatch.setattr(database, "_MIGRATIONS", folder / "migrations")
    monkeypatch.setattr(database, "HEAD", "0003")


def migrated_with_one_command(
    url: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Callable[..., tuple[int, str, str]],
) -> bool:
    """Refuse a database of an older version, migrate it, and find its record again."""
    write(folder / "a", document("a"))
    indexing.add(Index(Database(url)), [str(folder / "a")])
    with_a_later_schema(monkeypatch, folder)
    with pytest.raises(EnvironmentFault, match="results migrate"):
        Database(url)
    assert cli("results", "migrate", "--store", url)[0] == 0
    found = Database(url)
    assert listing(found, columns=["run_id", "p_core"]).rows == [["a", 464.57232729765695]]
    return remarks(found) == ["from record"]


def remarks(opened: Database) -> list[str]:
    with opened.reading() as connection:
        return list(connection.exec_driver_sql("SELECT remark FROM runs ORDER BY id").scalars())


def questions(opened: Database) -> dict[str, Any]:
    """Return what a store of ``run-0`` … answers about pages, groups and counts."""
    of = {
        "a page of a list": listing(opened, columns=["run_id"], limit=2, offset=3),
        "a page beyond the end": listing(opened, columns=["run_id"], limit=2, offset=8),
        "the best of each case": listing(
            opened, ["status=passed"], columns=["case", "run_id"], sort="-p_core", first_of=["case"]
        ),
    }
    found = listing(opened, ["text~GPT"], columns=["run_id"], sort="-started")
    return {name: (one.total, one.rows) for name, one in of.items()} | {
        "how many of each": counts(opened, ["case", "status"]),
        "how many of some": counts(opened, ["status"], ["case=gpt"]),
        "found by text": found.rows,
    }
