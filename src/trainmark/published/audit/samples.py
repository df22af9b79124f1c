"""Audit rules on the number of samples that a run trained: time multiplied by throughput.

The number must fit the data set and the epochs, and the other rows of the table. ``p_whole`` is the
name of the throughput in records: samples a second of all devices, with evaluation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.plan.reference import SAME_WORK_RATIO
from trainmark.published.audit.groups import find_inconsistent_rows, group_subjects
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Hashable

    from trainmark.published.audit.subject import AuditSubject, AuditSubjects, Hits

_MAX_PASSES = 1000  # over a data set: no published configuration of a known one trains so many
# If too many samples were trained by a whole multiple of the ranks, each rank may have counted all.
_MULTIPLE_TOLERANCE = 0.03  # relative distance from the whole multiple
_MAX_MULTIPLE = 64  # times that each rank may have counted them; for more, no cause is named
# Start-up times in one table differ at most by this factor and by these seconds besides.
_MAX_START_RATIO = 2.5
_MAX_START_DIFFERENCE_S = 30.0
_NUM_CANDIDATES = 64  # numbers of samples that are tried


def check_passes(subjects: AuditSubjects) -> Hits:
    """Yield rows that trained more samples than their epochs over the data set have.

    Rows are left out if the size of their model's data set is not known.
    """
    for subject in subjects:
        if subject.workload.samples_per_pass:
            yield from _check_passes_of_row(subject, subject.workload.samples_per_pass)


def _check_passes_of_row(subject: AuditSubject, samples_per_pass: int) -> Hits:
    """Yield the row if it trained too many samples for its epochs over a data set.

    Samples are the time of the run multiplied by ``p_whole``, its samples a second.

    Args:
        samples_per_pass: size of the data set.
    """
    # The most epochs that the model's published configuration allows, even if the row prints more:
    # such a row has not done the published work. If they are not known, the epochs that the row
    # prints; 0: not known either.
    epochs = subject.workload.epochs or subject.read_setting("epochs") or 0
    rate = subject.figures.get("p_whole", 0.0)
    # Values for the texts of the messages below, which call the samples of a data set its rows.
    args = {"e2e_time": subject.run_time_s, "p_whole": rate, "rows": samples_per_pass}
    # The tests below use `min_samples`, from which a start-up time is taken off. The messages show
    # `max_samples`, the product of the two figures as printed.
    passes = subject.max_samples / samples_per_pass
    if not epochs:  # not printed: only an impossible number of passes is reported
        if subject.min_samples > _MAX_PASSES * samples_per_pass:
            reason = message("audit_passes_unnamed", passes=passes, most=_MAX_PASSES, **args)
            yield subject, reason
        return
    expected_samples = samples_per_pass * epochs
    # A difference within this ratio counts as the same work.
    if subject.min_samples <= SAME_WORK_RATIO * expected_samples:
        return
    args["epochs"] = round(epochs)
    times = subject.max_samples / expected_samples  # how often each sample was counted
    # If every rank counted the samples of all ranks, there are `world_size` times as many, or a
    # whole multiple of that.
    times_per_rank = _find_multiple_of_ranks(times, subject.world_size)
    # The second test is for the type checker: without a world size, ``times_per_rank`` is None.
    if times_per_rank is not None and subject.world_size:
        args |= {
            "times": times_per_rank * subject.world_size,
            "each": times_per_rank,
            "world_size": subject.world_size,
        }
        rate_if_counted_once = expected_samples / subject.run_time_s  # each sample by one rank only
        yield subject, message("audit_per_rank", once=rate_if_counted_once, **args)
    else:
        yield subject, message("audit_passes", passes=passes, **args)


def _find_multiple_of_ranks(times: float, world_size: int | None) -> int | None:
    """Return n if ``times`` is about n times the number of ranks; None: it is no such multiple.

    Such a multiple has a likely cause: each rank counted every sample of all ranks n times. In the
    published rows of DLRM n is 2. A large n is refused: any number is near a large multiple.

    Args:
        times: the counted samples divided by the expected ones.
        world_size: number of ranks; None: not known.
    """
    if not world_size:
        return None
    times_per_rank = round(times / world_size)
    if not 0 < times_per_rank <= _MAX_MULTIPLE:
        return None
    is_near = abs(times / world_size / times_per_rank - 1) <= _MULTIPLE_TOLERANCE
    return times_per_rank if is_near else None


def check_side_by_side(subjects: AuditSubjects) -> Hits:
    """Yield the rows of a table that trained another number of samples than most of it."""
    for rows in group_subjects(subjects, _get_samples_key):
        # Of two rows in conflict, the one whose samples are further from the median is yielded.
        for subject, other in find_inconsistent_rows(
            rows, have_different_samples, get_value=_get_max_samples
        ):
            samples = _get_max_samples(subject)
            other_samples = _get_max_samples(other)
            # The number of samples in the model's data set; None: not known.
            samples_per_pass = subject.workload.samples_per_pass
            args: dict[str, Any]
            # With it, the message counts passes over the data set instead of samples. Its argument
            # ``rows`` is the size of the data set, not the rows of the table.
            if samples_per_pass:
                code = "audit_passes_differ"
                passes = [_get_max_samples(row) / samples_per_pass for row in rows]
                listed_passes = ", ".join(f"{x:.1f}" for x in passes)
                args = {"passes": listed_passes, "rows": samples_per_pass}
            else:
                code = "audit_side_by_side"
                args = {"samples": samples, "others": other_samples}
            ratio = samples / other_samples
            yield subject, message(code, **args, ratio=ratio, line=other.line)


def _get_samples_key(subject: AuditSubject) -> Hashable | None:
    """Return a key that rows share if they should train the same number of samples.

    Such rows are of one table and model, on any device, and have equal settings but for batch and
    learning rate. None: it is not a row of a table, or lacks a time or a throughput.
    """
    if not subject.table or not _get_max_samples(subject):
        return None
    return subject.table, subject.work_settings


def _get_max_samples(subject: AuditSubject) -> float:
    """Return the most samples that the row can have trained; 0: not known."""
    return subject.max_samples


def have_different_samples(subject: AuditSubject, other: AuditSubject) -> bool:
    """Tell whether the two rows cannot have trained the same number of samples.

    Samples are time times throughput, but end-to-end time includes an unknown start-up time. So
    several numbers of samples are tried. Each implies one start-up time for each row. The rows
    agree if any number implies similar start-up times.
    """
    rows = (subject, other)
    # `row.min_samples` assumes the longest possible start-up time of a row, `row.max_samples` none.
    min_samples = max(0.0, subject.min_samples, other.min_samples)
    # Rounding of the printed times and of `p_whole`, the samples a second of the whole run. If a
    # row prints both times, only the end-to-end time is used; that of training makes the sum
    # larger, and so the rule a little more lenient.
    rounding = sum(row.compute_rounding("e2e_time", "train_time", "p_whole") for row in rows)
    # Numbers of samples whose ratio is at most `SAME_WORK_RATIO` count as equal: if one row trained
    # the number that is tried, the other may have trained more or fewer by this ratio.
    max_samples = min(row.max_samples for row in rows) * (SAME_WORK_RATIO + rounding)
    if min_samples > max_samples:
        return True  # no number is possible for both, whatever their start-up times
    longest_s = max(row.run_time_s for row in rows)
    # Start-up times of one table may differ by a factor, and by these seconds besides: a constant,
    # and the time of the samples that the longer run may have trained more or fewer.
    slack_s = _MAX_START_DIFFERENCE_S + (SAME_WORK_RATIO - 1) * longest_s
    for index in range(_NUM_CANDIDATES + 1):
        # The candidates are spread evenly from the smallest to the largest possible number.
        candidate = min_samples + (max_samples - min_samples) * index / _NUM_CANDIDATES
        starts_s = [_compute_start_up(row, candidate) for row in rows]
        if max(starts_s) <= _MAX_START_RATIO * min(starts_s) + slack_s:
            return False
    return True


def _compute_start_up(subject: AuditSubject, samples: float) -> float:
    """Return the start-up time in seconds of a row if it trained this number of samples.

    It is the time of the run minus the time of training the samples; 0 if that would be longer.
    """
    rate = subject.figures["p_whole"]  # samples a second of the whole run
    return max(0.0, subject.run_time_s - samples / rate)
