"""Run a case for a few steps with one rank and with two, probe its job, and judge what it does.

A package that offers a case calls ``find_definition_faults`` and ``check_case`` from its own tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark import cases
from trainmark.errors import TrainmarkError, UsageError
from trainmark.launch.local import launch
from trainmark.launch.processes import StopRequest
from trainmark.launch.python_commands import SAFE_PATH_VARIABLES, build_module_command
from trainmark.plan import rules
from trainmark.plan.resolving import resolve
from trainmark.recipe import FIELD_ALIASES
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trainmark.plan.plan import Plan
    from trainmark.plan.request import RunRequest
    from trainmark.recipe import Recipe
    from trainmark.record.record import Record
    from trainmark.spec import Case, Text

STEPS = 100  # enough for a loss to fall by more than its noise, few enough to wait for
# A case may compute with fewer matmuls than its model has, for example in the backward pass of a
# symmetric product. Tests allow the built-in cases 1%.
_FLOPS_TOLERANCE = 0.1
# One rank and two train the same rows in a step, but their dropout masks differ: means over some
# steps agree.
_LOSS_TOLERANCE = 0.05
_MIN_STEPS = 10  # over which losses are averaged
_MAX_ERROR_CHARACTERS = 2000
_EVALUATION_FINDINGS = {
    "evaluated_rows",
    "evaluation_unchecked",
    "evaluation_rows_repeated",
    "evaluation_rows_change",
}
# Relative difference of the qualities of one rank and of two, whose dropout masks differ. A case
# that adds up a quality over ranks instead of averaging it differs by much more.
_QUALITY_TOLERANCE = 0.25


@dataclass(frozen=True, slots=True)
class CaseCheck:
    """The result of one rule.

    Args:
        check: name of the rule, one of ``CHECKS``.
        faults: what is wrong.
        skipped: why it could not be checked; None: it was.
    """

    check: str
    faults: tuple[Message, ...] = ()
    skipped: Message | None = None


class CaseReport(NamedTuple):
    """All checks of a case, and the sentences of the message codes that the case defines."""

    checks: list[CaseCheck]
    messages: Mapping[str, Text]

    @property
    def passed(self) -> bool:
        """Tell whether the checks were made and found no fault."""
        return bool(self.checks) and not any(check.faults for check in self.checks)


def check_case(
    request: RunRequest,
    *,
    steps: int = STEPS,
    stop: StopRequest | None = None,
    generated_root: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> CaseReport:
    """Run the case of ``request`` with one rank and with two, and return every check of it.

    Args:
        request: case, recipe, device and changes of the recipe.
        steps: optimizer steps of each run, at most an epoch.
        stop: stop signals are noted here; after one, nothing is judged.
        generated_root: the cache of generated data; None: the user's.
        say: called with a line about what is done next.

    Raises:
        UsageError, DataError, EnvironmentFault: the case cannot be planned.
    """
    stop = stop or StopRequest()
    with tempfile.TemporaryDirectory(prefix="trainmark-check-") as folder:
        planner = _CheckPlanner(request, steps, Path(folder), generated_root)
        single_rank = planner.plan(1)
        case_name = single_rank.case
        case_messages = single_rank.about.messages  # sentences of the case's own message codes
        plans = {1: single_rank}  # by number of ranks
        why_no_second_rank = None
        try:
            plans[2] = planner.plan_two_ranks(
                single_rank_batch=single_rank.recipe["micro_batch_size"]
            )
        except TrainmarkError as error:
            why_no_second_rank = message("check_without_second_rank", text=str(error))
        runs: dict[int, Record] = {}
        for num_ranks, plan in plans.items():
            say(f"{case_name}: {num_ranks} rank(s), {steps} steps at most")
            runs[num_ranks] = launch(plan, stop)
            if stop.signal_name is not None:
                return CaseReport([], case_messages)
        say(f"{case_name}: batches, FLOPs of a step")
        probe = _run_probe(Path(single_rank.run_dir))
        definition_faults = find_definition_faults(case_name)
        evidence = CaseEvidence(runs, probe, why_no_second_rank, definition_faults)
        return CaseReport(apply_rules(evidence), case_messages)


@dataclass(frozen=True, slots=True)
class _CheckPlanner:
    """Plans the runs of a check.

    Args:
        request: as the user gave it.
        steps: optimizer steps of each run.
        folder: in which each run gets a folder.
        generated_root: the cache of generated data; None: the user's.
    """

    request: RunRequest
    steps: int
    folder: Path
    generated_root: Path | None

    def plan(self, num_ranks: int, **changes: str) -> Plan:
        """Return the plan of a run of a limited number of steps.

        The number of ranks names the folder of the run, so plan each number only once.

        Args:
            changes: recipe fields with their values as text.
        """
        # Recipe fields by their full names, so that a later value replaces that of an alias.
        overrides = {
            FIELD_ALIASES.get(name, name): value for name, value in self.request.overrides.items()
        }
        overrides |= changes
        # The run does not end at the target. It ends with the first epoch if that has fewer steps.
        overrides |= {"target_value": "none", "max_epochs": "1", "max_steps": str(self.steps)}
        out = self.folder / str(num_ranks)
        update = {"overrides": overrides, "nproc": num_ranks, "out": out}
        request = self.request.model_copy(update=update)
        return resolve(request, generated_root=self.generated_root)

    def plan_two_ranks(self, *, single_rank_batch: int) -> Plan:
        """Return the plan of two ranks that train the same rows in a step as one rank.

        Args:
            single_rank_batch: micro-batch size of the single rank; each of the two ranks has half
                of it.

        Raises:
            UsageError: the batch is odd.
            TrainmarkError: the case cannot run with two ranks.
        """
        if single_rank_batch % 2:
            raise UsageError(
                f"bs={single_rank_batch} cannot be split evenly between two ranks",
                fix="set bs to an even number",
            )
        return self.plan(2, micro_batch_size=str(single_rank_batch // 2))


def _run_probe(run_dir: Path) -> dict[str, Any] | Message:
    """Return the report of a separate process about the job, or the last line of its errors.

    Args:
        run_dir: folder of a run on one rank that has ended; the process builds the job of its plan.
    """
    ended = subprocess.run(
        build_module_command("trainmark.conformance.probe", str(run_dir)),
        # With these variables, Python imports nothing from the current folder.
        env=os.environ | SAFE_PATH_VARIABLES,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode == 0:
        # The report is the last line; the job may have printed others before it.
        report: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return report
    error_lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
    return message("exception", text=error_lines[-1][:_MAX_ERROR_CHARACTERS])


class _SkippedError(Exception):
    """A rule cannot be checked; its only argument says why."""


class CaseEvidence(NamedTuple):
    """Input of the rules.

    Args:
        runs: record by number of ranks; a step has the same rows in each run.
        probe: result of ``probe.probe_job``, or why it failed.
        why_no_second_rank: why there is no run with two ranks; None: there is one.
        definition_faults: result of ``find_definition_faults``.
    """

    runs: dict[int, Record]
    probe: dict[str, Any] | Message
    why_no_second_rank: Message | None = None
    definition_faults: Sequence[Message] = ()

    def get_probe_report(self) -> dict[str, Any]:
        """Return the report of the probe; if the probe failed, the rule is skipped."""
        if isinstance(self.probe, Message):  # why it failed, which ``_check_runs`` reports
            raise _SkippedError(message("check_without_probe"))
        return self.probe

    def read_losses(self) -> dict[int, list[float]]:
        """Return the known losses of each run by its number of ranks.

        If a run has too few steps, the rule is skipped.
        """
        losses = {
            num_ranks: [loss for loss in record.steps.loss if loss is not None]
            for num_ranks, record in self.runs.items()
        }
        min_steps = min(len(run_losses) for run_losses in losses.values())
        if min_steps < _MIN_STEPS:
            raise _SkippedError(message("check_too_few_steps", steps=min_steps))
        return losses


def apply_rules(evidence: CaseEvidence) -> list[CaseCheck]:
    """Return the result of every rule, in the order of ``_RULES``, which is that of ``CHECKS``."""
    checks = []
    for name, rule in _RULES.items():
        try:
            faults = list(rule(evidence))
        except _SkippedError as skipped:
            reason: Message = skipped.args[0]  # why the rule cannot be checked
            checks.append(CaseCheck(name, skipped=reason))
        else:
            distinct: list[Message] = []  # both runs often have the same fault
            for fault in faults:
                if fault not in distinct:
                    distinct.append(fault)
            checks.append(CaseCheck(name, tuple(distinct)))
    return checks


def _check_runs(evidence: CaseEvidence) -> Iterator[Message]:
    """Yield why runs or the probe failed.

    Wrong counts or gradients need no rule of their own: a run with them fails.
    """
    for num_ranks, record in evidence.runs.items():
        cause = record.cause
        if cause is not None:
            # What the failed rank was doing, such as building the job. If that is unknown, the kind
            # of the failure, such as ``timeout``, stands in its place.
            place = cause.place or cause.kind
            yield message("check_run_failed", ranks=num_ranks, place=place)
            yield cause.message
        for finding in record.findings:
            # The device's clock contradicts the host's; this alone does not make a run fail.
            if finding.code == "steps_beside_windows":
                yield finding
    if isinstance(evidence.probe, Message):
        yield evidence.probe


def _check_batches(evidence: CaseEvidence) -> Iterator[Message]:
    """Yield a fault if batches use global random numbers, or overwrite the batch before."""
    report = evidence.get_probe_report()
    if report["draws"]:
        yield message("check_batches_draw", module=report["draws"])
    if report["overwritten"]:
        yield message("check_batches_overwritten")


def _check_loss_falls(evidence: CaseEvidence) -> Iterator[Message]:
    """Compare the mean loss of the last tenth of the steps with that of the first tenth."""
    for num_ranks, losses in evidence.read_losses().items():
        tenth = len(losses) // 10  # at least 1: `read_losses` skips the rule below 10 losses
        first = fmean(losses[:tenth])
        last = fmean(losses[-tenth:])
        if last >= first:
            args = {"steps": len(losses), "first": first, "last": last}
            yield message("check_loss_not_falling", ranks=num_ranks, **args)


def _check_equal_losses(evidence: CaseEvidence) -> Iterator[Message]:
    """Compare the first losses of the runs with one rank and with two.

    They train the same rows in each step, so that the losses must be nearly equal.
    """
    if evidence.why_no_second_rank is not None:
        raise _SkippedError(evidence.why_no_second_rank)
    losses_by_ranks = evidence.read_losses()
    # Each run has at least ``_MIN_STEPS`` losses: with fewer, ``read_losses`` skips the rule.
    with_one_rank = fmean(losses_by_ranks[1][:_MIN_STEPS])
    with_two_ranks = fmean(losses_by_ranks[2][:_MIN_STEPS])
    max_difference = _LOSS_TOLERANCE * max(abs(with_one_rank), abs(with_two_ranks))
    if abs(with_one_rank - with_two_ranks) > max_difference:
        yield message(
            "check_losses_differ", steps=_MIN_STEPS, one=with_one_rank, two=with_two_ranks
        )


def _check_evaluation(evidence: CaseEvidence) -> list[Message]:
    """Return faults of each run's evaluation; compare rows and qualities of the two runs.

    The findings of a run's record tell whether its evaluations scored each row of the data once. If
    there is no fault, and there are no two qualities to compare, the rule is skipped.
    """
    if not all(record.plan.evaluates for record in evidence.runs.values()):
        raise _SkippedError(message("never_evaluates"))
    # ``cause`` is why a run failed; ``_check_runs`` reports failed runs.
    passed_runs = [record for record in evidence.runs.values() if record.cause is None]
    faults: list[Message] = []
    for record in passed_runs:
        faults += [finding for finding in record.findings if finding.code in _EVALUATION_FINDINGS]
    # The last evaluation of each run.
    evaluations = [x.quality.history[-1] for x in passed_runs if x.quality.history]
    # The same rows have the same digest, on however many ranks they were scored.
    digests = {x.scored["digest"] for x in evaluations if x.scored is not None}
    if len(digests) > 1:
        faults.append(message("check_evaluated_rows_differ"))
    qualities = [x.quality.value for x in passed_runs if x.quality.value is not None]
    if len(qualities) == 2:
        with_one_rank, with_two_ranks = qualities  # ``evidence.runs`` is in this order
        max_difference = _QUALITY_TOLERANCE * max(abs(with_one_rank), abs(with_two_ranks))
        if abs(with_one_rank - with_two_ranks) > max_difference:
            faults.append(message("check_qualities_differ", one=with_one_rank, two=with_two_ranks))
    elif not faults:
        # Without a fault, the check would count as passed, although nothing was compared.
        if evidence.why_no_second_rank is not None:
            raise _SkippedError(evidence.why_no_second_rank)
        raise _SkippedError(message("check_without_qualities"))
    return faults


def _check_flops(evidence: CaseEvidence) -> Iterator[Message]:
    """Compare the FLOPs of a step by the job's formula with those that were counted."""
    report = evidence.get_probe_report()
    formula_flops = report["model_flops"]
    counted_flops = report["counted"]
    if formula_flops is None:  # the job has no formula
        raise _SkippedError(message("no_flop_formula"))
    if abs(formula_flops - counted_flops) > _FLOPS_TOLERANCE * counted_flops:
        ratio = formula_flops / counted_flops if counted_flops else None
        yield message("check_flops", formula=formula_flops, counted=counted_flops, ratio=ratio)


def _check_waits(evidence: CaseEvidence) -> Iterator[Message]:
    """Yield the operation of a step that makes the host wait for the device."""
    # Arguments of the message; empty: no operation waits; None: the device cannot tell.
    waits = evidence.get_probe_report()["waits"]
    if waits is None:
        raise _SkippedError(message("check_waits_unknown"))
    if waits:
        yield message("check_step_waits", **waits)


_RULES: dict[str, Callable[[CaseEvidence], Iterable[Message]]] = {
    "description": lambda evidence: evidence.definition_faults,
    "runs": _check_runs,
    "batches": _check_batches,
    "loss_falls": _check_loss_falls,
    "equal_losses": _check_equal_losses,
    "evaluation": _check_evaluation,
    "flops": _check_flops,
    "no_waits": _check_waits,
}
CHECKS = tuple(_RULES)


def find_definition_faults(name: str) -> list[Message]:
    """Return what is wrong with a case's recipes that train on generated data.

    At least one must exist. The data of each must be the same whenever it is generated, must not be
    empty, and must allow the recipe's target quality. No job is built.

    Raises:
        UsageError: no such case, or its ``case.py`` or ``rules.toml`` cannot be read.
    """
    case = cases.load(name)
    rules.read_rules(case)  # raises for a malformed rules.toml
    generated_recipes = {
        recipe_name: recipe
        for recipe_name, recipe in case.recipes.items()
        if recipe.data == "generated"
    }
    if not generated_recipes:  # without one, the case does not run without downloads
        return [message("check_no_generated_recipe")]
    faults: list[Message] = []
    for recipe_name, recipe in generated_recipes.items():
        faults += _check_generated_data(case, recipe_name, recipe)
    return faults


def _check_generated_data(case: Case, name: str, recipe: Recipe) -> Iterator[Message]:
    """Generate the data of a recipe twice, and yield what is wrong with it.

    Both must be equal and readable, and the recipe's target quality must be reachable.
    """
    with tempfile.TemporaryDirectory(prefix="trainmark-check-") as temporary:
        first_folder = cases.ensure_generated_data(case, recipe, Path(temporary) / "a")
        second_folder = cases.ensure_generated_data(case, recipe, Path(temporary) / "b")
        facts = cases.check_data(case.name, first_folder, recipe)
        repeated_facts = cases.check_data(case.name, second_folder, recipe)
        if facts.content_id != repeated_facts.content_id:
            yield message("check_data_not_repeatable", recipe=name)
        if facts.train_samples < 1 or (recipe.evaluates and facts.eval_samples < 1):
            yield message("check_data_empty", recipe=name)
        target = case.target(recipe)
        # The best quality that any model can reach on this data; None: it is not known.
        best = facts.best_quality
        if target and best is not None and not target.reached(best):
            values = {"target": target.value, "best": best}
            yield message("check_target_unreachable", recipe=name, **values)
