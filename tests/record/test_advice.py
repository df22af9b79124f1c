"""Advice after a failed run fits its recipe and its machine."""

from __future__ import annotations

from typing import Any

import pytest

from support.comparison_records import read_golden_record
from trainmark.plan.witness import StepWork, Witness, WitnessSpec
from trainmark.record.advice import advise
from trainmark.record.messages import render
from trainmark.record.record import Cause, Record
from trainmark.spec import Message, message


def make_failed_record(kind: str, cause: Message, *, steps: int = 250, **recipe: Any) -> Record:
    """Return the record of a run of two ranks that failed.

    Args:
        kind: of the failure.
        cause: message on what happened.
        steps: that were taken.
        recipe: changed fields of the recipe.
    """
    plan = read_golden_record().plan
    # No changes by the user (``extra``, ``fix_hp``), which would be a piece of advice of their own.
    changed = plan.model_copy(update={"recipe": plan.recipe | recipe, "extra": {}, "fix_hp": {}})
    counts = read_golden_record().counts.model_copy(update={"steps": steps})
    cause_of_failure = Cause(kind=kind, message=cause, rank=0, traceback="tb")
    return read_golden_record().model_copy(
        update={"plan": changed, "cause": cause_of_failure, "counts": counts}
    )


def list_advice_codes(record: Record) -> list[str]:
    """Return the codes of the advice; each can be rendered in both languages without a gap."""
    advice = advise(record)
    for item in advice:
        for lang in ("en", "zh"):
            assert "{" not in render(item, lang)
    return [advice_item.code for advice_item in advice]


OOM = message("exception", text="no memory left")


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ({"micro_batch_size": 8, "precision": "fp32"},
         ["try.lower_batch", "try.bf16", "try.more_memory"]),
        ({"micro_batch_size": 1, "precision": "bf16"}, ["try.more_memory"]),
        ({"micro_batch_size": 1, "precision": "bf16", "checkpoint_activations": False,
          "fsdp": False},
         ["try.checkpoint_activations", "try.fsdp", "try.more_memory"]),
        ({"micro_batch_size": 1, "precision": "bf16", "checkpoint_activations": True,
          "fsdp": True}, ["try.more_memory"]),
    ],
)  # fmt: skip
def test_out_of_device_memory_has_memory_advice(
    recipe: dict[str, Any], expected: list[str]
) -> None:
    # The run has two ranks, which ``fsdp`` shards the model over, and failed with ``OOM``, an error
    # that states no fix of its own. Advised is each change that is still possible: a smaller batch
    # if it is above 1, bf16 instead of fp32, an option that saves memory and is off. More memory is
    # always advised.
    assert list_advice_codes(make_failed_record("oom", OOM, **recipe)) == expected


# Some cases turn recomputing on and off; others name what is recomputed.
@pytest.mark.parametrize(("current", "advised"), [(False, "true"), ("none", "full")])
def test_recomputing_is_advised_with_a_value_that_the_field_takes(
    current: Any, advised: str
) -> None:
    # ``OOM`` is the message of an error that states no fix. With a micro-batch of 1 in bf16,
    # neither a smaller batch nor bf16 is advised.
    record = make_failed_record(
        "oom", OOM, micro_batch_size=1, precision="bf16", checkpoint_activations=current
    )
    (advice, _) = advise(record)  # the other one is more memory
    assert advice == message("try.checkpoint_activations", value=advised)


def test_out_of_host_memory_has_memory_advice() -> None:
    # The golden run has two ranks on one machine, which share its memory. bf16 is not advised, as a
    # host's memory does not hold the devices' numbers.
    killed = message("rank_killed_out_of_memory", rank=0, signal="SIGKILL")
    record = make_failed_record("oom", killed, micro_batch_size=8, precision="fp32")
    assert list_advice_codes(record) == [
        "try.fewer_ranks",
        "try.lower_batch",
        "try.more_memory_host",
    ]
    # Of a single rank there cannot be fewer.
    single_rank_plan = record.plan.model_copy(update={"nproc": 1})
    assert (
        list_advice_codes(record.model_copy(update={"plan": single_rank_plan}))[0]
        == "try.lower_batch"
    )


@pytest.mark.parametrize(
    ("precision", "expected"),
    [("fp16", ["try.lower_lr", "try.not_fp16"]), ("fp32", ["try.lower_lr"])],
)
def test_diverged_loss_advises_against_fp16_only(precision: str, expected: list[str]) -> None:
    nan = message("loss_not_finite", value="nan", step=2)
    assert list_advice_codes(make_failed_record("diverged", nan, precision=precision)) == expected


def test_missed_target_names_the_field_that_ended_the_training() -> None:
    # The run took 250 steps, the default of ``make_failed_record``: as many as ``max_steps``
    # allows.
    missed = message("target_missed", metric="acc", target=0.9, epochs=1, steps=250, value=0.5)
    assert list_advice_codes(make_failed_record("target_missed", missed, max_steps=250)) == [
        "try.raise_steps"
    ]
    (advice,) = advise(make_failed_record("target_missed", missed, max_steps=250))
    assert advice.args == {"name": "max_steps", "value": 250}
    # Without a limit of steps, the epochs ended it.
    (advice,) = advise(make_failed_record("target_missed", missed, max_steps=None, max_epochs=3))
    assert advice.args == {"name": "max_epochs", "value": 3}


@pytest.mark.parametrize(("steps", "may_go_on"), [(99, False), (100, True)])
def test_stopped_run_is_advised_to_resume_only_from_a_checkpoint(
    steps: int, may_go_on: bool
) -> None:
    stopped = message("stopped_by_signal", signal="SIGINT", steps=steps)
    # The first checkpoint is after 100 steps, so a run that stopped after 99 has none.
    # "fix.stopped_by_signal" is the general advice for this end. Below, the recipe saves none at
    # all, and last, the run was stopped at its time limit, which can also be raised.
    record = make_failed_record("signal", stopped, steps=steps, checkpoint_every_steps=100)
    assert list_advice_codes(record) == ["try.resume" if may_go_on else "fix.stopped_by_signal"]
    assert list_advice_codes(make_failed_record("signal", stopped)) == ["fix.stopped_by_signal"]
    late = message("timed_out_training", limit_s=60.0, steps=steps, quiet_s=0.1)
    record = make_failed_record("timeout", late, steps=steps, checkpoint_every_steps=100)
    resume = ["try.resume"] if may_go_on else []
    assert list_advice_codes(record) == [*resume, "try.raise_timeout"]


@pytest.mark.parametrize(
    ("kind", "cause", "code", "args"),
    [
        ("oom", OOM, "oom", {}),
        ("error", message("exception", text="boom"), "error", {"log": "log.launcher.txt"}),
        ("target_missed", message("target_missed"), "target_missed", {}),
        ("timeout", message("timed_out_training"), "timed_out_training", {"limit_s": "3600"}),
        ("diverged", message("loss_not_finite"), "diverged", {}),
    ],
)
def test_advice_for_a_users_own_program_names_no_recipe_field(
    kind: str, cause: Message, code: str, args: dict[str, str]
) -> None:
    # ``OOM`` is the message of an error that states no fix. ``args`` are arguments of the advice: a
    # file to read, or the recipe's limit of 3,600 s. All codes begin with "fix_program" instead of
    # "try", the beginning of advice to change a recipe.
    # A program that was measured from outside has no recipe.
    spec = WitnessSpec(name="mine", precision="fp32", step=StepWork(samples=8))
    witness = Witness(spec=spec, command=("python",), folder="/", starts_ranks=False)
    made = make_failed_record(kind, cause, timeout_s=3600.0)
    plan = made.plan.model_copy(update={"witness": witness})
    (advice,) = advise(made.model_copy(update={"plan": plan}))
    assert advice.code == f"fix_program.{code}"
    assert advice.args.items() >= args.items()  # at least these
    for lang in ("en", "zh"):
        assert "{" not in render(advice, lang)


def test_fix_of_an_error_comes_first_and_an_unknown_cause_has_general_advice() -> None:
    # An error that states what to do (``fix``): this is the only advice, "own_fix".
    cause = message("exception", text="no memory left", fix="lower bs")
    assert list_advice_codes(make_failed_record("oom", cause)) == ["own_fix"]
    # A kind that only a later version knows.
    assert list_advice_codes(make_failed_record("of_tomorrow", message("of_tomorrow"))) == [
        "fix.unknown"
    ]
