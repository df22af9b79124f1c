"""Check a record once, when it is loaded: against itself, and against its evidence files.

A record with its events beside it that gives the same when it is reduced again is verified. A
record that its evidence or its own values contradict is contradicted. Any other is unverified. The
trust of both names why. Of a record alone, figures, counts, spans, quality,
findings and trust are computed again, by the functions that made them, from the sums of ranks and
the series of steps. What ranks measured and nothing repeats, such as a matmul rate, can only have
a wrong sign.
"""

from __future__ import annotations

import json
from math import isclose
from typing import TYPE_CHECKING, Any

from trainmark import __version__, cases
from trainmark.errors import CaseError, RecordError, UsageError
from trainmark.record import reduce
from trainmark.record.compared import ComparedValue, cut_around_difference
from trainmark.record.figures import (
    FIGURES_PLACE,
    compute_case_figures,
    compute_figures,
    list_specs,
)
from trainmark.record.findings import (
    FINDING_KINDS,
    find_in_measurement,
)
from trainmark.record.measured_checks import compare_measured_values
from trainmark.record.measurement import Measurement
from trainmark.record.plan_checks import compare_plan_values
from trainmark.record.trust import add_reasons, grade_launch, grade_reasons, is_refuting
from trainmark.record.work import shorten_version
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from trainmark.documents import Frozen
    from trainmark.record.record import Evidence, Record, Verification
    from trainmark.spec import Figure

# Tolerance for sums in another order, by another version of a library.
_RELATIVE_TOLERANCE = 1e-9
_MAX_SHOWN_CHARS = 80  # characters of a value
_MAX_ERROR_CHARS = 200
MAX_BYTES = 32 << 20  # of evidence that is checked for a list or a page, which must not wait
# Fields that may differ in a record that is made again: by another version, from copied files.
_NOT_COMPARED = {"suite", "evidence", "verification"}


def check_record(record: Record, folder: Path, *, max_bytes: int | None = None) -> Record:
    """Return ``record`` with its verification, and with the problems as reasons in its trust.

    The verification is ``contradicted`` if its own values contradict each other, or if its evidence
    does, to which a single missing file belongs. It is ``unverified`` if there is no evidence at
    all, or if it was not compared. Else it is ``verified``.

    Args:
        folder: where its evidence, the files of the run, would be.
        max_bytes: if the record lists more evidence, none is read, so that a caller with many
            records need not wait; None: any amount is read.
    """
    total_bytes = sum(file.bytes for file in record.evidence)
    if max_bytes is not None and total_bytes > max_bytes:
        problems = [message("evidence_unchecked")]
    else:
        problems = verify_evidence(record, folder)
    # A record that its evidence refutes needs no second contradiction. In any other, values that
    # contradict each other refute it too.
    if not any(is_refuting(problem.code) for problem in problems):
        problems = [*check_itself(record), *problems]
    verification: Verification = "unverified" if problems else "verified"
    if any(is_refuting(problem.code) for problem in problems):
        verification = "contradicted"
    return add_reasons(record, problems).model_copy(update={"verification": verification})


def check_itself(record: Record) -> list[Message]:
    """Return one message on how values of a record contradict each other; empty: they do not."""
    differences: list[ComparedValue] = []
    try:
        compared_values = (
            *_recompute_values(record),
            *compare_measured_values(record),
            *compare_plan_values(record),
        )
        for value in compared_values:
            differences += _list_differences(value.recorded, value.expected, value.place)
    except (LookupError, ArithmeticError, ValueError, TypeError, CaseError, UsageError) as error:
        # A rank, span or field to which other values refer is missing or has another type. Then
        # there are no two values to show: the message shows the error and what should hold instead.
        fault = ComparedValue("record", type(error).__name__, "values that fit each other")
        differences.append(fault)
    return [_describe_differences(differences)] if differences else []


def verify_evidence(record: Record, folder: Path) -> list[Message]:
    """Return one message for each problem of ``record`` with the evidence in ``folder``.

    A problem is a contradiction, or evidence that is missing or cannot be used. The files are
    compared with the recorded sizes and digests, and the record is computed again from them.
    """
    present_files = {path.name: path for path in reduce.list_evidence_files(folder)}
    recorded_files = {entry.name: entry for entry in record.evidence}
    if not present_files:
        return [message("evidence_absent")]
    problems = []
    for name in sorted(recorded_files.keys() | present_files.keys()):
        if name not in present_files:
            problems.append(message("evidence_missing", file=name))
        elif name not in recorded_files or _is_altered(present_files[name], recorded_files[name]):
            problems.append(message("evidence_altered", file=name))
    return problems + _reduce_again(record, folder)


def _is_altered(file: Path, recorded: Evidence) -> bool:
    """Tell whether a file is not the recorded one; if its size differs, it is not hashed."""
    return file.stat().st_size != recorded.bytes or reduce.describe_evidence(file) != recorded


def _reduce_again(record: Record, folder: Path) -> list[Message]:
    """Return one message if the record differs from one reduced again from the same evidence.

    It describes the differences, or says why they prove nothing. Empty: there is no difference.
    """
    try:
        recomputed_record = reduce.reduce(folder, files=record.evidence)
    except RecordError as error:  # its fix, such as another folder, does not fit here
        where = f"{error.where}: " if error.where else ""
        return [message("evidence_unreadable", error=f"{where}{error.what}"[:_MAX_ERROR_CHARS])]
    except (OSError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
        return [message("evidence_unreadable", error=text[:_MAX_ERROR_CHARS])]
    differences = list(_compare_records(record, recomputed_record))
    if not differences:
        return []
    # A case may have figures of its own, which its page declares. Their values, or the failure to
    # compute them, cannot be repeated if the case is not installed. ``cause``: why and at
    # which place the run failed; None: it passed.
    failed_in_figures = record.cause is not None and record.cause.place == FIGURES_PLACE
    needs_case = bool(recomputed_record.plan.about.page.figures) or failed_in_figures
    if needs_case and recomputed_record.plan.case not in cases.list_names():
        return [message("evidence_case_absent", case=recomputed_record.plan.case)]
    # A record of another version of Trainmark than the running one may differ, because versions may
    # compute other values. The plan, a file of the evidence, must name that version too: then
    # editing it in the record alone does not excuse a difference.
    version = shorten_version(record.suite.version)
    version_of_plan = shorten_version(recomputed_record.plan.suite_version)
    if version == version_of_plan and version != shorten_version(__version__):
        return [message("evidence_other_version", version=record.suite.version)]
    return [_describe_differences(differences)]


def _compare_records(record: Record, recomputed_record: Record) -> Iterator[ComparedValue]:
    """Yield the differences between two records.

    Fields that may differ, such as the version that computed the record, are left out. Only fields
    that differ are converted to dicts: each of the two copies takes as much memory as the record,
    which may have a million steps.
    """
    differing_fields = {
        name for name, value in record if value != getattr(recomputed_record, name)
    } - _NOT_COMPARED
    recorded = record.model_dump(mode="json", include=differing_fields)
    recomputed = recomputed_record.model_dump(mode="json", include=differing_fields)
    yield from _list_differences(recorded, recomputed, "")


def _describe_differences(differences: list[ComparedValue]) -> Message:
    """Return a message on the first difference and the number of all.

    A difference of status, figures or quality is shown rather than one of other fields, and of two
    of these the first of single values, such as numbers, rather than of a note on them.

    Args:
        differences: at least one. Its ``place`` is the path of a value in the record, such as
            ``quality.history[0].step``.
    """
    important = ("status", "figures", "quality")  # what readers of a record look at first
    chosen = min(
        differences,  # the first of those with the smallest key
        key=lambda x: (not x.place.startswith(important), not _is_single(x)),
    )
    recorded, recomputed = _format_values(chosen.recorded, chosen.expected)
    return message(
        "evidence_disagrees",
        field=chosen.place,
        recorded=recorded,
        recomputed=recomputed,
        fields=len(differences),
    )


def _is_single(difference: ComparedValue) -> bool:
    """Tell whether neither of two values is a list or a dict, and at least one is not missing."""
    values = (difference.recorded, difference.expected)
    return values != (None, None) and not any(isinstance(value, list | dict) for value in values)


def _format_values(recorded: Any, expected: Any) -> tuple[str, str]:
    """Return two different values as different texts that fit into a message."""
    texts = (_format_value(recorded), _format_value(expected))
    if texts[0] == texts[1]:  # two numbers that differ only in the digits that are left out
        texts = (repr(recorded), repr(expected))
    return cut_around_difference(*texts, _MAX_SHOWN_CHARS)


def _format_value(value: Any) -> str:
    """Return a text as it is, a number with six digits, and any other value as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, default=str, ensure_ascii=False)


def _list_differences(recorded: Any, recomputed: Any, place: str) -> Iterator[ComparedValue]:
    """Yield every path at which two values of JSON differ, with both values.

    Dicts, and lists of the same length, are compared entry by entry. Lists of different lengths are
    yielded whole if they are short; else only their lengths, at the path ``series.length``.

    Args:
        recorded: the record's value: a dict, a list, a text, a number, a truth value or None.
        recomputed: the value that it should be.
        place: path of the two values in the record; empty: they are the whole record.
    """
    if recorded == recomputed:
        return
    if isinstance(recorded, dict) and isinstance(recomputed, dict):
        for name in sorted(recorded.keys() | recomputed.keys()):
            path = f"{place}.{name}" if place else name
            yield from _list_differences(recorded.get(name), recomputed.get(name), path)
        return
    both_are_lists = isinstance(recorded, list) and isinstance(recomputed, list)
    if both_are_lists and len(recorded) != len(recomputed) and not _are_short(recorded, recomputed):
        yield ComparedValue(f"{place}.length", len(recorded), len(recomputed))
        return
    if both_are_lists and len(recorded) == len(recomputed):
        for index, (recorded_entry, recomputed_entry) in enumerate(
            zip(recorded, recomputed, strict=True)
        ):
            yield from _list_differences(recorded_entry, recomputed_entry, f"{place}[{index}]")
        return
    if not _is_same(recorded, recomputed):
        yield ComparedValue(place, recorded, recomputed)


def _are_short(*values: list[Any]) -> bool:
    """Tell whether each of the lists, as text, is short enough for a message."""
    # A text has more characters than its list has entries: a list of too many is not formatted.
    return all(
        len(value) <= _MAX_SHOWN_CHARS and len(_format_value(value)) <= _MAX_SHOWN_CHARS
        for value in values
    )


def _is_same(recorded: Any, recomputed: Any) -> bool:
    """Tell whether two values are equal, numbers up to rounding."""
    if _is_number(recorded) and _is_number(recomputed):
        return isclose(recorded, recomputed, rel_tol=_RELATIVE_TOLERANCE)
    return bool(recorded == recomputed)


def _is_number(value: Any) -> bool:
    """Tell whether a value is a number; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _recompute_values(record: Record) -> Iterator[ComparedValue]:
    """Yield each value of a record that follows from others, with the value that is computed again.

    The functions that made the record compute it from the record's plan, ranks, steps and
    evaluations. A case may add figures and findings of its own by its code. This code is run only
    if the case is shipped with Trainmark, not if another package defines it.
    """
    # What the record has of the measurement itself. Its attributes compute all that follows.
    measurement = Measurement.from_record(record)
    yield from _compare_models("counts", record.counts, measurement.counts)
    yield ComparedValue("labels", record.labels, measurement.labels)
    yield from _compare_models("quality", record.quality, measurement.quality)
    yield from _compare_models("spans", record.spans, measurement.spans)
    yield from _compare_units(record)
    figures = compute_figures(measurement)
    if cases.is_shipped(record.plan.case):
        case_figures = compute_case_figures(measurement, figures)
        yield from _compare_figures_of_shipped_case(record, figures | dict(case_figures.figures))
        yield from _compare_findings(record, measurement, case_notes=case_figures.notes)
    else:
        yield from _compare_figures_of_external_case(record, figures)
        yield from _compare_findings(record, measurement, case_notes=None)
    yield from _compare_trust(record, measurement)


def _compare_models(name: str, recorded: Frozen, recomputed: Frozen) -> Iterator[ComparedValue]:
    """Yield a field of a record, as a dict, with the recomputed one if the two differ.

    If they are equal, nothing is yielded, which saves their conversion to dicts.

    Args:
        name: of the field.
    """
    if recorded != recomputed:
        yield ComparedValue(
            name, recorded.model_dump(mode="json"), recomputed.model_dump(mode="json")
        )


def _compare_units(record: Record) -> Iterator[ComparedValue]:
    """Yield each figure's unit with the declared one, and whether a reason is where it should be.

    Equal values are yielded too: ``check_itself`` keeps those that differ.
    """
    about = record.plan.about  # facts of the case, such as ``page``, which declares its own figures
    declared = list_specs(about.page)
    for name, entry in record.figures.items():
        # A figure has either a value, or a reason why it has none. So it must have no reason
        # exactly if it has a value.
        has_no_reason = entry.reason is None
        has_value = entry.value is not None
        yield ComparedValue(f"figures.{name}.reason", recorded=has_no_reason, expected=has_value)
        if name in declared:
            # A declared unit such as ``{work}/s`` stands for samples or tokens, as the case counts.
            unit = declared[name].unit.replace("{work}", about.work_unit)
            yield ComparedValue(f"figures.{name}.unit", entry.unit, unit)


def _compare_figures_of_shipped_case(
    record: Record, recomputed: dict[str, Figure]
) -> Iterator[ComparedValue]:
    """Yield the figures of a record with the recomputed ones, those that are equal too.

    The case is shipped with Trainmark, so that all figures can be computed again.

    Args:
        recomputed: figures by name.
    """
    for name, entry in record.figures.items():
        # Trainmark does not compute such a figure, so that the record must not have a value of it.
        if name not in recomputed:
            yield ComparedValue(f"figures.{name}", entry.value, None)
            continue
        figure = recomputed[name]
        yield ComparedValue(f"figures.{name}", entry.value, figure.value)
        # A figure may have a message why it has no value, and one with a note on its value. Only
        # the codes of these messages are compared, not their arguments.
        yield ComparedValue(
            f"figures.{name}.reason", _get_code(entry.reason), _get_code(figure.reason)
        )
        yield ComparedValue(f"figures.{name}.note", _get_code(entry.note), _get_code(figure.note))
    yield from _list_missing_figures(record, recomputed)


def _compare_figures_of_external_case(
    record: Record, recomputed: dict[str, Figure]
) -> Iterator[ComparedValue]:
    """Yield figures of a case that another package defines with the recomputed ones.

    Figures that only the case defines are not compared, because the code of such a case is not run.
    Nor are figures that are None: the case may have replaced their values by None.

    Args:
        recomputed: the figures that all cases have, by name.
    """
    for name, entry in record.figures.items():
        if name in recomputed and entry.value is not None:
            yield ComparedValue(f"figures.{name}", entry.value, recomputed[name].value)
    yield from _list_missing_figures(record, recomputed)


def _list_missing_figures(record: Record, recomputed: dict[str, Figure]) -> Iterator[ComparedValue]:
    """Yield each recomputed figure that the record lacks, with None as the recorded value."""
    for name, figure in recomputed.items():
        if name not in record.figures:
            yield ComparedValue(f"figures.{name}", None, figure.value)


def _compare_findings(
    record: Record, measurement: Measurement, *, case_notes: Sequence[Message] | None
) -> Iterator[ComparedValue]:
    """Yield the findings of a record with those that its own values lead to.

    Findings are messages with a code; they say what a reader must know about the figures.

    Args:
        case_notes: findings that the case's own code returned; None: the case is not shipped with
            Trainmark, so that its code was not run, and it may have added any.
    """
    recorded = _index_by_code(record.findings)
    findings = find_in_measurement(measurement, record.figures)
    expected = _index_by_code([*findings, *(case_notes or ())])
    for code, finding in expected.items():
        entry = recorded.get(code)
        yield ComparedValue(
            f"findings.{code}", None if entry is None else entry.as_dict(), finding.as_dict()
        )
    # Recorded findings that were not found again. Those that follow from events cannot be checked
    # here. Any other is wrong, unless the code of a case that is not shipped may have added it: no
    # case adds those that Trainmark itself finds in records.
    for code in recorded:
        kind = FINDING_KINDS.get(code)
        if code in expected or (kind is not None and kind.origin == "events"):
            continue
        is_allowed = case_notes is None and kind is None
        # ``recorded``: the record has the finding; ``expected``: whether it may have it.
        yield ComparedValue(f"findings.{code}", recorded=True, expected=is_allowed)


def _compare_trust(record: Record, measurement: Measurement) -> Iterator[ComparedValue]:
    """Yield the trust's reasons and grade with those that follow from the record's own values.

    A reason is a message: a code, and arguments such as the number behind it.
    """
    # Reasons with such a code come from a check of the evidence, not from values of the record.
    reasons = [reason for reason in record.trust.reasons if not reason.code.startswith("evidence_")]
    expected = grade_launch(
        measurement, status=record.status, figures=record.figures, findings=record.findings
    ).reasons
    yield ComparedValue("trust.reasons", _join_codes(reasons), _join_codes(expected))
    recorded = _index_by_code(reasons)
    for reason in expected:
        if reason.code in recorded:  # a missing reason is a difference in the codes above
            recorded_args = recorded[reason.code].args
            yield ComparedValue(f"trust.reasons.{reason.code}", recorded_args, reason.args)
    # The grade follows from all reasons, also those that a check of the evidence added.
    yield ComparedValue(
        "trust.grade", record.trust.grade, grade_reasons(record.trust.reasons).grade
    )


def _index_by_code(messages: Iterable[Message]) -> dict[str, Message]:
    """Return the first message of each code."""
    first: dict[str, Message] = {}
    for entry in messages:
        first.setdefault(entry.code, entry)
    return first


def _get_code(reason: Message | None) -> str | None:
    """Return the code of a message; None: there is no message."""
    if reason is None:
        return None
    return reason.code


def _join_codes(reasons: Iterable[Message]) -> str:
    """Return the codes of reasons as one text, each once and in alphabetical order."""
    return ", ".join(sorted({reason.code for reason in reasons})) or "none"
