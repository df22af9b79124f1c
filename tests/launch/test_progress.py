"""Progress shown during a run."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import GOLDEN
from trainmark.events.schema import EventWriter
from trainmark.launch import progress
from trainmark.launch.progress import ProgressLine, ProgressPart, RunProgress, fit_line
from trainmark.plan.plan import Plan
from trainmark.plan.witness import StepWork, Witness, WitnessSpec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

S = 10**9  # nanoseconds
FACTS: dict[str, Any] = {"device": {}, "steps_per_epoch": 8}
# Of the first of two ranks: two steps of a second, each with 16 samples here and 28 on both ranks.
WINDOW: dict[str, Any] = {
    "phase": "train",
    "epoch": 0,
    "start_ns": 0,
    "end_ns": 2 * S,
    "step_ns": [S, S],
    "wait_ns": [0, 0],
    "loss": [0.5, 0.25],
    "samples": [16, 16],
    "step_samples": [28, 28],
    "sequences": 0,
    "tokens": 0,
    "tokens_padded": 0,
    "micro_batches": 2,
    "model_flops": None,
    "used_bytes": 2**30,
}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Return the plan of a run without a target: five steps of two ranks."""
    plan = Plan.model_validate_json((GOLDEN / "plan_toy.json").read_bytes())
    recipe = plan.recipe | {"max_epochs": 1, "max_steps": 5, "target_value": None}
    changes = {"run_dir": str(tmp_path), "nproc": 2, "world_size": 2, "recipe": recipe}
    return plan.model_copy(update=changes)


def set_target(plan: Plan, **recipe: Any) -> Plan:
    """Return the plan of a run that ends at a quality of 0.9; ``recipe``: other changed fields."""
    return plan.model_copy(update={"recipe": plan.recipe | {"target_value": 0.9} | recipe})


def format_line(parts: Sequence[ProgressPart]) -> str:
    """Return the texts of all parts in a line, as a terminal that is wide enough shows them."""
    return "  ".join(part.text for part in parts)


def test_line_shows_step_speed_loss_time_and_memory(plan: Plan, tmp_path: Path) -> None:
    """A window has two steps of a second with 28 samples of both ranks; the plan has five steps.

    ``WINDOW`` is the event of such a window, which ends with a loss of 0.25 and 1 GiB in use.
    ``FACTS`` is what a rank reports before its first step; the time limit is 1,800 s. After a
    window, three steps of a second are left, after two only one. ``WINDOW`` is of epoch 0, which
    users see as epoch 1.
    """
    progress = RunProgress(plan)
    assert format_line(progress.poll()) == "starting ranks"
    events = EventWriter(tmp_path / "events.rank0.jsonl", lambda: 0)
    events.emit("start", pid=7)
    assert format_line(progress.poll()) == "importing"
    events.emit("facts", **FACTS)
    assert format_line(progress.poll()) == "first of 5 steps, limit 30:00"
    events.emit("window", **WINDOW)
    expected = "28.0 samples/s  loss 0.2500  0:03 left  1.0 GiB  epoch 1"
    assert format_line(progress.poll()) == f"step 2/5  {expected}"
    events.emit("window", **WINDOW | {"loss": [0.5, None]})  # the last loss was not finite
    expected = expected.replace("loss 0.2500", "loss nan").replace("0:03", "0:01")
    assert format_line(progress.poll()) == f"step 4/5  {expected}"
    assert progress.limit_warning == ""


def test_line_of_a_program_without_a_known_loss_shows_no_loss(plan: Plan, tmp_path: Path) -> None:
    """``WINDOW``: two steps of a second with 28 samples each, and 1 GiB in use.

    A witness is a training program of the user's own, whose steps are measured; how many steps it
    has and what its loss is, is not known. The span "init" of its rank ends when it begins.
    """
    spec = WitnessSpec(name="mine", precision="bf16", step=StepWork(samples=28))
    program = Witness(spec=spec, command=("python",), folder=str(tmp_path), starts_ranks=False)
    progress = RunProgress(plan.model_copy(update={"witness": program}))
    events = EventWriter(tmp_path / "events.rank0.jsonl", lambda: 0)
    events.emit("span", name="init", start_ns=0, end_ns=0)
    assert format_line(progress.poll()) == "running the program"
    events.emit("window", **WINDOW | {"loss": [None, None]})
    assert format_line(progress.poll()) == "step 2  28.0 samples/s  1.0 GiB  epoch 1"


def test_narrow_line_drops_parts_and_keeps_the_speed() -> None:
    """A part is a text and its priority, such as ``progress._STEP``; the least is dropped first.

    ``format_line`` joins the texts of all parts; ``fit_line`` returns label and parts in a line
    that is no wider than the terminal.
    """
    parts = [
        ProgressPart("step 400/4000", progress._STEP),
        ProgressPart("142.4 samples/s", progress._SPEED),
        ProgressPart("loss 0.6365", progress._LOSS),
        ProgressPart("up to 6:47 left", progress._TIME_LEFT),
        ProgressPart("0.5 GiB", progress._MEMORY),
        ProgressPart("quality 0.9430", progress._QUALITY),
        ProgressPart("epoch 1", progress._EPOCH),
        ProgressPart("evaluation in 0:45", progress._EVALUATION),
    ]
    step, speed, loss, time_left, *_ = (part.text for part in parts)
    label = "distilbert_sst2"
    # Parts are dropped in the order of their priorities: epoch, evaluation, memory, quality, loss,
    # time left, then the label, then the step. The lines have 131, 77, 64, 47, 30 and 15 columns.
    line_by_width = {  # in columns of the terminal
        200: f"{label}: {format_line(parts)}",
        79: f"{label}: {step}  {speed}  {loss}  {time_left}",
        64: f"{label}: {step}  {speed}  {time_left}",
        59: f"{label}: {step}  {speed}",
        40: f"{step}  {speed}",
        20: speed,
    }
    assert {width: fit_line(label, parts, width) for width in line_by_width} == line_by_width


def test_wide_characters_of_a_label_take_two_columns() -> None:
    """The label is two Chinese characters; ``fit_line`` drops parts until the line fits.

    A part is a text and its priority. If one column is missing, the memory is dropped first.
    """
    parts = [
        ProgressPart("1 samples/s", progress._SPEED),
        ProgressPart("0.5 GiB", progress._MEMORY),
    ]
    whole_line = "批次: 1 samples/s  0.5 GiB"
    columns = len(whole_line) + 2  # one more for each Chinese character
    assert fit_line("批次", parts, columns) == whole_line
    assert fit_line("批次", parts, columns - 1) == "批次: 1 samples/s"


def test_label_without_parts_stays_even_if_it_is_too_wide() -> None:
    memory = ProgressPart("0.5 GiB", progress._MEMORY)
    assert fit_line("starting ranks", [], 5) == fit_line("starting ranks", [memory], 5)


def test_run_too_slow_for_its_time_limit_is_warned_before_the_first_step(
    plan: Plan, tmp_path: Path
) -> None:
    """A step takes at least 1e12 / 1e9 = 1,000 s at the rate of matmuls, five steps 5,000 s.

    That is 1:23:20. The plan has five steps and a time limit of 30 minutes.
    """
    progress = RunProgress(plan)
    events = EventWriter(tmp_path / "events.rank0.jsonl", lambda: 0)
    events.emit("start", pid=7)
    events.emit("facts", **FACTS, step_flops=1e12, matmul_flops_per_second=1e9)
    assert format_line(progress.poll()) == "first of 5 steps, limit 30:00"
    assert "limit of 30:00: its steps take about 1:23:20" in progress.limit_warning


def test_run_that_may_reach_its_target_in_time_has_no_warning(plan: Plan, tmp_path: Path) -> None:
    """80 steps of 1,000 s each, evaluated after every eighth; the limit is 10,000 s.

    The target may be reached at the first evaluation, after 8,000 s. Before the first step, the
    time of a step is its 1e12 operations divided by the rate of matmuls, 1e9 operations a second.
    An epoch has 8 steps (``FACTS``). ``WINDOW`` is the event of two steps, here of 1,000 s each;
    ``S`` is a second in ns.
    """
    limits = {"max_epochs": 10, "max_steps": None, "timeout_s": 10_000.0}
    progress = RunProgress(set_target(plan, **limits))
    events = EventWriter(tmp_path / "events.rank0.jsonl", lambda: 0)
    events.emit("start", pid=7)
    events.emit("facts", **FACTS, step_flops=1e12, matmul_flops_per_second=1e9)
    assert format_line(progress.poll()) == "first of at most 80 steps, limit 2:46:40"
    assert progress.limit_warning == ""
    thousand_s = {"step_ns": [1000 * S, 1000 * S], "end_ns": 2000 * S}
    events.emit("window", **WINDOW | thousand_s)
    # After 2,000 s: up to the limit, which comes before the 80th step.
    assert "  up to 2:13:20 left  " in format_line(progress.poll())
    assert progress.limit_warning == ""


def test_estimate_extends_to_the_next_evaluation(plan: Plan, tmp_path: Path) -> None:
    """Steps of a second with 32 samples each, 8 an epoch; evaluated after 90, 170, 250 … too.

    An evaluation is due after the step with which the samples reach its number. After 2, 4 and 6
    steps, the next one is due after step 3 (90 / 32, rounded up), step 6 (170 / 32, rounded up) and
    step 8, the end of the epoch: 1, 2 and 2 steps later.
    ``WINDOW`` is the event of two steps of a second each; ``FACTS`` has the 8 steps of an epoch.
    """
    limits = {
        "max_epochs": 10,
        "max_steps": None,
        "timeout_s": 600.0,
        "eval_every_epochs": 1,
        "eval_every_samples": 80,
        "eval_from_sample": 90,
    }
    progress = RunProgress(set_target(plan, **limits))
    events = EventWriter(tmp_path / "events.rank0.jsonl", lambda: 0)
    events.emit("facts", **FACTS)
    for seconds in (1, 2, 2):
        events.emit("window", **WINDOW | {"step_samples": [32, 32]})
        assert format_line(progress.poll()).endswith(
            f"  evaluation in 0:0{seconds}  1.0 GiB  epoch 1"
        )


def test_evaluation_with_every_step_is_due_after_the_next_step(plan: Plan, tmp_path: Path) -> None:
    """Steps of a second with 32 samples each; an evaluation is due every 10 samples.

    ``FACTS`` is what a rank reports before its first step, ``WINDOW`` the event of two steps.
    """
    progress = RunProgress(set_target(plan, max_steps=None, eval_every_samples=10))
    events = EventWriter(tmp_path / "events.rank0.jsonl", lambda: 0)
    events.emit("facts", **FACTS)
    events.emit("window", **WINDOW | {"step_samples": [32, 32]})
    assert "  evaluation in 0:01  " in format_line(progress.poll())


def test_time_limit_before_the_end_is_warned_once_the_speed_is_known(
    plan: Plan, tmp_path: Path
) -> None:
    """80 steps of a second, 8 an epoch for 10 epochs; the limit is 60 s.

    ``WINDOW`` is the event of two steps; after one window 78 steps are left, 1:18, after two 76.
    ``FACTS`` has the 8 steps of an epoch. A speed counts as known after 5% of the limit, 3 s.
    """
    recipe = plan.recipe | {"max_epochs": 10, "max_steps": None, "timeout_s": 60.0}
    progress = RunProgress(plan.model_copy(update={"recipe": recipe}))
    events = EventWriter(tmp_path / "events.rank0.jsonl", lambda: 0)
    events.emit("start", pid=7)
    events.emit("facts", **FACTS)
    events.emit("window", **WINDOW)
    assert format_line(progress.poll()).startswith(
        "step 2/80  28.0 samples/s  loss 0.2500  1:18 left"
    )
    assert progress.limit_warning == "", "two seconds of training tell too little"
    # This window, too, ends 2 s after the start, as ``WINDOW`` has it: 58 s of 60 are left.
    events.emit("window", **WINDOW)
    progress.poll()
    expected = "take 1:16 more at this speed, but only 0:58 of its time limit remain"
    assert expected in progress.limit_warning


def test_time_limit_before_the_next_evaluation_is_warned(plan: Plan, tmp_path: Path) -> None:
    """Steps of a second; the first evaluation is after 80 of them.

    Two windows of two steps are over, so 76 steps are left until then. They took 4 s of the limit
    of 60 s, long enough for a speed (5% of the limit). An epoch has 8 steps (``FACTS``);
    ``WINDOW`` is the event of two steps.
    """
    limits = {"max_epochs": 10, "max_steps": None, "timeout_s": 60.0, "eval_every_epochs": 10}
    progress = RunProgress(set_target(plan, **limits))
    events = EventWriter(tmp_path / "events.rank0.jsonl", lambda: 0)
    events.emit("start", pid=7)
    events.emit("facts", **FACTS)
    for _ in range(2):
        events.emit("window", **WINDOW)
    progress.poll()
    assert "up to the next evaluation take 1:16 more" in progress.limit_warning


class Terminal(io.StringIO):
    """A stream that keeps what is written, and calls itself a terminal."""

    def isatty(self) -> bool:
        return True


def test_terminal_shows_one_line_of_its_width(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """``Terminal`` keeps what is written to it; ``poll`` returns the next of three texts.

    Each text is written from the first column. A line is the name of the run, here "a", and the
    text. Ten columns are too few for both, so the name is left out, and a longer text is cut.
    """
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((11, 5)))
    texts = iter(["one\r", "one\r", "more than there is room for"])
    monkeypatch.setattr(RunProgress, "poll", lambda _: [ProgressPart(next(texts), progress._STEP)])
    progress_line = ProgressLine(plan, "a")
    progress_line.show()
    progress_line.show()  # the text is the same, so nothing is written
    progress_line.show()
    progress.end_line("end")
    # Ten of eleven columns are used. Control characters of a text are escaped, and each text
    # covers the one before it.
    assert terminal.getvalue() == "\rone\\u000d \rmore than \rend       \n"


def test_log_gets_a_progress_line_at_intervals(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interval is 10 s; the second text comes before it is over.

    "RUNNING" is what a program such as Slurm, which starts the job, says of it. The parts follow it
    only after events were read.
    """
    monkeypatch.setattr(RunProgress, "has_read_events", True)
    times, texts = iter([100.0, 109.9, 110.1]), iter(["one", "two", "three"])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    monkeypatch.setattr(RunProgress, "poll", lambda _: [ProgressPart(next(texts), progress._STEP)])
    progress_line = ProgressLine(plan, "a")
    for _ in range(3):
        progress_line.show("RUNNING")
    assert capsys.readouterr().err == "a: RUNNING  one\na: RUNNING  three\n"
