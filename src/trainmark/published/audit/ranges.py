"""Audit rules on single values: figures out of range, qualities unlike others, missed targets.

A quality is a figure of the trained model, such as its accuracy. ``p_train_tokens`` is tokens a
second of all devices, ``token/p/s`` of one device.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from trainmark.published.audit.groups import group_subjects
from trainmark.published.audit.qualities import is_fraction, is_lower_better
from trainmark.published.audit.subject import RATES, SAMPLE_RATES, TIMES, TOKEN_RATES
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.published.audit.subject import AuditSubject, AuditSubjects, Hits

_SECONDS_PER_DAY = 86400.0
_MAX_TIME_S = 366 * _SECONDS_PER_DAY  # no published run took longer than a year
# A value in per cent is a hundred times as large as the same value as a fraction; two qualities of
# one table may differ by this factor besides.
_PER_CENT_SPREAD = 3.0
_MAX_SPREAD = 1.3  # ratio of the highest to the lowest quality of a table whose rows agree
_MIN_OUTLIER_RATIO = 4.0  # ratio to the median of the others from which a quality is an outlier
_POSITIVE_FIGURES = {
    *RATES,
    *TIMES,
    *TOKEN_RATES,
    "sample/p/s",
    "step/s",
    "mem",
    "mem_total",
    "MFU",
    "MAMFU",
    "model_flops_per_device",
    "steps",
    "epochs",
}


def check_ranges(subjects: AuditSubjects) -> Hits:
    """Yield rows with a figure outside its range, or a quality in another unit than its table."""
    for subject in subjects:  # printed rows and launches
        # Known models train with losses that are never negative. Of other models nothing is known:
        # some losses, such as a log-likelihood of densities, may be negative. The names of a
        # workload are those of its model on pages; there are none if the model is not known.
        is_known_model = len(subject.workload.names) > 0
        # ``printed_figures`` has all values, ``figures`` only those above zero.
        for name, value in subject.printed_figures.items():
            is_wrong = (
                name in _POSITIVE_FIGURES and value <= 0 and not _is_rounded_to_zero(subject, name)
            )
            is_wrong_loss = is_known_model and "loss" in name and value < 0
            if is_wrong or is_wrong_loss:
                yield subject, message("audit_not_positive", figure=name, value=value)
        mfu = subject.figures.get("MFU", 0.0)
        if mfu > 100:
            yield subject, message("audit_range", figure="MFU", value=mfu, most=100)
        for name in TIMES:
            if subject.figures.get(name, 0.0) > _MAX_TIME_S:  # no published run took a year
                days = subject.figures[name] / _SECONDS_PER_DAY
                yield subject, message("audit_years", figure=name, days=days)
    for name, rows in _group_fractions_by_table(subjects):
        yield from _check_fractions(name, rows)


def _is_rounded_to_zero(subject: AuditSubject, name: str) -> bool:
    """Tell whether a rate of samples is printed as 0 because it is below the last digit.

    The true rate is that of tokens divided by the tokens of a sample. It is compared with the unit
    of the last printed digit, 0.1 if the rate is printed as 0.0.

    Args:
        name: of a figure that is printed as 0 or less.
    """
    # ``printed_figures`` has all values, ``figures`` only those above zero.
    if name not in SAMPLE_RATES or subject.printed_figures[name] < 0:
        return False
    token_rate = subject.figures.get("p_train_tokens")  # tokens a second of all devices
    if token_rate is None:
        # The rate of one device times the number of devices; 0: it is not printed or not known.
        token_rate = subject.figures.get("token/p/s", 0.0) * (subject.world_size or 0)
    sequence_length = subject.read_setting("seq_length")
    if not token_rate or not sequence_length:
        return False
    return token_rate / sequence_length < subject.get_last_digit_unit(name)


def _group_fractions_by_table(subjects: AuditSubjects) -> Iterator[tuple[str, list[AuditSubject]]]:
    """Yield each quality that is a fraction, by name, with the rows of one table that have it.

    Such a quality, for example the accuracy, is between 0 and 1, or between 0 and 100 per cent.
    A quality in several tables is yielded once for each of them.
    """
    names = {name for subject in subjects for name in subject.printed_figures if is_fraction(name)}
    for name in sorted(names):
        if name.endswith("_target"):  # what was wanted, not what was measured
            continue
        subjects_with_name = [subject for subject in subjects if name in subject.printed_figures]
        # A row has the table in which it stands. Records of launches have none: those of one file
        # are compared with each other.
        for rows in group_subjects(subjects_with_name, lambda x: x.table or x.file):
            yield name, rows


def _check_fractions(name: str, rows: Sequence[AuditSubject]) -> Hits:
    """Yield the rows whose quality is out of range, or in another unit than in most rows.

    The unit is either a fraction of 1 or per cent. A quality of 0 is out of range: like other
    figures, it must be above 0.

    Args:
        name: of the quality.
        rows: of one table; all have the quality.
    """
    values = [subject.printed_figures[name] for subject in rows]
    max_value = 1 if _are_fractions(values) else 100
    for subject, value in zip(rows, values, strict=True):
        if not 0 < value <= max_value:
            yield subject, message("audit_range", figure=name, value=value, most=max_value)
        elif max_value > 1 >= value:  # a fraction among per cents
            yield subject, message("audit_unit", figure=name, value=value)


def _are_fractions(values: Sequence[float]) -> bool:
    """Tell whether qualities are fractions of 1 rather than per cent: most of them are at most 1.

    If there are as many values above 1 as below, those above are per cent if they are about a
    hundred times as large as the others; else all are fractions, and those above 1 are wrong.
    """
    fractions = [value for value in values if 0 <= value <= 1]
    larger = [value for value in values if value > 1]
    if len(fractions) != len(larger):
        return 2 * len(fractions) > len(values)
    if not fractions:  # nor larger ones: all values are negative, so wrong in either unit
        return False
    usual_fraction = median(fractions)
    if usual_fraction == 0:
        return True  # a ratio to 0 would not show that the others are per cent
    ratio = median(larger) / usual_fraction / 100  # about 1 if the larger values are per cent
    are_larger_per_cent = 1 / _PER_CENT_SPREAD < ratio < _PER_CENT_SPREAD
    return not are_larger_per_cent


def check_outlier(subjects: AuditSubjects) -> Hits:
    """Yield rows with a quality far from that of all other rows of their table, which agree.

    A quality is a figure of the trained model, such as its accuracy.
    """
    for name, rows in _group_fractions_by_table(subjects):
        for subject in rows:
            value = subject.printed_figures[name]
            others = [other.printed_figures[name] for other in rows if other is not subject]
            # One other value cannot show what is usual; ratios need values above zero.
            if len(others) < 2 or value <= 0 or min(others) <= 0:
                continue
            others_agree = max(others) <= _MAX_SPREAD * min(others)
            usual = median(others)
            is_far = max(value / usual, usual / value) >= _MIN_OUTLIER_RATIO
            # A value in another unit, per cent or fraction, is reported by ``check_ranges``.
            is_in_same_unit = (value <= 1) == (usual <= 1)
            if others_agree and is_far and is_in_same_unit:
                args = {"value": value, "usual": usual}
                yield subject, message("audit_outlier", figure=name, rows=len(others), **args)


def check_target(subjects: AuditSubjects) -> Hits:
    """Yield rows that print a target that their quality misses.

    The quality of the trained model is a figure that has the name of its metric, such as
    ``accuracy``; its target is the figure ``accuracy_target``.
    """
    for subject in subjects:
        metric = subject.row.metric if subject.row else None
        if metric is None:
            continue
        value = subject.figures.get(metric)
        target = subject.figures.get(f"{metric}_target")
        if value is None or target is None:
            continue
        if _is_target_missed(metric, value, target):
            yield subject, message("audit_target_row", metric=metric, value=value, target=target)


def _is_target_missed(metric: str, value: float, target: float) -> bool:
    """Tell whether a quality is worse than its target.

    False if it is not known whether a higher or a lower quality is better.

    Args:
        metric: name of the quality.
    """
    if is_lower_better(metric):
        return value > target
    # A quality between 0 and 1, or 0 and 100%, is better if it is higher. Others are not known.
    return is_fraction(metric) and value < target
