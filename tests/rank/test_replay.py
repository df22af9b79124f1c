"""Repeated windows of the loop: which are repeated, their time, and their result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import Events, FakeClock, Micro, ScriptedJob, SyncDevice
from trainmark.errors import DivergedError
from trainmark.events.schema import BitDifference
from trainmark.protocols import StepDigest
from trainmark.rank.loop import MeasuredLoop, Schedule
from trainmark.rank.replay import WindowReplay, find_difference

if TYPE_CHECKING:
    from collections.abc import Sequence

SAVE_NS, RESTORE_NS = 7, 3
STEP_NS = 110  # 10 to fetch a batch, 100 to train it
REPEATED_STEP_NS = 100


@dataclass
class ScriptedState:
    """Restores the number of steps that the job had."""

    job: ScriptedJob
    clock: FakeClock
    saved_steps: int = 0

    def save(self) -> None:
        """Keep the number of steps; this takes ``SAVE_NS`` of the fake clock."""
        self.clock.advance(SAVE_NS)
        self.saved_steps = self.job.steps

    def restore(self) -> None:
        """Set the number of steps back; this takes ``RESTORE_NS`` of the fake clock."""
        self.clock.advance(RESTORE_NS)
        self.job.steps = self.saved_steps


@dataclass
class ScriptedDigests:
    """Digests of a training; ``faults`` gives passes in which the result of a step is wrong.

    A window that is repeated has several passes: the usual one, and each repeat.

    Args:
        faults: by number of the pass: index of the step in the pass, the wrong part of its digest
            (``gradient`` or ``weight``), and what is added to that part. Both count from 0.
        passes: number of passes that have ended.
        steps: number of steps of the present pass.
    """

    faults: dict[int, tuple[int, str, int]] = field(default_factory=dict)
    passes: int = 0
    steps: int = 0

    def start(self) -> None:
        self.steps = 0

    def end_step(self) -> None:
        self.steps += 1

    def finish(self, losses: Sequence[float]) -> list[StepDigest]:
        """Return the digests of a pass, with the fault that it is to have.

        Args:
            losses: of the steps of the pass.
        """
        assert len(losses) == self.steps  # a digest of each step
        # -1 is no step: a pass without a fault.
        faulty_step, part, error = self.faults.get(self.passes, (-1, "", 0))
        if losses:  # a window without steps is no pass
            self.passes += 1
        return [
            make_digest(loss, **({part: error} if index == faulty_step else {}))
            for index, loss in enumerate(losses)
        ]


def make_digest(loss: float, *, gradient: int = 0, weight: int = 0) -> StepDigest:
    """Return the digest of a step of a model with two tensors, "first" and "last".

    Gradients are in the order of the backward pass, from the last tensor to the first.

    Args:
        loss: of the step.
        gradient: change of the gradient of the first tensor; 0: none.
        weight: change of the last tensor; 0: none.
    """
    return StepDigest(
        loss=loss.hex(),
        gradients={"last": 4, "first": 5 + gradient},
        weights={"first": 6, "last": 7 + weight},
    )


def run_loop(
    device: SyncDevice,
    epochs: list[list[Micro]],
    *,
    every_windows: int = 2,
    digests: ScriptedDigests | None = None,
    flags_of_others: bool = False,
    **schedule: Any,
) -> tuple[Events, WindowReplay]:
    """Run the loop with windows of 3 steps after 2 of warm-up.

    Args:
        device: fake with the fake clock.
        epochs: the micro-batches of each epoch.
        every_windows: one in so many measured windows is repeated.
        digests: of the steps; None: no pass has a fault.
        flags_of_others: another rank finds a difference in each repeat.
        schedule: other fields of ``Schedule``.
    """
    events = Events(device.clock, device.calls)
    job = ScriptedJob(device.clock, device, epochs)
    replay = WindowReplay(
        every_windows=every_windows,
        job=job,
        device=device,
        state=ScriptedState(job, device.clock),
        digests=digests or ScriptedDigests(),
        is_on_any_rank=lambda flag: flag or flags_of_others,
    )
    fields = {"max_epochs": len(epochs), "warmup_steps": 2, "window_steps": 3, **schedule}
    MeasuredLoop(
        job=job,
        open_batches=job.batches,
        schedule=Schedule(**fields),
        device=device,
        clock=device.clock,
        barrier=lambda: None,
        emit=events,
        replay=replay,
    ).run()
    # Repeats are undone: they count for nothing.
    assert job.steps == sum(len(item["step_ns"]) for item in events.named("window"))
    return events, replay


def test_every_nth_measured_window_is_repeated_and_timed_separately(
    sync_device: SyncDevice,
) -> None:
    # One epoch of 14 steps. ``run_loop`` has 2 steps of warm-up, then windows of 3 steps, of which
    # it repeats every second one. All times are of a fake clock: saving the state takes
    # ``SAVE_NS``, restoring it ``RESTORE_NS``, and a step ``STEP_NS``: 10 to read the batch and 100
    # to train it.
    # A repeated step takes only the 100 (``REPEATED_STEP_NS``), as its batch was kept.
    events, _ = run_loop(sync_device, [[Micro()] * 14])

    windows, replays = events.named("window"), events.named("replay")
    assert [(item["phase"], item["first_step"]) for item in windows] == [
        ("compile", 0),
        ("warmup", 1),
        ("train", 2),
        ("train", 5),
        ("train", 8),
        ("train", 11),
    ]
    # The second and the fourth measured window.
    assert [(item["first_step"], item["steps"]) for item in replays] == [(5, 3), (11, 3)]
    for replay, window, saved in zip(
        replays, (windows[3], windows[5]), events.named("span"), strict=True
    ):
        # First the state is saved, then come the window and its repeat, each timed apart.
        assert saved["name"] == "replay"
        assert saved["end_ns"] - saved["start_ns"] == SAVE_NS
        assert saved["end_ns"] == window["start_ns"]
        assert window["end_ns"] - window["start_ns"] == 3 * STEP_NS
        assert window["step_ns"] == [STEP_NS] * 3
        assert replay["start_ns"] == window["end_ns"]
        assert replay["end_ns"] - replay["start_ns"] == RESTORE_NS + 3 * REPEATED_STEP_NS
        # Nothing differed in the repeat. So the control, further repeats of a window that show
        # whether a difference is reproducible, is not needed.
        assert replay["difference"] is None
        assert (replay["repeats"], replay["control"]) == (1, "not_needed")


def test_warm_up_windows_are_never_repeated(sync_device: SyncDevice) -> None:
    # Every measured window would be repeated, but all four steps are warm-up.
    events, _ = run_loop(sync_device, [[Micro()] * 4], every_windows=1, warmup_steps=4)

    assert events.named("replay") == []


def test_window_that_an_epoch_ends_is_repeated_with_its_own_batches(
    sync_device: SyncDevice,
) -> None:
    # Two epochs of 6 steps: 2 of warm-up, then windows of 3, which end with an epoch at the latest.
    # The losses differ, so a window that was repeated with other batches would show a difference,
    # and more repeats as a control would be needed.
    epoch = [Micro(loss=float(number)) for number in range(6)]

    events, _ = run_loop(sync_device, [epoch, epoch], every_windows=1)

    assert [(item["first_step"], item["steps"]) for item in events.named("replay")] == [
        (2, 3),
        (5, 1),  # the last step of the first epoch
        (6, 3),
        (9, 3),
    ]
    assert {item["control"] for item in events.named("replay")} == {"not_needed"}


def test_epoch_that_ends_at_a_window_start_repeats_the_next_window(
    sync_device: SyncDevice,
) -> None:
    epoch = [Micro()] * 5  # of the first epoch, 2 are warm-up and 3 the first measured window

    events, _ = run_loop(sync_device, [epoch, epoch], every_windows=2)

    # The second measured window is due to be repeated, but begins at the epoch's end and has no
    # steps. So the next one is repeated, which is the first of the second epoch.
    assert [(item["first_step"], item["steps"]) for item in events.named("replay")] == [(5, 3)]


@pytest.mark.parametrize("wrong_pass", [0, 1])
def test_difference_that_two_repeats_confirm_is_named(
    sync_device: SyncDevice, wrong_pass: int
) -> None:
    # Eight steps: two of warm-up, then two windows of three, of which the second one is repeated.
    # In the window itself (pass 0) or in its first repeat, a gradient of its second step differs:
    # ``make_digest`` changes that of the tensor "first". Two more repeats agree, so the steps are
    # deterministic and the difference counts. A repeat takes the time to restore the state
    # (``RESTORE_NS``) and that of its steps (``REPEATED_STEP_NS``).
    digests = ScriptedDigests({wrong_pass: (1, "gradient", 1)})

    events, _ = run_loop(sync_device, [[Micro()] * 8], digests=digests)

    (replay,) = events.named("replay")
    assert (replay["repeats"], replay["control"]) == (3, "deterministic")
    # The window has steps 6 to 8, counted from 1.
    assert replay["difference"] == BitDifference(step=7, part="gradient", tensor="first")
    duration_ns = 3 * (RESTORE_NS + 3 * REPEATED_STEP_NS)  # three repeats of three steps
    assert replay["end_ns"] - replay["start_ns"] == duration_ns


def test_repeats_that_differ_from_each_other_blame_no_rank(sync_device: SyncDevice) -> None:
    # After two steps of warm-up come two windows of three. The second one, steps 5 to 7 as counted
    # from 0, is repeated. Each of its four passes gives the weights after its first step another
    # value: the window itself, its first repeat, which differs from it, and two more repeats, the
    # control. As these differ too, the steps are not deterministic and the difference proves
    # nothing.
    digests = ScriptedDigests({number: (0, "weight", number) for number in range(4)})

    events, _ = run_loop(sync_device, [[Micro()] * 8], digests=digests)

    (replay,) = events.named("replay")
    assert (replay["repeats"], replay["control"]) == (3, "not_deterministic")
    assert replay["difference"] is None


def test_all_ranks_run_the_control_repeat_if_one_differs(sync_device: SyncDevice) -> None:
    # After two steps of warm-up come two windows of three. The second one is repeated, on this rank
    # without a difference. But another rank differs in the first repeat, so all ranks take two more
    # repeats as a control; there it differs again.
    events, _ = run_loop(sync_device, [[Micro()] * 8], flags_of_others=True)

    (replay,) = events.named("replay")
    assert (replay["repeats"], replay["control"]) == (3, "not_deterministic")


def test_window_with_a_loss_that_is_not_finite_is_repeated_before_the_run_fails(
    sync_device: SyncDevice,
) -> None:
    # After 2 steps of warm-up there are two windows of 3 steps. The second one is repeated, and the
    # losses of its last two steps are NaN.
    micros = [Micro()] * 6 + [Micro(loss=float("nan"))] * 2

    with pytest.raises(DivergedError):
        run_loop(sync_device, [micros])

    # The fake device lists its calls; "emit replay" is the event of a repeat.
    assert sync_device.calls.count("emit replay") == 1


def test_first_difference_is_that_of_the_earliest_step_and_part() -> None:
    # The digests of two steps with the losses 1 and 0.5. Below, the second loss is 0.25, and
    # ``gradient`` or ``weight`` changes that of a tensor.
    usual = [make_digest(1.0), make_digest(0.5)]

    assert find_difference(usual, usual) is None
    # Within a step the weights before it come first, then the loss, then the gradients. Steps in a
    # ``BitDifference`` count from 1, ``first_step`` from 0.
    assert find_difference(
        usual, [make_digest(1.0), make_digest(0.25, gradient=1)]
    ) == BitDifference(step=2, part="loss")
    assert find_difference(
        usual, [make_digest(1.0, weight=1), make_digest(0.25)], first_step=10
    ) == BitDifference(step=11, part="weight", tensor="last")
