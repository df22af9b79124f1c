"""Rules for cases, checked on the description, on two short runs and on a probe of the job.

Owns the rules; ``check.case_check`` makes the runs.
A package that offers a case calls ``description_faults`` and ``check.case_check.check_case``
from its own tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark import cases
from trainmark.plan import overrides
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trainmark.recipe import Recipe
    from trainmark.record.record import Record
    from trainmark.spec import Case, DataFacts

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
    """The result of one rule: its faults, or why it could not be checked."""

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


class _SkippedError(Exception):
    """A rule cannot be checked; why."""

    def __init__(self, code: str | Message, **values: Any) -> None:
        super().__init__()
        self.why = message(code, **values) if isinstance(code, str) else code


class _Inputs(NamedTuple):
    """Input of the rules; see ``judge``."""

    runs: dict[int, Record]
    probe: dict[str, Any] | Message
    missing: Message | None
    described: Sequence[Message]

    def found(self) -> dict[str, Any]:
        """Return what the probe found."""
        if isinstance(self.probe, Message):
            raise _SkippedError("check_without_run")
        return self.probe

    def losses(self) -> dict[int, list[float]]:
        """Return the known losses of each world by its ranks, if there are enough."""
        found = {
            world: [loss for loss in record.steps.loss if loss is not None]
            for world, record in self.runs.items()
        }
        if (shortest := min(map(len, found.values()))) < _FEWEST_STEPS:
            raise _SkippedError("check_too_few_steps", steps=shortest)
        return found


def judge(
    runs: dict[int, Record],
    probe: dict[str, Any] | Message,
    *,
    missing: Message | None = None,
    described: Sequence[Message] = (),
) -> list[Check]:
    """Return every check in order.

    Args:
        runs: record by number of ranks; a step has the same rows in each run.
        probe: result of ``probe.look``, or why it failed.
        missing: why there is no run with two ranks.
        described: result of ``description_faults``.
    """
    inputs = _Inputs(runs, probe, missing, described)
    return [_check(name, inputs) for name in CHECKS]


def _check(name: str, inputs: _Inputs) -> Check:
    try:
        found = list(_RULES[name](inputs))
    except _SkippedError as skipped:
        return Check(name, skipped=skipped.why)
    # Both runs often have the same fault.
    return Check(name, tuple(x for place, x in enumerate(found) if x not in found[:place]))


def _runs(inputs: _Inputs) -> Iterator[Message]:
    """Yield why runs or the probe failed; a run itself finds wrong counts and dead gradients."""
    for world, record in inputs.runs.items():
        if cause := record.cause:
            yield message("check_run_failed", ranks=world, place=cause.place or cause.kind)
            yield cause.message
    if isinstance(inputs.probe, Message):
        yield inputs.probe


def _epoch(inputs: _Inputs) -> Iterator[Message]:
    """Compare a whole epoch's batches with what the job and its data declare."""
    probe = inputs.found()
    steps, samples, planned = probe["steps"], probe["samples"], probe["announced_steps"]
    if steps is None:
        return  # too long to read
    if steps != planned:
        yield message("steps_of_epoch", epoch=1, steps=steps, planned=planned)
    expected = probe["announced_samples"]
    if expected is None:
        expected = next(iter(inputs.runs.values())).plan.data.train_samples
    if samples != expected:
        yield message("samples_of_epoch", epoch=1, samples=samples, expected=expected)


def _batches(inputs: _Inputs) -> Iterator[Message]:
    if inputs.found()["draws"] is not None:
        yield message("check_batches_draw", module=inputs.found()["draws"])
    if inputs.found()["overwritten"]:
        yield message("check_batches_overwritten")


def _loss_falls(inputs: _Inputs) -> Iterator[Message]:
    for world, losses in inputs.losses().items():
        tenth = len(losses) // 10
        first, last = fmean(losses[:tenth]), fmean(losses[-tenth:])
        if last >= first:
            yield message(
                "check_loss_not_falling", ranks=world, steps=len(losses), first=first, last=last
            )


def _equal_losses(inputs: _Inputs) -> Iterator[Message]:
    if len(inputs.runs) < 2:
        raise _SkippedError(inputs.missing or "check_without_run")
    one, two = (fmean(losses[:_FEWEST_STEPS]) for losses in inputs.losses().values())
    if abs(one - two) > _LOSS_TOLERANCE * max(abs(one), abs(two)):
        yield message("check_losses_differ", steps=_FEWEST_STEPS, one=one, two=two)


def _evaluation(inputs: _Inputs) -> Iterator[Message]:
    """Compare the evaluated rows with the data, and the qualities of the two runs."""
    passed = {world: record for world, record in inputs.runs.items() if record.cause is None}
    for world, record in passed.items():
        rows, scored = record.plan.data.eval_samples, record.quality.eval_samples
        if not record.plan.evaluates:
            raise _SkippedError("never_evaluates")
        if scored != rows:
            yield message("check_evaluation_rows", ranks=world, scored=scored or 0, rows=rows)
    values = [record.quality.value for record in passed.values()]
    known = [value for value in values if value is not None]
    if len(known) == 2 and abs(known[0] - known[1]) > _QUALITY_TOLERANCE * max(map(abs, known)):
        yield message("check_qualities_differ", one=known[0], two=known[1])


def _flops(inputs: _Inputs) -> Iterator[Message]:
    formula, counted = inputs.found()["model_flops"], inputs.found()["counted"]
    if formula is None:
        raise _SkippedError("no_flop_formula")
    if abs(formula - counted) > _FLOPS_TOLERANCE * counted:
        ratio = formula / counted if counted else None
        yield message("check_flops", said=formula, counted=counted, ratio=ratio)


def _waits(inputs: _Inputs) -> Iterator[Message]:
    if (waits := inputs.found()["waits"]) is not None:
        yield message("check_step_waits", **waits)


_RULES: dict[str, Callable[[_Inputs], Iterable[Message]]] = {
    "description": lambda inputs: inputs.described,
    "runs": _runs,
    "steps_per_epoch": _epoch,
    "batches": _batches,
    "loss_falls": _loss_falls,
    "equal_losses": _equal_losses,
    "evaluation": _evaluation,
    "flops": _flops,
    "no_waits": _waits,
}
CHECKS = tuple(_RULES)


def description_faults(name: str) -> list[Message]:
    """Return what is wrong with the case called ``name`` before any job is built.

    Generates the data of each generated recipe twice.

    Raises:
        UsageError: no such case, or its ``case.py`` or ``rules.toml`` cannot be read.
    """
    case = cases.load(name)
    overrides.rules_of(case)
    found: list[Message] = []
    generated = {name: x for name, x in case.recipes.items() if x.data == "generated"}
    for recipe_name, recipe in generated.items():
        found += _generated(case, recipe_name, recipe)
    if not generated:
        found.append(message("check_no_generated_recipe"))
    return found


def _generated(case: Case, name: str, recipe: Recipe) -> Iterator[Message]:
    """Generate twice: the bytes must be equal and readable, and the target reachable."""
    with TemporaryDirectory(prefix="trainmark-check-") as place:
        folders = [cases.generated_folder(case, recipe, Path(place) / one) for one in "ab"]
        first, second = (
            {(str(path.relative_to(folder)), sha256(path.read_bytes()).digest())
             for path in folder.rglob("*") if path.is_file()}
            for folder in folders
        )  # fmt: skip
        if different := sorted({file for file, _ in first ^ second}):
            files = ", ".join(different[:3])
            yield message("check_data_not_repeatable", recipe=name, files=files)
        facts: DataFacts = cases.part(case.name, "data").check(folders[0], recipe)
        if facts.train_samples < 1 or (recipe.evaluates and facts.eval_samples < 1):
            yield message("check_data_empty", recipe=name)
        target, best = case.target(recipe), facts.best_quality
        if target and best is not None and not target.reached(best):
            value = target.value
            yield message("check_target_unreachable", recipe=name, target=value, best=best)
