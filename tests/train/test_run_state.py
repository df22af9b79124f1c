"""A training resumed from a checkpoint equals one that was never interrupted."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from support import tiny_gpt, tiny_gpt_oss, tiny_llama31
from support.fakes import FakeClock, SyncDevice
from support.old_torch import needs_checkpoints, needs_fsdp
from support.real_ranks import call_on_ranks
from trainmark.errors import DataError, TrainmarkError, UsageError
from trainmark.plan.plan import CHECKPOINTS_DIR, Plan
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import resolve
from trainmark.plan.resuming import resume_plan
from trainmark.protocols import Progress
from trainmark.rank.loop import MeasuredLoop, Schedule
from trainmark.train.checkpoints import Checkpoints
from trainmark.train.read_ahead import iterate_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("default:torch.distributed is disabled"),
]
SAVE_EVERY_STEPS = 2
RESUMED_AT = 4  # steps that a resumed training continues after
NUM_STEPS = 7


def train(
    job: Any, folder: Path, *, steps: int, begin: tuple[Path, Progress] | None = None
) -> list[tuple[float, int, int]]:
    """Return loss, samples (over all ranks) and epoch of each step of a training.

    Args:
        folder: of the checkpoints that it saves.
        steps: where it ends, counted from its first launch.
        begin: the checkpoint that it continues, and how far that is; None: it starts anew.
    """
    events: list[dict[str, Any]] = []
    # Windows of one step, to see each one, and more epochs than the steps take.
    recipe = replace(job.recipe, max_steps=steps, max_epochs=9, window_steps=1, warmup_steps=2)
    # The last argument would report how long a checkpoint takes.
    checkpoints = Checkpoints(job, job.context, folder, lambda _: nullcontext())
    if begin is not None:
        checkpoints.load(*begin)
    device = SyncDevice(FakeClock())
    MeasuredLoop(
        job=job,
        open_batches=lambda epoch: iterate_batches(job, device, epoch, depth=2),
        schedule=Schedule.from_recipe(recipe, target=None, earlier_steps=checkpoints.begin.steps),
        device=device,
        clock=device.clock,
        barrier=lambda: None,
        begin=checkpoints.begin,
        save=checkpoints.save,
        emit=lambda event, **fields: events.append({"event": event, **fields}),
    ).run()
    checkpoints.close()
    return [
        (float(loss), samples, event["epoch"])
        for event in events
        if event["event"] == "window"
        for loss, samples in zip(event["loss"], event["step_samples"], strict=True)
    ]


def train_with_interruption(
    rank: int, ranks: int, new_job: Callable[..., Any], folder: Path, changes: dict[str, Any]
) -> list[Any]:
    """Return the steps of a whole training, and those after a checkpoint of a shorter one.

    The whole training has ``NUM_STEPS``, 7; the shorter one saves every ``SAVE_EVERY_STEPS``, 2,
    and is resumed from its checkpoint after ``RESUMED_AT``, 4.

    Args:
        new_job: takes the job's fields by name.
        changes: further fields of the job.
    """
    fields = {
        "rank": rank,
        "world_size": ranks,
        "checkpoint_every_steps": SAVE_EVERY_STEPS,
        **changes,
    }
    uninterrupted = train(
        new_job(**{**fields, "checkpoint_every_steps": None}), folder / "none", steps=NUM_STEPS
    )
    # Saves a checkpoint after step 4, and ends after step 5; only the checkpoint is used.
    train(new_job(**fields), folder, steps=RESUMED_AT + 1)
    epoch, steps_of_epoch = divmod(RESUMED_AT, new_job(**fields).steps_per_epoch)
    # The steps that are compared do not depend on the number of samples.
    progress = Progress(steps=RESUMED_AT, epoch=epoch, steps_of_epoch=steps_of_epoch, samples=0)
    resumed = train(
        new_job(**fields),
        folder / "resumed",
        steps=NUM_STEPS,
        begin=(folder / f"step-{RESUMED_AT}", progress),
    )
    return [uninterrupted, resumed]


@needs_checkpoints
@pytest.mark.parametrize(
    ("new_job", "changes"),
    [
        (tiny_llama31.new_job, {}),
        (tiny_gpt_oss.new_job, {}),
        (tiny_gpt.new_job, {"dropout": 0.1}),  # 3 steps an epoch: it resumes within the second
        (tiny_gpt.new_job, {"precision": "fp16"}),
    ],
)
def test_training_resumed_from_a_checkpoint_equals_uninterrupted_training(
    tmp_path: Path, new_job: Any, changes: dict[str, Any]
) -> None:
    # The whole training has 7 steps. Another one, with a checkpoint every 2 steps, is resumed from
    # that of step 4 (``RESUMED_AT``) and continues until step 7.
    uninterrupted, resumed = train_with_interruption(
        rank=0, ranks=1, new_job=new_job, folder=tmp_path, changes=changes
    )
    assert resumed == uninterrupted[RESUMED_AT:]
    # Step 6 alone is due after step 4, which is not saved again, and before the end at step 7.
    assert sorted(path.name for path in (tmp_path / "resumed").iterdir()) == ["step-6"]


@needs_checkpoints
@needs_fsdp
@pytest.mark.parametrize(
    ("new_job", "changes"),
    [
        (tiny_llama31.new_job, {"micro_batch_size": 4}),
        (tiny_gpt_oss.new_job, {"micro_batch_size": 4, "expert_parallel": 2}),
    ],
)
def test_sharded_checkpoint_resumes_on_two_ranks_and_on_one(
    tmp_path: Path, new_job: Any, changes: dict[str, Any]
) -> None:
    # The result of each of two ranks: the steps of an uninterrupted training, and those after the
    # checkpoint of step 4 of another one. A step is (loss, samples over all ranks, epoch).
    num_ranks = 2
    place, checkpoints = tmp_path / "ranks", tmp_path / "checkpoints"
    place.mkdir()
    checkpoints.mkdir()
    # Each of two processes calls ``train_with_interruption`` with its rank and what follows;
    # ``place`` is an empty folder by which they meet.
    ranks = call_on_ranks(
        num_ranks, place, train_with_interruption, num_ranks, new_job, checkpoints, changes
    )
    # ``RESUMED_AT`` is 4: a checkpoint after 4 of ``NUM_STEPS``, 7, steps is resumed.
    # On two ranks again.
    for uninterrupted, resumed in ranks:
        for step, expected in zip(resumed, uninterrupted[RESUMED_AT:], strict=True):
            assert step == pytest.approx(expected, abs=1e-6)
    # On one rank, with micro-batches of twice the size; its loss is the mean of both ranks'.
    single_rank = train(
        new_job(micro_batch_size=8),
        tmp_path / "alone",
        steps=NUM_STEPS,
        begin=(
            checkpoints / f"step-{RESUMED_AT}",
            # Of 8 samples a step: 4 of a micro-batch on each of two ranks.
            Progress(steps=RESUMED_AT, epoch=0, steps_of_epoch=RESUMED_AT, samples=32),
        ),
    )
    # The loss is the first part of a step's result.
    means = [
        sum(step[0] for step in steps) / 2
        for steps in zip(*(uninterrupted[RESUMED_AT:] for uninterrupted, _ in ranks), strict=True)
    ]
    assert [step[0] for step in single_rank] == pytest.approx(means, abs=1e-6)


@needs_checkpoints
def test_a_damaged_checkpoint_or_one_of_another_model_is_refused(tmp_path: Path) -> None:
    # ``SAVE_EVERY_STEPS`` is 2: of 3 steps, there is a checkpoint after step 2.
    train(tiny_llama31.new_job(checkpoint_every_steps=SAVE_EVERY_STEPS), tmp_path, steps=3)
    place = tmp_path / "step-2"
    # Steps of 8 samples.
    begin = Progress(steps=2, epoch=0, steps_of_epoch=2, samples=16)
    # ``train`` begins with the checkpoint in ``place``, saved after 2 of 3 steps. First another
    # model, then a file without its end.
    other = tiny_llama31.new_job(hidden_size=64)
    with pytest.raises(DataError, match="cannot be loaded"):
        train(other, tmp_path, steps=3, begin=(place, begin))
    (shard,) = place.glob("*.distcp")
    shard_bytes = shard.read_bytes()
    shard.write_bytes(shard_bytes[: len(shard_bytes) // 2])
    with pytest.raises(DataError, match="cannot be loaded") as caught:
        train(tiny_llama31.new_job(), tmp_path, steps=3, begin=(place, begin))
    assert "remove this folder" in (caught.value.fix or "")


@pytest.fixture(scope="module")
def plan_run_in(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Plan]:
    """Return a function that plans a run of ``llama31_8b`` on generated data."""
    root = tmp_path_factory.mktemp("data")

    def plan(overrides: dict[str, Any] | None = None, **fields: Any) -> Plan:
        """Plan it, with changed values of the recipe by name and further fields of the request."""
        request = RunRequest.build(
            case="llama31_8b", overrides=overrides or {}, device="cpu", **fields
        )
        return resolve(request, generated_root=root)

    return plan


def write_earlier_run(plan_run_in: Any, folder: Path, *, steps: Sequence[int] = ()) -> Plan:
    """Write what planning reads of a run with checkpoints after ``steps``; return its plan.

    ``plan_run_in`` is the fixture that plans a run of ``llama31_8b``. ``CHECKPOINTS_DIR`` is the
    subfolder of a run in which checkpoints are. A progress file says how far each one is, here as
    if all steps were of the first epoch.
    """
    folder.mkdir()
    plan: Plan = plan_run_in()
    plan.save(folder)
    for number in steps:
        place = folder / CHECKPOINTS_DIR / f"step-{number}"
        place.mkdir(parents=True)
        (place / ".metadata").touch()  # the last file that torch writes of a checkpoint
        (place / "progress.json").write_text(
            f'{{"steps": {number}, "epoch": 0, "steps_of_epoch": {number}, "samples": 0}}'
        )
    return plan


def test_last_complete_checkpoint_is_used_and_all_launches_are_named(
    tmp_path: Path, plan_run_in: Any
) -> None:
    # A checkpoint without ``.metadata``, which is written last, is not complete.
    # ``CHECKPOINTS_DIR`` is the subfolder of a run in which its checkpoints are.
    first = write_earlier_run(plan_run_in, tmp_path / "a", steps=[90, 100, 110])
    (tmp_path / "a" / CHECKPOINTS_DIR / "step-110" / ".metadata").unlink()  # half written
    plan = plan_run_in(resume=tmp_path / "a")
    assert plan.resumed.runs == [first.run_id]
    assert plan.resumed.progress == Progress(steps=100, epoch=0, steps_of_epoch=100, samples=0)
    assert plan.labels[-1] == "resumed"
    assert Plan.model_validate_json(plan.model_dump_json(), strict=True) == plan
    # A second launch continues the resumed one.
    write_earlier_run(plan_run_in, tmp_path / "b", steps=[200])
    plan.save(tmp_path / "b")
    assert plan_run_in(resume=tmp_path / "b").resumed.runs == [first.run_id, plan.run_id]


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        # ``fields``: what the resuming command changes. ``was``: the values of the earlier run,
        # which are those of the case's default recipe for one rank on a CPU.
        ({"overrides": {"num_layers": "4"}}, "num_layers is 4, but was 2 in the earlier run"),
        (
            {"overrides": {"lr": "1e-4"}},
            "learning_rate is 0.0001, but was 0.015 in the earlier run",
        ),
        ({"seed": 2}, "seed is 2, but was 1 in the earlier run"),
        pytest.param(
            {"nproc": 2}, "samples of a step is 32, but was 16 in the earlier run", marks=needs_fsdp
        ),
        ({"overrides": {"steps": "100"}}, "100 steps are already done, but max_steps is 100"),
        ({"repeat": 2}, "the command asks for 2 launches"),
    ],
)
def test_a_checkpoint_of_other_work_is_refused(
    tmp_path: Path, plan_run_in: Any, fields: dict[str, Any], what: str
) -> None:
    # The earlier run has one checkpoint, after 100 steps. ``what`` is what the error says.
    write_earlier_run(plan_run_in, tmp_path / "a", steps=[100])
    with pytest.raises(TrainmarkError) as caught:
        plan_run_in(**fields, resume=tmp_path / "a")
    assert caught.value.what == what
    assert caught.value.fix


def test_run_that_has_trained_all_epochs_is_refused(tmp_path: Path, plan_run_in: Any) -> None:
    # Without a limit of steps, the epochs alone end the training. The last step of each trains the
    # samples that are left, so the number of steps is rounded up. One rank trains 16 in a step.
    overrides = {"steps": "none", "epochs": "2"}
    epoch_steps = -(-plan_run_in(overrides).data.train_samples // 16)
    write_earlier_run(plan_run_in, tmp_path / "done", steps=[2 * epoch_steps])
    write_earlier_run(plan_run_in, tmp_path / "left", steps=[2 * epoch_steps - 1])
    with pytest.raises(UsageError, match="steps are already done, but max_epochs is 2"):
        plan_run_in(overrides, resume=tmp_path / "done")
    assert plan_run_in(overrides, resume=tmp_path / "left").resumed


def test_run_of_a_program_cannot_be_resumed(tmp_path: Path, plan_run_in: Any) -> None:
    # The plan of a run of a user's own program has the program's name in place of a case's.
    earlier = plan_run_in().model_copy(update={"case": "my_program"})
    earlier.save(tmp_path)
    with pytest.raises(TrainmarkError, match="case is llama31_8b, but was my_program"):
        plan_run_in(resume=tmp_path)


def test_a_run_without_a_checkpoint_cannot_be_resumed(tmp_path: Path, plan_run_in: Any) -> None:
    # ``a`` is a run without checkpoints; ``tmp_path`` only contains it.
    plan = write_earlier_run(plan_run_in, tmp_path / "a")
    for folder, what in (
        (tmp_path / "a", "no complete checkpoint"),
        (tmp_path, "not a run directory"),
    ):
        with pytest.raises(TrainmarkError, match=what):
            resume_plan(plan, folder)


@needs_fsdp
def test_another_number_of_ranks_can_resume_if_a_step_has_as_many_samples(
    tmp_path: Path, plan_run_in: Any
) -> None:
    write_earlier_run(plan_run_in, tmp_path / "earlier", steps=[100])  # one rank, 16 samples a step
    two_ranks = plan_run_in({"bs": "8"}, nproc=2)  # 2 x 8 samples a step
    assert resume_plan(two_ranks, tmp_path / "earlier").resumed
