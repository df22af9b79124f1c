"""Audit rules that find results that were not measured: copied or computed from other results.

``sample/p/s`` is the name of samples a second of one device in records.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from trainmark.published.audit.groups import get_line_key, group_subjects
from trainmark.published.audit.subject import RATES, TOKEN_RATES
from trainmark.record.stats import is_proportional
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from trainmark.published.audit.subject import AuditSubject, AuditSubjects, Hits
    from trainmark.record.record import Record

_MIN_RATIOS = 3  # fewer may agree by chance
_MAX_RATIO_ROUNDING = 2e-3  # of figures whose ratios are compared, and by which these may differ
_TIMES_AND_RATES = {"e2e_time", "train_time", "step_time", "sample/p/s", *TOKEN_RATES, *RATES}


def check_copies(subjects: AuditSubjects) -> Hits:
    """Yield each launch whose step times are those of another launch, or proportional to them."""
    # The steps of a launch are sorted by their time. Proportional times have the same order of
    # steps, so that only launches with the same order are compared. By each order, this is the
    # first launch that has it, with its file.
    first_by_order: dict[bytes, tuple[Record, str]] = {}
    for subject in subjects:
        record = subject.record
        if record is None:  # a printed row, not a launch
            continue
        times = record.steps.time_ns  # one for each step
        order = np.argsort(times, kind="stable").tobytes()
        if order not in first_by_order:
            first_by_order[order] = (record, subject.file)
            continue
        first, first_file = first_by_order[order]
        # The same launch may be read twice: it is no copy of itself.
        if first.run_id != record.run_id and is_proportional(times, first.steps.time_ns):
            args = {"run_id": record.run_id, "other": first.run_id, "place": first_file}
            yield subject, message("audit_copy", same="steps.time_ns", **args)


def check_same_figures(subjects: AuditSubjects) -> Hits:
    """Yield each row that repeats all measured figures of a row that did different work.

    A line of a table gives one row, or one for each precision if it has a column for each. All rows
    of a line are compared with all rows of another line.
    """
    lines_by_figures: dict[Hashable, list[list[AuditSubject]]] = defaultdict(list)
    for rows_of_line in group_subjects(subjects, get_line_key):
        figures = _list_identifying_figures(rows_of_line)
        if figures:  # empty: too few to tell a copy from chance
            lines_by_figures[figures].append(rows_of_line)
    for first_line, *other_lines in lines_by_figures.values():
        first = first_line[0]
        first_work = [_describe_printed_work(row) for row in first_line]
        for other_line in other_lines:
            other_work = [_describe_printed_work(row) for row in other_line]
            # The same row may be printed twice, in one page or in its translation.
            if other_work == first_work or _is_same_text(first, other_line[0]):
                continue
            # `configuration` is the row's label as printed.
            place = {"other": first.configuration, "file": first.file}
            yield other_line[0], message("audit_same_figures", line=first.line, **place)


def _list_identifying_figures(line: Sequence[AuditSubject]) -> tuple[object, ...]:
    """Return the figures by which a copy of a line is recognised.

    Empty if they are too few or none of them is a time or a rate: then they may agree by chance.

    Args:
        line: the rows of one line of a table, one for each precision of its columns.

    Returns:
        precision, name and value of each figure.
    """
    figures = []
    for subject in line:
        for name, value in sorted(subject.figures.items()):
            if name != "mem_total":  # the card's own memory: the same in all its rows
                figures.append((subject.precision, name, value))
    has_time_or_rate = any(name in _TIMES_AND_RATES for _, name, _ in figures)
    return tuple(figures) if has_time_or_rate and len(figures) > 1 else ()


def _is_same_text(first: AuditSubject, other: AuditSubject) -> bool:
    """Tell whether two files have the same line, as a page and its translation do."""
    # Without a row it is a launch.
    if first.row is None or other.row is None or first.file == other.file:
        return False
    # `raw` is the text of the line as printed; it is compared word by word.
    return bool(first.row.raw) and first.row.raw.split() == other.row.raw.split()


def _describe_printed_work(subject: AuditSubject) -> object:
    """Return all that a row prints of its work and no measurement; equal for the same work.

    It is model, headings above the table, label of the row, precision and settings.
    """
    section = subject.row.section if subject.row else ""
    return subject.name, section, subject.configuration, subject.precision, subject.settings


def check_ratios(subjects: AuditSubjects) -> Hits:
    """Yield rows of a card whose figures are those of another card, all times the same factor.

    Measured speeds of two cards differ by a different factor in each row. So rows that all have the
    same factor were computed, not measured.
    """
    # All rows of a group are of one card and one model.
    for rows_a, rows_b in combinations(group_subjects(subjects, _get_card_key), 2):
        if rows_a[0].name != rows_b[0].name:  # another model: speeds cannot be compared
            continue
        # Only rows with the same number of devices and the same settings are compared.
        pairs = [(a, b) for b in rows_b for a in rows_a if _get_setup(a) == _get_setup(b)]
        ratios: list[float] = []
        for a, b in pairs:
            ratios += _compute_figure_ratios(a, b)
        if len(ratios) < _MIN_RATIOS:  # fewer may agree by chance
            continue
        are_equal = max(ratios) <= min(ratios) * (1 + _MAX_RATIO_ROUNDING)
        if not are_equal:
            continue
        # The second group of a combination appears later in the tables: its card is reported.
        for a, b in pairs:
            args = {"factor": median(ratios), "line": a.line, "device": a.device}
            yield b, message("audit_ratios", figures=len(ratios), **args)


def _get_card_key(subject: AuditSubject) -> Hashable | None:
    """Return a key that rows of one model on one kind of device share; None: it is not named."""
    return (subject.name, subject.device) if subject.device else None


def _get_setup(subject: AuditSubject) -> object:
    """Return what must be equal in two rows so that their speeds on two cards can be compared.

    It is the number of devices and of nodes, and the names and values of all printed settings.
    """
    num_nodes = subject.row.nnodes if subject.row else None  # without a row it is a launch
    return subject.world_size, num_nodes, sorted(subject.settings.items())


def _compute_figure_ratios(a: AuditSubject, b: AuditSubject) -> list[float]:
    """Return the rates of one row divided by the same rates of another row.

    A rate is left out if one of the rows does not print it, or if the two rows print it with so few
    digits that their ratio is uncertain.

    Args:
        a: whose rates are the divisors.
        b: the other row.
    """
    return [
        b.figures[name] / a.figures[name]
        for name in (*RATES, *TOKEN_RATES, "sample/p/s")
        if name in a.figures
        and name in b.figures
        and a.compute_rounding(name) + b.compute_rounding(name) <= _MAX_RATIO_ROUNDING
    ]
