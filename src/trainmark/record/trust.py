"""Grade how far figures can be trusted, with reasons, by one rule for every page.

Owns the thresholds and which reason leads to which grade; docs/metrics.md prints the rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from trainmark.plan.plan import BALANCED_BOUND, SIMULATED
from trainmark.record.findings import FINDING_KINDS
from trainmark.record.record import Grade, Trust, Verification
from trainmark.record.stats import INTERVAL_MIN_LAUNCHES, summarize_launches
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainmark.record.measurement import Measurement
    from trainmark.record.record import FigureEntry, Record, Status

MAX_CV = 0.1  # coefficient of variation
MAX_SWING = 0.1  # relative change of a device's matmul rate while it was measured

# Reasons that only make figures noisy and are not findings, with the argument that tells how bad a
# reason is: the further from 0, the worse. Empty: none does.
_SEVERITY_ARG_OF_NOISY_REASON = {
    "trust_cv": "cv",
    "trust_swing": "swing",
    "trust_launch_cv": "",
    "trust_few_launches": "",
}
_CODES_OF_LABELS = {
    SIMULATED: "trust_simulated_device",
    "generated-data": "trust_generated_data",
    BALANCED_BOUND: "trust_balanced_bound",
    "oversubscribed": "oversubscribed",
}
# Codes of reasons why nothing was compared with the evidence. They lower the grade, but are no
# disagreement, so that the exit code does not change.
_UNPROVEN = {
    "evidence_absent",
    "evidence_case_absent",
    "evidence_other_version",
    "evidence_unchecked",
}


def is_refuted(trust: Trust) -> bool:
    """Tell whether evidence contradicts the record, rather than being absent as a whole."""
    return any(is_refuting(reason.code) for reason in trust.reasons)


def is_counted(record: Record) -> bool:
    """Tell whether a launch counts in means: it passed, and no evidence contradicts it."""
    return record.passed and not is_refuted(record.trust)


def is_refuting(code: str) -> bool:
    """Tell whether a reason is that evidence contradicts the record.

    A single file that is missing contradicts the record, which lists it. ``_UNPROVEN`` has the
    codes that say why nothing was compared, such as that there is no evidence at all.
    """
    return code.startswith("evidence_") and code not in _UNPROVEN


def grade_reasons(reasons: Iterable[Message]) -> Trust:
    """Return the grade that follows from ``reasons``, with the reasons, the grave ones first.

    A grave reason forbids quoting the figures; any other only makes them noisy. Of reasons with the
    same code only the first is kept.
    """
    first_of_code: dict[str, Message] = {}
    for reason in reasons:
        first_of_code.setdefault(reason.code, reason)
    grave = [reason for reason in first_of_code.values() if not _is_noisy(reason.code)]
    noisy = [reason for reason in first_of_code.values() if _is_noisy(reason.code)]
    grade: Grade = "usable"
    if grave:
        grade = "do_not_quote"
    elif noisy:
        grade = "noisy"
    return Trust(grade=grade, reasons=[*grave, *noisy])


def _is_noisy(code: str) -> bool:
    """Tell whether a reason only makes figures noisy; every other reason is grave."""
    kind = FINDING_KINDS.get(code)
    if kind is None:  # not a finding
        return code in _SEVERITY_ARG_OF_NOISY_REASON
    return kind.grade == "noisy"


def _lowers_grade(code: str) -> bool:
    """Tell whether a finding lowers the grade; one that a case adds never does."""
    kind = FINDING_KINDS.get(code)
    return kind is not None and kind.grade != "usable"


def grade_launch(
    measurement: Measurement,
    *,
    status: Status,
    figures: Mapping[str, FigureEntry],
    findings: Iterable[Message],
) -> Trust:
    """Return the trust in one launch: a grade, and the reasons that lower it.

    The reasons follow from its status, labels, figures and findings.
    """
    reasons = [] if status == "passed" else [message("trust_not_passed")]
    # Some labels of a run, such as that of generated data, lower the trust.
    reasons += [
        message(code) for label, code in _CODES_OF_LABELS.items() if label in measurement.labels
    ]
    reasons += [finding for finding in findings if _lowers_grade(finding.code)]
    # The coefficient of variation is a percentage in figures, and a share in reasons and limits.
    cv_percent = figures["step_time_cv"].value if "step_time_cv" in figures else None
    if cv_percent is not None and cv_percent > 100 * MAX_CV:
        reasons.append(message("trust_cv", cv=cv_percent / 100))
    # How much the rate of a device's matmuls changed in preflight, while nothing else ran. A rank
    # that did not measure it gives no reason.
    swing = max(rank.matmul_swing or 0.0 for rank in measurement.ranks)
    if swing > MAX_SWING:
        reasons.append(message("trust_swing", swing=swing))
    return grade_reasons([*reasons, _note_few_launches(1)])  # one launch alone shows no spread


def _note_few_launches(launches: int) -> Message:
    """Return the reason that there are too few launches for an interval."""
    return message("trust_few_launches", launches=launches, least=INTERVAL_MIN_LAUNCHES)


def grade_repeats(records: Sequence[Record]) -> Trust:
    """Return the trust in the figures over several launches: a grade, and reasons that lower it.

    Launches that did not pass are left out. If none passed, the reasons of all say why. A launch
    that its evidence contradicts gives its reasons, but is not in the means, so that it does not
    count in their variation and number.
    """
    passed_records = [record for record in records if record.passed]
    averaged_records = [record for record in passed_records if is_counted(record)]
    counted_records = passed_records or records
    # Each launch has the reason that one launch is too few. It is left out: below, the number of
    # launches in the means decides.
    reasons = _select_worst_reasons(
        reason
        for record in counted_records
        for reason in record.trust.reasons
        if reason.code != "trust_few_launches"
    )
    # The training throughput; None: the record does not know it.
    throughputs = [record.figure("p_train") for record in averaged_records]
    known_throughputs = [throughput for throughput in throughputs if throughput is not None]
    # The variation between launches, as a share of the mean; None for a single one.
    cv = summarize_launches(known_throughputs).cv if known_throughputs else None
    if cv is not None and cv > MAX_CV:
        reasons.append(message("trust_launch_cv", cv=cv))
    if len(averaged_records) < INTERVAL_MIN_LAUNCHES:
        reasons.append(_note_few_launches(len(averaged_records)))
    return grade_reasons(reasons)


def _select_worst_reasons(reasons: Iterable[Message]) -> list[Message]:
    """Return one reason of each code: the worst one.

    Many codes have an argument that tells how bad the reason is, such as the drift of step times.
    For a code without one, the first reason is returned.

    Args:
        reasons: those of all launches.
    """
    worst_of_code: dict[str, Message] = {}
    for reason in reasons:
        worst = worst_of_code.setdefault(reason.code, reason)
        if _get_severity(reason) > _get_severity(worst):
            worst_of_code[reason.code] = reason
    return list(worst_of_code.values())


def get_severity_arg(code: str) -> str:
    """Return the argument that tells how bad a reason with this code is; empty: none does."""
    if code in FINDING_KINDS:
        return FINDING_KINDS[code].severity_arg
    return _SEVERITY_ARG_OF_NOISY_REASON.get(code, "")


def _get_severity(reason: Message) -> float:
    """Return how bad a reason is: how far the argument that tells it is from 0.

    0 if the reason has no such argument, or if the argument is no number.
    """
    # None: the code has no such argument, or the record was edited and the argument is missing.
    value = reason.args.get(get_severity_arg(reason.code))
    return abs(value) if isinstance(value, int | float) else 0.0


def get_trust(records: Sequence[Record]) -> Trust:
    """Return the trust in one launch or in several of the same work."""
    return records[0].trust if len(records) == 1 else grade_repeats(records)


def find_worst_grade(grades: Iterable[Grade]) -> Grade:
    """Return the worst of at least one grade; ``Grade`` lists them from the best to the worst."""
    return max(grades, key=get_args(Grade).index)


def combine_verifications(records: Iterable[Record]) -> Verification:
    """Return the worst verification of the records; ``unverified`` if there are no records.

    ``verified`` is the best one, then come ``unverified`` and ``contradicted``.
    """
    verifications = [record.verification for record in records]
    return find_worst_verification(verifications) if verifications else "unverified"


def find_worst_verification(verifications: Iterable[Verification]) -> Verification:
    """Return the worst of at least one; ``Verification`` lists them from the best to the worst."""
    return max(verifications, key=get_args(Verification).index)


def add_reasons(record: Record, reasons: Sequence[Message]) -> Record:
    """Return a record with more reasons in its trust, which is graded again.

    The new reasons come first: of two reasons with the same code, the grade keeps the first, so
    that a new check replaces the result of an earlier one.
    """
    if not reasons:
        return record
    return record.model_copy(update={"trust": grade_reasons([*reasons, *record.trust.reasons])})
