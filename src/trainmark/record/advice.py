"""Advise what to try after a run that did not pass: only what applies to it.

Sentences are ``try.*``, ``fix.*`` and ``fix_program.*`` in ``messages.toml``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.plan.recipes import format_fix_hp, format_setting
from trainmark.record.messages import MESSAGES, find_fix, get_stated_fix
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.plan.plan import Plan
    from trainmark.record.record import Cause, Record

_RESUMABLE = ("timed_out_training", "stopped_by_signal", "launcher_killed", "job_lost", "node_lost")
_WIDE_PRECISIONS = ("fp32", "tf32")  # precisions that need more memory than 16 bits


def advise(record: Record) -> list[Message]:
    """Return what to try after a run that did not pass, the most promising first.

    If an error states its own fix, only that one is returned.
    """
    cause = record.cause
    plan = record.plan
    if cause is None:
        return []
    if get_stated_fix(cause):
        return [find_fix(cause)]  # returns the stated fix
    # A user's own program was run: it has no recipe whose fields could be changed.
    if plan.witness is not None:
        return [_advise_on_program(cause, plan)]
    code = cause.message.code
    steps = record.counts.steps
    advice: list[Message] = []
    # Some runs were ended from outside, without a failure of their own: they can be resumed.
    if code in _RESUMABLE and _has_checkpoint(plan, steps):
        advice.append(message("try.resume"))
    if code == "target_missed":
        advice += _advise_on_target(plan, steps)
    elif code == "timed_out_training":
        limit_s = format_setting(plan.recipe["timeout_s"])
        advice.append(message("try.raise_timeout", limit_s=limit_s))
    elif cause.kind == "diverged":
        advice += _advise_on_divergence(plan)
    elif cause.kind == "oom":
        advice += _advise_on_memory(plan, on_host=code == "rank_killed_out_of_memory")
    return advice or [find_fix(cause)]  # the general advice for this kind of cause


def _advise_on_program(cause: Cause, plan: Plan) -> Message:
    """Return what to do after a user's own program did not pass.

    Some advice names the file with the program's output, or the time limit of the run.
    """
    general = find_fix(cause)
    code = f"fix_program.{general.code.removeprefix('fix.')}"
    if code not in MESSAGES:  # the general advice applies to programs, too
        return general
    # ``node_processes``: number of processes that start the ranks, one on each node; 0: the
    # launcher starts the ranks itself. Ranks print into the log of what started them. The user
    # replaces ``<N>`` by the number of a node.
    return message(
        code,
        log="log.node<N>.txt" if plan.node_processes else "log.launcher.txt",
        limit_s=format_setting(plan.recipe["timeout_s"]),
    )


def _has_checkpoint(plan: Plan, steps: int) -> bool:
    """Tell whether a run of so many steps saved a checkpoint."""
    interval: int | None = plan.recipe.get("checkpoint_every_steps")  # None or 0: it saves none
    return interval is not None and 0 < interval <= steps


def _advise_on_target(plan: Plan, steps: int) -> Iterator[Message]:
    """Yield what may reach a target that a run of so many steps missed."""
    # A recipe limits the steps, the epochs, or both: advise to raise the limit that ended the run.
    max_steps = plan.recipe["max_steps"]
    if max_steps is not None and steps >= max_steps:
        yield message("try.raise_steps", name="max_steps", value=max_steps)
    else:
        yield message("try.raise_steps", name="max_epochs", value=plan.recipe["max_epochs"])
    # The user's changes to the recipe. ``fix_hp``: those after which the result still complies with
    # the closed rules, the stricter of the two sets of rules for results; ``extra``: all others.
    changes = format_fix_hp(plan.fix_hp | plan.extra)
    if changes:
        yield message("try.undo_changes", changes=changes)


def _advise_on_divergence(plan: Plan) -> Iterator[Message]:
    """Yield what may keep the loss finite."""
    yield message("try.lower_lr", value=format_setting(plan.recipe["learning_rate"]))
    if plan.recipe["precision"] == "fp16":
        yield message("try.not_fp16")


def _advise_on_memory(plan: Plan, *, on_host: bool) -> Iterator[Message]:
    """Yield what lowers the memory that a rank needs.

    Args:
        on_host: the host's memory ran out, not a device's.
    """
    recipe = plan.recipe
    if on_host and plan.nproc > 1:
        yield message("try.fewer_ranks", value=plan.nproc)
    if recipe["micro_batch_size"] > 1:
        yield message("try.lower_batch", value=recipe["micro_batch_size"])
    # A lower precision makes the tensors on the devices smaller. They are in the host's memory only
    # if the ranks trained on the CPU. ``on_host`` does not tell whether they did, so that another
    # precision is not advised then.
    if recipe["precision"] in _WIDE_PRECISIONS and not on_host:
        yield message("try.bf16")
    # The field is a word in some cases, such as ``full``, and true or false in others.
    setting = recipe.get("checkpoint_activations")
    if setting == "none":
        yield message("try.checkpoint_activations", value="full")
    elif setting is False:
        yield message("try.checkpoint_activations", value="true")
    if recipe.get("fsdp") is False and plan.world_size > 1:
        yield message("try.fsdp")
    yield message("try.more_memory_host" if on_host else "try.more_memory")
