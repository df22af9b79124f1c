"""The judgement of a gate: its verdicts, their exit codes, and how they are made of a figure.

``baseline_gate`` and ``history_gate`` own the rules. docs/compare.md states the verdicts and codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trainmark.errors import EXIT_FAILED, EXIT_NOISY, EXIT_PASSED, EXIT_USAGE, RecordError
from trainmark.judge.comparison.sides import reject_unknown_figures
from trainmark.plan.recipes import format_fix_hp
from trainmark.record.figures import list_specs
from trainmark.record.trust import is_refuted
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record

GateVerdict = Literal[
    "passed", "improved", "regressed", "failed", "missing", "other_work", "noisy", "no_history"
]
# All other verdicts have ``EXIT_FAILED``.
_EXIT_CODES = {
    "passed": EXIT_PASSED,
    "improved": EXIT_PASSED,
    "noisy": EXIT_NOISY,
    "no_history": EXIT_NOISY,
    "other_work": EXIT_USAGE,
}
_WORST_FIRST = (EXIT_FAILED, EXIT_USAGE, EXIT_NOISY, EXIT_PASSED)
# Codes of trust reasons for which the cause of a regression may be something else than the program.
_DISTURBANCES = {"machine_busy", "device_shared"}
QUALITY = "quality"  # the metric of the case, whatever its name there
FIGURES = ("final_result", "p_train", "e2e_time", "mem")
# Relative changes; smaller ones are neither a regression nor an improvement.
MIN_WORSE = 0.03
MIN_BETTER = 0.1


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a figure of a piece of work, with its numbers in ``message``.

    If no figure can be judged, ``figure`` names what is at fault: ``record``, ``status`` or
    ``work``.
    """

    work: str
    figure: str
    verdict: GateVerdict
    message: Message

    @property
    def exit_code(self) -> int:
        """The exit code of this verdict alone."""
        # ``regressed``, ``failed`` and ``missing`` are not in ``_EXIT_CODES``.
        return _EXIT_CODES.get(self.verdict, EXIT_FAILED)


def fail_unreadable(error: RecordError) -> Judgement:
    """Return the failure of a run whose record cannot be read."""
    reason = message("gate_unreadable", error=error.what)
    place = error.where or ""  # stands for the work, which is unknown without a record
    return Judgement(place, figure="record", verdict="failed", message=reason)


def combine_exit_codes(judgements: Sequence[Judgement]) -> int:
    """Return the worst exit code; that of too little data if nothing was judged.

    The worst is that of a failure or regression (1). Next is that of other work (2), then that of
    too much noise or too little data (3), and last that of success (0).
    """
    codes = {judgement.exit_code for judgement in judgements}
    for code in _WORST_FIRST:
        if code in codes:
            return code
    return EXIT_NOISY


def reject_unknown_names(record: Record, names: Sequence[str]) -> None:
    """Raise a UsageError for the first name that is no figure of the record's case."""
    reject_unknown_figures(names, (QUALITY, *list_specs(record.plan.about.page)))


def is_usable(record: Record) -> bool:
    """Tell whether a launch passed, and its evidence does not contradict it."""
    return record.passed and not is_refuted(record.trust)


def fail_unusable(launches: Sequence[Record]) -> list[Judgement]:
    """Return a failure for each launch that cannot be judged."""
    failures = []
    for record in launches:
        if not is_usable(record):
            code = "gate_refuted" if is_refuted(record.trust) else "gate_status"
            reason = message(code, run=record.run_id, status=record.status)
            work = describe_work_briefly(record)
            failures.append(Judgement(work, figure="status", verdict="failed", message=reason))
    return failures


def read_unit(record: Record, name: str) -> str:
    """Return the unit of a figure, or the name of the quality's metric; empty: it is missing."""
    if name == QUALITY:
        return record.quality.metric
    entry = record.figures.get(name)
    return "" if entry is None else entry.unit


def _read_value(record: Record, name: str) -> float | None:
    """Return a figure or the quality; None if it is not known."""
    if name == QUALITY:
        return record.quality.value
    entry = record.figures.get(name)
    return None if entry is None else entry.value


def read_values(launches: Sequence[Record], name: str, unit: str | None = None) -> list[float]:
    """Return the value of a figure in each launch that has one above zero.

    Only such values have a ratio and a logarithm, by which they are compared.

    Args:
        unit: only launches with this unit count; None: all do.
    """
    values = []
    for record in launches:
        value = _read_value(record, name)
        has_unit = unit is None or unit == read_unit(record, name)
        if value is not None and value > 0 and has_unit:
            values.append(value)
    return values


def describe_work_briefly(record: Record) -> str:
    """Return a name of a record's work for people.

    It has the case with its framework, hardware and world, then the recipe and its changes.
    """
    # The fields that differ from the standard recipe: ``fix_hp`` has the changes that the closed
    # rules allow, ``extra`` has all others.
    changes = format_fix_hp(record.plan.fix_hp | record.plan.extra)
    return f"{record.plan.case_key} {record.plan.recipe_name} {changes}".rstrip()


def get_sign(record: Record, name: str) -> int:
    """Return 1 if higher values are better, else -1.

    A figure without a direction counts as one that should not rise.
    """
    about = record.plan.about
    if name == QUALITY:  # of the trained model, which is not among the figures
        return 1 if about.higher_is_better else -1
    # Declarations by name of the figures that every case has, and of those that only this case has:
    # ``about.page`` declares what pages show of the case in addition.
    spec = list_specs(about.page).get(name)
    return 1 if spec is not None and spec.better == "higher" else -1


def make_judgement(
    launches: Sequence[Record],
    name: str,
    verdict: GateVerdict,
    *,
    code: str | None = None,
    **args: Any,
) -> Judgement:
    """Return a judgement on a figure; a regression on a machine in use counts as noise only.

    Args:
        name: name of the figure.
        code: end of the message's code: ``step`` stands for ``gate_step``; None: the verdict.
        args: further arguments of the message.
    """
    doubts = {reason.code for record in launches for reason in record.trust.reasons}
    # Other programs used the machine, for instance, so that the run may be slow because of them.
    if verdict == "regressed" and doubts & _DISTURBANCES:
        verdict = "noisy"
        code = "disturbed"
    reason = message(f"gate_{code or verdict}", figure=name, launches=len(launches), **args)
    return Judgement(describe_work_briefly(launches[0]), name, verdict, reason)
