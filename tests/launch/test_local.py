"""Commands and folders of local ranks; nothing is started here."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING

import pytest

from support.fakes import GOLDEN
from trainmark.errors import CaseError, DivergedError, EnvironmentFault, UsageError
from trainmark.launch import local, processes, run_dir
from trainmark.launch.processes import StopRequest
from trainmark.launch.run_dir import create_run_dir, lock_folder, record_failed_planning
from trainmark.plan.plan import Plan
from trainmark.plan.resolving import UnplannableError
from trainmark.record.messages import render

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def toy_plan() -> Plan:
    """Return the golden plan of the toy case, which runs on this machine's CPU."""
    return Plan.model_validate_json((GOLDEN / "plan_toy.json").read_bytes())


def test_folder_in_which_another_run_begins_is_refused(tmp_path: Path) -> None:
    """``lock_folder`` holds the folder as a run does that begins there.

    ``create_run_dir`` would give the folder to a second run, for as long as its block lasts.
    """
    with (
        lock_folder(tmp_path),
        pytest.raises(EnvironmentFault, match="another run uses the folder"),
        create_run_dir(tmp_path),
    ):
        raise AssertionError("the folder must not be given to a second run")


def test_folder_stays_unused_if_the_disk_is_full_before_a_run_begins(
    toy_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan still fits on the disk; the launcher's first event does not."""

    def fail_to_write(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_dir, "emit_launch", fail_to_write)
    with create_run_dir(tmp_path), pytest.raises(EnvironmentFault, match="No space left"):
        run_dir.begin_run(toy_plan, tmp_path, environment={})
    with create_run_dir(tmp_path):  # the next run may have the folder
        assert [path.name for path in tmp_path.iterdir()] == [run_dir.LOCK_FILE]


def test_rank_gets_its_number_in_the_environment(tmp_path: Path) -> None:
    """The second of two nodes (``node=1``) starts eight ranks, which print their variables.

    They would connect to the host "a" at port 29500 (``master``). No other variable is set for them
    (``environment``).
    """
    setup = local.Setup(nproc=8, variables=dict(os.environ), environment={})
    script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT"
    with (
        (tmp_path / "output").open("w+b") as output_file,
        local.start_ranks(
            ["sh", "-c", script],
            setup,
            output=output_file,
            errors=output_file,
            node=1,
            nnodes=2,
            master=("a", 29500),
        ) as ranks,
    ):
        while None in [rank.poll() for rank in ranks]:
            time.sleep(0.01)
    # Of 16 ranks the fourth on the second node: after 8 on the first node, rank 8 + 3.
    assert "11 16 3 8 a 29500" in (tmp_path / "output").read_text().splitlines()


@pytest.mark.parametrize("thread_count", ["0", "abc", "4,x"])
def test_invalid_thread_count_is_refused_before_anything_starts(
    toy_plan: Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, thread_count: str
) -> None:
    """``thread_count``: values of ``OMP_NUM_THREADS``, the threads of each rank.

    The variable has a number, or several with commas for nested work; each must be 1 at least.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", thread_count)
    run_dir = tmp_path / "run"
    plan = toy_plan.model_copy(update={"run_dir": str(run_dir)})
    with pytest.raises(UsageError) as refused:
        local.launch(plan, StopRequest())
    assert refused.value.what == f"OMP_NUM_THREADS={thread_count} is not valid"
    assert refused.value.rule  # which values are valid
    assert not run_dir.exists()


def test_use_by_others_is_busy_time_minus_that_of_our_processes() -> None:
    """A reading has three counters, which only grow: times in s of all cores together.

    ``busy_s``: in which they computed; ``total_s``: in which they could have; ``children_s``: of
    our own processes. In the last reading 1 s was busy, but our processes claim 2.
    """
    before = processes.CpuUse(busy_s=100.0, total_s=1000.0, children_s=5.0)
    later = processes.CpuUse(busy_s=112.0, total_s=1020.0, children_s=13.0)
    # Of 20 s of all cores 12 were busy, and our processes used 8 of these.
    assert before.compute_others_share(later) == (12.0 - 8.0) / 20.0
    assert before.compute_others_share(before) is None  # no time has passed
    # Counters of different resolution never give a share below nothing.
    use_of_ours = processes.CpuUse(busy_s=101.0, total_s=1020.0, children_s=7.0)
    assert before.compute_others_share(use_of_ours) == 0.0


def test_failed_planning_is_recorded_whatever_the_case_raised(
    toy_plan: Plan, tmp_path: Path
) -> None:
    """The case toy is pretended to raise an error in its function ``data_check``.

    ``UnplannableError`` holds the error and the plan as far as it was made; ``source`` is a place
    in the code of the case. The record names the function, and its text has the value NaN.
    """
    plan = toy_plan.model_copy(update={"run_dir": str(tmp_path / "run")})
    # Its message has a code of its own, and arguments but no text.
    error = DivergedError("loss_not_finite", value="nan", step=3)
    fault = CaseError(error, case="toy", place="data_check", source="data.py:1")
    record = record_failed_planning(UnplannableError(fault, plan))
    assert record.cause is not None
    assert record.cause.place == "data_check"
    assert "nan" in render(record.cause.message, "en")
