"""The files beside a record: which they are, as they were written."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from fakes import GOLDEN, launch_event, rank_events, write_run
from trainmark.record import evidence, reduce

if TYPE_CHECKING:
    from pathlib import Path


def test_a_record_names_the_digests_of_files_that_it_leaves_as_they_are(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [launch_event(argv=["/home/x/run"])], rank_events())
    (folder / "plan.json").write_bytes((GOLDEN / "plan_toy.json").read_bytes())
    (folder / "events.copy.jsonl").write_text("")  # no run writes it
    (folder / "log.rank0.txt").write_text("output")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    built = reduce.reduce(folder)
    assert built.argv == ["/home/x/run"]
    assert [(entry.name, entry.sha256) for entry in built.evidence] == [
        (name, hashlib.sha256(before[name]).hexdigest())
        for name in ("events.launcher.jsonl", "events.rank0.jsonl", "plan.json")
    ]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in evidence.outputs(folder)] == [
        "events.copy.jsonl", "events.launcher.jsonl", "events.rank0.jsonl", "log.rank0.txt",
        "plan.json",
    ]  # fmt: skip
