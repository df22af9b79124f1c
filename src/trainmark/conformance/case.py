"""What a case must keep, judged from two short runs of it and a look at its job.

Owns the rules; ``launch.case_check`` makes the runs. What a run's own checks found (counts
that contradict each other, parameters without a gradient) is its cause and is passed on.
A package that offers a case calls ``launch.case_check.check_case`` from its own tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.results.record import Record

CHECKS = (
    "description", "runs", "counts", "steps_per_epoch", "gradients", "loss_falls",
    "equal_losses", "evaluation", "flops",
)  # fmt: skip
# What a failed run's cause belongs to; any other belongs to "runs".
_CHECK_OF_KIND = {
    "impossible_figure": "counts",
    "not_trained": "gradients",
    "untimed_work": "evaluation",
}
# A case's own kernels may take fewer matmuls than its model has (a symmetric product's backward
# pass): the built-in cases are held to 1% with plain ones by a test of their own.
_FLOPS_TOLERANCE = 0.1
# Dropout draws differ between worlds, the rows of a step do not: means over some steps agree.
_LOSS_TOLERANCE = 0.05
_FEWEST_STEPS = 10
# After some steps with other dropout draws; a sum where a mean belongs is off by the ranks.
_QUALITY_TOLERANCE = 0.25


@dataclass(frozen=True, slots=True)
class Check:
    """One rule: its faults, or why it could not be looked at."""

    name: str
    faults: tuple[Message, ...] = ()
    skipped: Message | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the check for JSON."""
        return {
            "check": self.name,
            "ok": not self.faults and self.skipped is None,
            "faults": [fault.as_dict() for fault in self.faults],
            "skipped": None if self.skipped is None else self.skipped.as_dict(),
        }


@dataclass(slots=True)
class _Found:
    faults: dict[str, list[Message]] = field(default_factory=lambda: {name: [] for name in CHECKS})
    skipped: dict[str, Message] = field(default_factory=dict)


def judge(
    runs: dict[int, Record],
    probe: dict[str, Any] | Message,
    *,
    missing: Message | None = None,
    described: Sequence[Message] = (),
) -> list[Check]:
    """Return every check in order.

    Args:
        runs: the record of each world by its ranks; the same rows make a step in each.
        probe: what ``probe.look`` found, or why it found nothing.
        missing: why there is no second world.
        described: what ``description.description_faults`` found.
    """
    found = _Found()
    found.faults["description"] += described
    for world, record in runs.items():
        _of_run(world, record, found)
    if isinstance(probe, Message):
        found.faults["runs"].append(probe)
        found.skipped |= dict.fromkeys(("steps_per_epoch", "flops"), message("check_without_run"))
    else:
        found.faults["steps_per_epoch"] += _of_epoch(probe, next(iter(runs.values())))
        _of_flops(probe, found)
    _of_losses(runs, missing, found)
    found.faults["evaluation"] += _of_qualities(runs)
    return [
        Check(
            name,
            tuple(_once(found.faults[name])),
            None if found.faults[name] else found.skipped.get(name),
        )
        for name in CHECKS
    ]


def _of_run(world: int, record: Record, found: _Found) -> None:
    if record.cause is not None:
        name = _CHECK_OF_KIND.get(record.cause.kind, "runs")
        if name == "runs":  # an exception may be anything: say where it was raised
            place = record.cause.place or record.cause.kind
            found.faults[name].append(message("check_run_failed", ranks=world, place=place))
        found.faults[name].append(record.cause.message)
        return
    rows, scored = record.plan.data.eval_samples, record.quality.eval_samples
    if not record.plan.evaluates:
        found.skipped["evaluation"] = message("never_evaluates")
    elif scored != rows:
        found.faults["evaluation"].append(
            message("check_evaluation_rows", ranks=world, scored=scored or 0, rows=rows)
        )


def _of_epoch(probe: dict[str, Any], record: Record) -> Iterator[Message]:
    """Hold a whole epoch's batches against what the job and its data announce."""
    steps, samples = probe["steps"], probe["samples"]
    if steps is None:
        return
    if steps != probe["announced_steps"]:
        yield message("steps_of_epoch", epoch=1, steps=steps, planned=probe["announced_steps"])
    expected = probe["announced_samples"]
    expected = record.plan.data.train_samples if expected is None else expected
    if samples != expected:
        yield message("samples_of_epoch", epoch=1, samples=samples, expected=expected)


def _of_flops(probe: dict[str, Any], found: _Found) -> None:
    said, counted = probe["model_flops"], probe["counted"]
    if said is None:
        found.skipped["flops"] = message("no_flop_formula")
    elif abs(said - counted) > _FLOPS_TOLERANCE * counted:
        ratio = said / counted if counted else None
        found.faults["flops"].append(
            message("check_flops", said=said, counted=counted, ratio=ratio)
        )


def _of_losses(runs: dict[int, Record], missing: Message | None, found: _Found) -> None:
    losses = {
        world: [loss for loss in record.steps.loss if loss is not None]
        for world, record in runs.items()
    }
    shortest = min(len(values) for values in losses.values())
    for world, values in losses.items():
        tenth = max(len(values) // 10, 1)
        if len(values) < _FEWEST_STEPS:
            found.skipped["loss_falls"] = message("check_too_few_steps", steps=len(values))
        elif _mean(values[-tenth:]) >= _mean(values[:tenth]):
            first, last = _mean(values[:tenth]), _mean(values[-tenth:])
            found.faults["loss_falls"].append(
                message(
                    "check_loss_not_falling",
                    ranks=world,
                    steps=len(values),
                    first=first,
                    last=last,
                )
            )
    if len(runs) < 2:
        found.skipped["equal_losses"] = missing or message("check_without_run")
        return
    if shortest < _FEWEST_STEPS:
        found.skipped["equal_losses"] = message("check_too_few_steps", steps=shortest)
        return
    one, other = (_mean(values[:_FEWEST_STEPS]) for values in losses.values())
    if abs(one - other) > _LOSS_TOLERANCE * max(abs(one), abs(other)):
        found.faults["equal_losses"].append(
            message("check_losses_differ", steps=_FEWEST_STEPS, one=one, two=other)
        )


def _of_qualities(runs: dict[int, Record]) -> Iterator[Message]:
    """Hold what the worlds evaluate to against each other."""
    known = [r.quality.value for r in runs.values() if r.passed and r.quality.value is not None]
    if len(known) == 2 and abs(known[0] - known[1]) > _QUALITY_TOLERANCE * max(map(abs, known)):
        yield message("check_qualities_differ", one=known[0], two=known[1])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _once(messages: list[Message]) -> list[Message]:
    """Return the messages without repetition; both worlds often say the same."""
    found: list[Message] = []
    for item in messages:
        if item not in found:
            found.append(item)
    return found
