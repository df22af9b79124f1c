"""The measured loop on fakes: its windows, numbers and order of calls."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import AsyncDevice, Events, Micro, ScriptedJob, SyncDevice
from trainmark.errors import DivergedError
from trainmark.protocols import StepStages
from trainmark.rank.loop import MeasuredLoop, Schedule
from trainmark.spec import Target, message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainmark.protocols import Batch, Evaluation
    from trainmark.rank.loop import LoopResult


def make_loop(
    device: SyncDevice,
    epochs: list[list[Micro]],
    *,
    qualities: list[float] | None = None,
    job_fields: dict[str, Any] | None = None,
    enter: Callable[[str], None] = lambda _: None,
    **schedule: Any,
) -> tuple[MeasuredLoop, Events]:
    """Return the loop on a job of these micro-batches by epoch, and the events that it emits.

    Args:
        device: fake with the fake clock; it lists its calls, and the loop's barriers and events.
        epochs: the micro-batches of each epoch.
        qualities: results of the evaluations, in turn.
        job_fields: further fields of ``ScriptedJob``.
        enter: is told the name of each phase.
        schedule: fields of ``Schedule``; by default windows of 3 steps after 2 of warm-up.
    """
    events = Events(device.clock, device.calls)
    fields: dict[str, Any] = {"max_epochs": len(epochs), "warmup_steps": 2, "window_steps": 3}
    job = ScriptedJob(device.clock, device, epochs, qualities=qualities or [], **(job_fields or {}))
    loop = MeasuredLoop(
        job=job,
        open_batches=job.batches,
        schedule=Schedule(**fields | schedule),
        device=device,
        clock=device.clock,
        barrier=lambda: device.calls.append("barrier"),
        emit=events,
        enter=enter,
    )
    return loop, events


def list_phases(events: Events) -> list[tuple[str, int, int, int]]:
    """Return (phase, epoch, first step, number of steps) of each window.

    Epochs and steps count from 0.
    """
    return [
        (item["phase"], item["epoch"], item["first_step"], len(item["step_ns"]))
        for item in events.named("window")
    ]


def run_one_epoch_of_four_steps(device: SyncDevice) -> tuple[list[dict[str, Any]], LoopResult]:
    """Return the events and the outcome of a run with windows of 1, 1 and 2 steps.

    The clock begins at 1,000 ns. The first three steps take 10 + 100 ns (fetch and work) for 4
    samples, the last one 5 + 30 ns for 1 sample. A sample is 1 sequence of 10 tokens, 16 with
    padding, and takes 6 FLOPs.
    """
    steps = [Micro(samples=4, fetch_ns=10, work_ns=100, loss=loss) for loss in (3.0, 2.0, 1.0)]
    short_last = Micro(samples=1, fetch_ns=5, work_ns=30, loss=0.5)
    loop, events = make_loop(device, [[*steps, short_last]], qualities=[0.75], eval_every_epochs=1)
    outcome = loop.run()
    return events.written, outcome


def test_every_number_of_a_window_is_exact(sync_device: SyncDevice) -> None:
    # Four samples in 110 ns, four in 110 ns, then a window of four and one in 110 and 35 ns. A
    # sample is 1 sequence of 10 tokens, 16 with padding, and takes 6 FLOPs; the device uses 1,000
    # bytes.
    events, _ = run_one_epoch_of_four_steps(sync_device)
    first, second, third, _evaluate, _trained = events
    assert first == {
        "event": "window",
        "t_ns": 1_110,
        "phase": "compile",
        "epoch": 0,
        "first_step": 0,
        "start_ns": 1_000,
        "end_ns": 1_110,
        "step_ns": [110],
        "wait_ns": [10],
        "loss": [3.0],
        "samples": [4],
        "step_samples": [4],
        "sequences": 4,
        "tokens": 40,
        "tokens_padded": 64,
        "micro_batches": 1,
        "model_flops": 24.0,
        "used_bytes": 1_000,
    }
    assert (second["phase"], second["start_ns"], second["end_ns"]) == ("warmup", 1_110, 1_220)
    assert third == first | {
        "t_ns": 1_365,
        "phase": "train",
        "first_step": 2,
        "start_ns": 1_220,
        "end_ns": 1_365,
        "step_ns": [110, 35],
        "wait_ns": [10, 5],
        "loss": [1.0, 0.5],
        "samples": [4, 1],
        "step_samples": [4, 1],
        "sequences": 5,
        "tokens": 50,
        "tokens_padded": 80,
        "micro_batches": 2,
        "model_flops": 30.0,
    }


def test_every_number_of_evaluation_and_end_is_exact(sync_device: SyncDevice) -> None:
    events, outcome = run_one_epoch_of_four_steps(sync_device)
    *_, evaluate, trained = events
    # The run begins at 1,000 ns, and its steps end at 1,365 ns. The evaluation of the scripted job
    # takes 1,000 ns for 50 samples and gives 0.75; there is no target. The epoch was trained to its
    # end, so that it is also a whole one.
    assert evaluate == {
        "event": "evaluate",
        "t_ns": 2_365,
        "epoch": 0,
        "step": 4,
        "start_ns": 1_365,
        "end_ns": 2_365,
        "value": 0.75,
        "samples": 50,
        "detail": {},
        "target_reached": False,
    }
    assert trained == {
        "event": "trained",
        "t_ns": 2_365,
        "start_ns": 1_000,
        "end_ns": 2_365,
        "steps": 4,
        "epochs": 1,
        "whole_epochs": 1,
    }
    assert (outcome.steps, outcome.epochs) == (4, 1)


def test_windows_are_cut_at_warmup_end_epoch_end_and_max_steps(sync_device: SyncDevice) -> None:
    # Two epochs of nine steps. ``list_phases`` gives phase, epoch, first step and number of steps
    # of each window. The first window has a single step, as it may have to compile; 6 steps are
    # warm-up.
    epoch = [Micro()] * 9
    loop, events = make_loop(
        sync_device, [epoch, epoch], warmup_steps=6, window_steps=4, max_steps=15
    )
    loop.run()
    assert list_phases(events) == [
        ("compile", 0, 0, 1),
        ("warmup", 0, 1, 4),
        ("warmup", 0, 5, 1),  # cut at the warm-up's end
        ("train", 0, 6, 3),  # cut at the epoch's end
        ("train", 1, 9, 4),
        ("train", 1, 13, 2),  # cut at max_steps
    ]
    assert loop.outcome.steps == 15


def test_accumulated_micro_batches_are_one_step(sync_device: SyncDevice) -> None:
    # A step of three micro-batches: twice 4 samples in 10 + 100 ns, then 2 samples in 20 + 50 ns.
    # There are two such steps; the first one is warm-up (``warmup_steps``), the second one
    # measured.
    opens = Micro(samples=4, fetch_ns=10, work_ns=100, closes_step=False)
    closes = Micro(samples=2, fetch_ns=20, work_ns=50)
    loop, events = make_loop(sync_device, [[opens, opens, closes] * 2], warmup_steps=1)
    loop.run()
    (window,) = [item for item in events.named("window") if item["phase"] == "train"]
    assert window["step_ns"] == [2 * 110 + 70]
    assert window["wait_ns"] == [2 * 10 + 20]
    # 10 tokens a sample.
    assert (window["samples"], window["micro_batches"], window["tokens"]) == ([10], 3, 100)
    assert loop.outcome.steps == 2


def test_parts_of_steps_are_summed_per_window_and_parts_of_evaluations_dropped(
    async_device: AsyncDevice,
) -> None:
    # ``StepStages`` adds up the device time of parts of a step that a job names, here "look up"
    # with 30 ns and "wait" with 5 ns. The loop takes the sums at the end of each window.
    device, stages = async_device, StepStages()
    loop, events = make_loop(
        device, [[Micro(work_ns=100)] * 5], qualities=[0.5], eval_every_epochs=1
    )
    loop.stages = stages
    job_step, job_evaluate = loop.job.step, loop.job.evaluate

    def step(batches: Iterator[Batch]) -> Any:
        loss = job_step(batches)
        if loss is not None:  # None: no batch was left
            with stages.stage("look up", device):
                device.work(30)
            with stages.stage("wait", device):
                device.work(5)
        return loss

    def evaluate() -> Evaluation:
        with stages.stage("look up", device):
            device.work(1_000)
        return job_evaluate()

    loop.job.step, loop.job.evaluate = step, evaluate  # type: ignore[method-assign]
    loop.run()
    # By default, windows have 1, 1 and then 3 steps: 2 steps are warm-up.
    assert [item["parts_ns"] for item in events.named("window")] == [
        {"look up": 30 * steps, "wait": 5 * steps} for steps in (1, 1, 3)
    ]
    # The evaluation at the end of the epoch spent 1,000 ns in "look up", which are not left over.
    assert len(events.named("evaluate")) == 1
    assert stages.take_ns(device) == {}


def test_nothing_is_written_read_or_synchronized_within_a_window(
    async_device: AsyncDevice,
) -> None:
    loop, _ = make_loop(
        async_device, [[Micro()] * 7] * 2, qualities=[0.1, 0.2], eval_every_epochs=1
    )
    loop.run()
    # A window begins with a mark. By default, ``make_loop`` makes windows of 3 steps. Each step has
    # marks before and after its fetch and at its end.
    window = ["mark", *["mark", "mark", "step", "mark"] * 3]
    calls = async_device.calls
    assert calls[:2] == ["synchronize", "barrier"]
    assert calls[-3:] == ["synchronize", "barrier", "emit trained"]
    assert calls.count("barrier") == 2
    # From the first mark of a window to its synchronisation: marks and steps only.
    inside = False
    for before, call in pairwise(calls):
        if call == "mark" and not inside:
            inside = True
            assert before in ("barrier", "emit window", "emit evaluate", "synchronize")
        elif call == "synchronize" and inside:
            inside = False
        elif inside:
            assert call in ("mark", "step"), calls
    # The first two windows have the 2 steps of the warm-up. The third has all steps of a window.
    first_end = calls.index("emit window")
    begin = calls.index("emit window", first_end + 1) + 1
    end = begin + len(window)
    assert calls[begin:end] == window
    assert calls[end] == "synchronize"


@pytest.mark.parametrize(
    ("cadence", "max_steps", "evaluated_after"),
    [
        ({"eval_every_epochs": 1}, None, [5, 10, 15]),
        ({"eval_every_epochs": 2}, None, [10, 15]),  # the last epoch is always evaluated
        ({"eval_every_epochs": 1}, 7, [5, 7]),  # out of steps inside an epoch
        ({}, None, []),
        ({"eval_every_samples": 16}, None, [4, 8, 12, 15]),  # four a step; the end once more
        ({"eval_every_samples": 16, "eval_from_sample": 4}, None, [1, 5, 9, 13, 15]),
        # Due at 1, 11, 21, 31, 41, 51.
        ({"eval_every_samples": 10, "eval_from_sample": 1}, None, [1, 3, 6, 8, 11, 13, 15]),
        ({"eval_every_samples": 16}, 8, [4, 8]),  # the last step was just evaluated
        ({"eval_every_samples": 1}, 3, [1, 2, 3]),  # every step
        ({"eval_every_samples": 100}, None, [15]),  # never due before the end
    ],
)
def test_evaluations_follow_their_interval(
    sync_device: SyncDevice,
    cadence: dict[str, int],
    max_steps: int | None,
    evaluated_after: list[int],
) -> None:
    # Three epochs of five steps, each with 4 samples; ``evaluated_after`` are numbers of steps. Any
    # evaluation gives 0.5 (``qualities`` has enough for all), and there is no target.
    epochs = [[Micro(samples=4)] * 5] * 3
    loop, events = make_loop(
        sync_device, epochs, qualities=[0.5] * 9, max_steps=max_steps, **cadence
    )
    outcome = loop.run()
    assert [item["step"] for item in events.named("evaluate")] == evaluated_after
    # No step is in two windows, and none is lost.
    steps = [first for *_, first, _ in list_phases(events)]
    assert steps == sorted(set(steps))
    assert sum(length for *_, length in list_phases(events)) == outcome.steps


def test_evaluation_interval_counts_samples_of_all_ranks(sync_device: SyncDevice) -> None:
    # This rank trains 1 of the 4 samples of a step, in a micro-batch of its own.
    parts = [Micro(samples=0, step_samples=4, closes_step=False), Micro(samples=1, step_samples=4)]
    loop, events = make_loop(
        sync_device, [parts * 6], qualities=[0.5] * 3, eval_every_samples=8, warmup_steps=1
    )
    loop.run()
    # Six steps of 4 samples on all ranks: an evaluation each 8 samples is one each two steps.
    assert [item["step"] for item in events.named("evaluate")] == [2, 4, 6]
    # A window ends at each evaluation. Each has its phase, epoch, first step and number of steps.
    assert list_phases(events) == [
        ("compile", 0, 0, 1),
        ("train", 0, 1, 1),
        ("train", 0, 2, 2),
        ("train", 0, 4, 2),
    ]


def test_the_target_ends_the_run_within_an_epoch(sync_device: SyncDevice) -> None:
    loop, events = make_loop(
        sync_device,
        [[Micro(samples=4)] * 50] * 9,
        qualities=[0.5, 0.9],
        eval_every_samples=12,
        target=Target(metric="acc", value=0.9),
    )
    outcome = loop.run()
    # Of nine epochs of 50 steps, one is begun, which counts as one. The model is evaluated each 12
    # samples, that is each 3 steps of 4; the second evaluation reaches the target.
    assert (outcome.target_reached, outcome.epochs, outcome.steps) == (True, 1, 6)
    assert [item["event"] for item in events.written[-2:]] == ["evaluate", "trained"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_loss_stops_the_run_after_its_window_is_written(
    sync_device: SyncDevice, bad: float
) -> None:
    steps = [Micro()] * 4 + [Micro(loss=bad)] + [Micro()] * 4
    loop, events = make_loop(sync_device, [steps])  # two steps of warm-up, then windows of three
    with pytest.raises(DivergedError, match="loss_not_finite") as caught:
        loop.run()
    # Steps in errors count from 1, ``first_step`` below from 0. The window has steps 3 to 5.
    assert caught.value.details == {"value": str(bad), "step": 5}
    last = events.written[-1]
    # JSON has no NaN, so it is written as null.
    assert (last["event"], last["first_step"], last["loss"]) == ("window", 2, [1.0, 1.0, None])
    assert not events.named("trained")


def test_nan_quality_is_written_as_null(sync_device: SyncDevice) -> None:
    loop, events = make_loop(
        sync_device,
        [[Micro()]],
        qualities=[math.nan],
        job_fields={
            "detail": {"auc": math.nan, "loss": 0.5},
            "reason": message("nobody_asked"),  # why the job has no quality
            "breakdown": {"day": {"mon": math.nan, "tue": 0.25}},
        },
        eval_every_epochs=1,
        target=Target(metric="acc", value=0.9),
    )
    # The evaluation's quality, one of its details and one of its parts by day of the week are NaN,
    # for which JSON has no number. So the target of 0.9 is not reached.
    outcome = loop.run()
    (evaluate,) = events.named("evaluate")
    assert (evaluate["value"], evaluate["reason"]) == (
        None,
        message("nobody_asked").as_dict(),
    )
    assert evaluate["detail"] == {"auc": None, "loss": 0.5}
    assert evaluate["parts"] == {"day": {"mon": None, "tue": 0.25}}
    assert not outcome.target_reached


def test_time_between_windows_belongs_to_no_window(sync_device: SyncDevice) -> None:
    loop, events = make_loop(
        sync_device,
        [[Micro(fetch_ns=0)] * 3],
        job_fields={"end_of_epoch_ns": 70},
        warmup_steps=1,
        window_steps=2,
    )
    loop.run()
    windows_ns = sum(item["end_ns"] - item["start_ns"] for item in events.named("window"))
    (trained,) = events.named("trained")
    # Three steps of 100 ns, the default ``work_ns``, and 70 ns until the end of the epoch is known.
    assert (windows_ns, trained["end_ns"] - trained["start_ns"]) == (300, 370)
