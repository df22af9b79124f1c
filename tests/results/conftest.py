"""A run that passed, as a launcher leaves it, and the bundle of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.fakes import GOLDEN, S, launch_event, make_event, rank_events, write_run
from trainmark.record import record, reduce
from trainmark.results import bundle

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return the directory of a run that passed, with its record and a log."""
    # The only rank's events, of 16 steps, end at 12 s; ``S`` is a second in nanoseconds. The plan
    # is a stored one of the toy case.
    folder = tmp_path / "run"
    ranks_ended = make_event("ranks_ended", 13 * S, failures=[])
    write_run(folder, [launch_event(), ranks_ended], rank_events())
    (folder / "plan.json").write_bytes((GOLDEN / "plan_toy.json").read_bytes())
    (folder / "log.rank0.txt").write_text("step 1\n")
    record.write_record(reduce.reduce(folder), folder)
    return folder


@pytest.fixture
def bundle_path(run_dir: Path, tmp_path: Path) -> Path:
    """Return the path of a bundle of ``run_dir``, which is in its folder ``1-toy``."""
    path = tmp_path / "run.trainmark.zip"
    bundle.pack([[run_dir]], path)  # one run, with one launch
    return path
