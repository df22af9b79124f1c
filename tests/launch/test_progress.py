"""What is shown of a run that is under way."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fakes import GOLDEN
from trainmark.launch import progress
from trainmark.launch.progress import Line, Progress
from trainmark.plan.plan import Plan
from trainmark.rank.events import EventWriter

if TYPE_CHECKING:
    from pathlib import Path

S = 10**9
FACTS: dict[str, Any] = {"device": {}, "steps_per_epoch": 8}
# Of two ranks; the other one has fewer samples in a step.
WINDOW: dict[str, Any] = {
    "phase": "train", "epoch": 0, "start_ns": 0, "end_ns": 2 * S, "step_ns": [S, S],
    "wait_ns": [0, 0], "loss": [0.5, 0.25], "samples": [16, 16], "step_samples": [28, 28],
    "sequences": 0, "tokens": 0, "tokens_padded": 0, "micro_batches": 2, "model_flops": None,
    "used_bytes": 2**30,
}  # fmt: skip


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    plan = Plan.model_validate_json((GOLDEN / "plan_toy.json").read_bytes())
    recipe = plan.recipe | {"max_epochs": 1, "max_steps": 5}
    changes = {"run_dir": str(tmp_path), "nproc": 2, "world_size": 2, "recipe": recipe}
    return plan.model_copy(update=changes)


def test_the_line_says_how_far_the_first_rank_is(plan: Plan, tmp_path: Path) -> None:
    shown = Progress(plan)
    assert shown.poll() == "starting ranks"
    events = EventWriter(tmp_path / "events.rank0.jsonl", lambda: 0)
    events.emit("start", pid=7)
    assert shown.poll() == "importing"
    events.emit("facts", **FACTS)
    assert shown.poll() == "first of 5 steps, limit 0:30:00"
    events.emit("window", **WINDOW)
    said = "epoch 1  loss 0.2500  28.0 samples/s  1.0 GiB"
    assert shown.poll() == f"step 2/5  about 0:00:03 left  {said}"
    events.emit("window", **WINDOW | {"loss": [0.5, None]})
    said = said.replace("loss 0.2500", "loss nan")
    assert shown.poll() == f"step 4/5  about 0:00:01 left  {said}"
    assert shown.beyond_limit == ""


def test_a_limit_that_the_matmul_rate_cannot_meet_is_told_before_the_first_step(
    plan: Plan, tmp_path: Path
) -> None:
    shown = Progress(plan)
    events = EventWriter(tmp_path / "events.rank0.jsonl", lambda: 0)
    events.emit("start", pid=7)
    events.emit("facts", **FACTS, step_flops=1e12, matmul_flops_per_second=1e9)
    assert shown.poll() == "first of 5 steps, limit 0:30:00"
    assert "all steps take about 1:23:20, and the limit is 0:30:00" in shown.beyond_limit


def test_the_estimate_reaches_to_the_next_evaluation(plan: Plan, tmp_path: Path) -> None:
    """Steps of a second with 32 samples each, 8 an epoch; evaluated after 100, 180, 260 … too."""
    recipe = plan.recipe | {
        "max_epochs": 10, "max_steps": None, "timeout_s": 600.0, "eval_every_epochs": 1,
        "eval_every_samples": 80, "eval_from_sample": 100,
    }  # fmt: skip
    shown = Progress(plan.model_copy(update={"recipe": recipe}))
    events = EventWriter(tmp_path / "events.rank0.jsonl", lambda: 0)
    events.emit("facts", **FACTS)
    for seconds in (1, 2, 2):
        events.emit("window", **WINDOW | {"step_samples": [32, 32]})
        assert f"  evaluation in 0:00:0{seconds}  about" in shown.poll()


def test_a_limit_before_the_end_is_told(plan: Plan, tmp_path: Path) -> None:
    """Steps of a second, 8 an epoch."""
    recipe = plan.recipe | {"max_epochs": 10, "max_steps": None, "timeout_s": 60.0}
    shown = Progress(plan.model_copy(update={"recipe": recipe}))
    events = EventWriter(tmp_path / "events.rank0.jsonl", lambda: 0)
    events.emit("start", pid=7)
    events.emit("facts", **FACTS)
    events.emit("window", **WINDOW)
    assert shown.poll().startswith("step 2/80  evaluation in 0:00:06  about 0:01:18 left  epoch 1")
    assert shown.beyond_limit == "", "two seconds of training tell too little"
    events.emit("window", **WINDOW)
    assert shown.poll().startswith(
        "step 4/80  evaluation in 0:00:04  about 0:01:16 left  limit in 0:00:58  epoch 1"
    )
    assert "0:00:58 and ends the run, unless the target is reached" in shown.beyond_limit


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_of_its_width(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((11, 5)))
    said = iter(["one\r", "one\r", "more than there is room for"])
    monkeypatch.setattr(Progress, "poll", lambda _: next(said))
    line = Line(plan, "a")
    line.show()
    line.show()  # nothing new: nothing written
    line.show()
    progress.end_line("end")
    assert terminal.getvalue() == "\ra: one\\u00\ra: more th\rend       \n"


def test_a_log_has_a_line_now_and_then(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Progress, "unstarted", False)
    times, said = iter([100.0, 109.9, 110.1]), iter(["one", "two", "three"])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    monkeypatch.setattr(Progress, "poll", lambda _: next(said))
    line = Line(plan, "a")
    for _ in range(3):
        line.show("RUNNING")
    assert capsys.readouterr().err == "a: RUNNING  one\na: RUNNING  three\n"
