"""Records of many kinds, made cheaply, and functions of tests of stores."""

from __future__ import annotations

import json
import multiprocessing
import signal
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any

from trainmark.record.figures import FIGURES
from trainmark.results.store.columns import COLUMNS
from trainmark.results.store.index import Index
from trainmark.results.store.query import list_runs

GOLDEN = Path(__file__).parents[1] / "golden" / "record_distilbert.json"


def make_document(run_id: str, **changes: Any) -> dict[str, Any]:
    """Return ``GOLDEN``, a stored record of ``distilbert_sst2``, as a document with another id.

    Args:
        changes: new values by the path of their keys, joined by ``__``; ``figures``: values by
            name, None for a figure that is not known.
    """
    document = json.loads(GOLDEN.read_text(encoding="utf-8"))
    # The order of the step times must differ from other records: a check calls a record with the
    # same sequence a copy. Only the first third of the measured steps is shuffled: medians hardly
    # change by it.
    steps = document["steps"]
    first, num_shuffled = steps["warmup"], (len(steps["time_ns"]) - steps["warmup"]) // 3
    times = steps["time_ns"][first : first + num_shuffled]
    Random(run_id).shuffle(times)
    steps["time_ns"][first : first + num_shuffled] = times
    figures = changes.pop("figures", {})
    for name, value in figures.items():
        entry = document["figures"].setdefault(name, {"unit": "", "reason": None, "note": None})
        entry["value"] = value
    for path, value in changes.items():
        parent = document
        *parent_keys, last_key = path.split("__")
        for key in parent_keys:
            parent = parent[key]
        parent[last_key] = value
    return document | {"run_id": run_id}


def write_record_file(folder: Path, document: dict[str, Any]) -> Path:
    """Write a record, as a document, into a run directory; return the directory.

    Who reads ``record.json`` meanwhile never sees a half-written one, as it gets its name at last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    staging = folder / ".staging"
    staging.write_text(json.dumps(document), encoding="utf-8")
    staging.rename(folder / "record.json")
    return folder


def add_records(where: str, folder: Path, name: str, count: int, written: Connection) -> None:
    """Write records and add them to an index one by one, sending the name of each that is in it.

    Args:
        where: the store, which has the index.
        folder: in the store, for the records.
        name: beginning of the names of the records.
        written: gets the names.
    """
    index = Index(where)
    for number in range(count):
        path = write_record_file(folder / f"{name}-{number}", make_document(f"{name}-{number}"))
        index.update([str(path.relative_to(where))])
        written.send(path.name)


def add_records_while_killing_writers(where: str, folder: Path, *, writers: int = 6) -> set[str]:
    """Let several writers add records at the same time; kill up to half of them at random moments.

    Return the names of the records that are in the index as their writers say.

    Args:
        where, folder: see ``add_records``.
    """
    random, context = Random(1), multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.store_bodies"])
    pipes, processes, names = {}, [], set()
    for number in range(writers):
        receiver, sender = context.Pipe(duplex=False)
        arguments = (where, folder, f"w{number}", 10, sender)
        processes.append(context.Process(target=add_records, args=arguments))
        processes[-1].start()
        sender.close()  # this process's end, so that the pipe ends when the writer does
        pipes[receiver] = processes[-1]
    # When so many records are in the index, a writer is killed: three times, before half of the
    # records (10 of each of 6 writers) are there.
    kill_at = sorted(random.sample(range(2, 30), writers // 2))
    while pipes:
        for pipe in wait(list(pipes)):
            try:
                names.add(pipe.recv())
            except EOFError:
                del pipes[pipe]
                continue
            if kill_at and len(names) >= kill_at[0]:
                kill_at.pop(0)
                random.choice(processes).kill()  # does nothing to one that has ended
    for process in processes:
        process.join()
    assert {process.exitcode for process in processes} == {0, -signal.SIGKILL}
    return names


def open_index(where: Path) -> Index:
    """Return the index of a store as its files are now."""
    index = Index(str(where))
    index.refresh()
    return index


def list_index_entries(index: Index) -> list[dict[str, Any]]:
    """Return the entries of an index, sorted by run, with most of their columns."""
    # ``COLUMNS``: those that are computed from a record. ``FIGURES``: names of its figures. The
    # last three are of the index alone: codes of the record's findings, its version of torch, and
    # its number of ranks. Further columns, such as the path of the record, are left out.
    columns = [*COLUMNS, *FIGURES, "notes", "torch", "world"]
    return list_runs(index, columns=columns, sort="run_id").as_dicts()
