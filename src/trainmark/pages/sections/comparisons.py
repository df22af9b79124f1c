"""How fast a training is beside comparable results, and how far it is from its bound.

Results are comparable if they are of the same work, on any device: launches measured here, and
published rows.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from trainmark.errors import to_one_line
from trainmark.pages import cells
from trainmark.pages.document import Bar, Bars, Callout
from trainmark.pages.repeats import summarize_figure
from trainmark.pages.texts import (
    Phrase,
    describe_configuration,
    describe_devices,
    join,
    name_speed_figure,
    phrase,
    term,
)
from trainmark.record.compared import cut_around_difference
from trainmark.record.record import Record
from trainmark.record.trust import get_trust, is_counted
from trainmark.record.work import (
    Row,
    describe_work,
    find_differences,
    find_row_differences,
    group_by_work,
    identify_result,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.record.work import Result

_DEVICES = "device_products"  # key of the work; other devices are what a comparison is for
_BOUND = "bound"  # key of the work: whether it is a bound, see `compare_with_bound`
_TARGET = "target_value"  # key of the work; a bound has no quality target
_WITNESSED = "witnessed"  # key of the work: a user's own program and its --witness file
_MAX_COMPARISONS = 3  # results that are drawn
_MAX_DIFFERENCES = 3  # of the closest result, that are named
_MAX_CHARACTERS = 60  # of a published configuration, and of a value in a difference


def _compare_work(record: Record, other: Result) -> dict[str, tuple[object, object]]:
    """Return the keys in which the work of a record and of another result differ.

    Each key has the record's value and that of the other result. The devices are left out: other
    devices are what a comparison is for.

    Args:
        other: another record, or a row that others published.
    """
    # A row states only a part of its work. Only this is compared, without the devices.
    if isinstance(other, Row):
        return find_row_differences(record, other)
    ours = describe_work(record)
    theirs = describe_work(other)
    names = [name for name in find_differences(ours, theirs) if name != _DEVICES]
    # Short values first, because a page names only the first few differences.
    names.sort(key=lambda name: len(f"{ours.get(name)}{theirs.get(name)}"))
    return {name: (ours.get(name), theirs.get(name)) for name in names}


def compare_speed(
    records: Sequence[Record], comparisons: Sequence[Result]
) -> Bars | Callout | None:
    """Return the speed of the launches beside that of the fastest comparable results, as bars.

    Results are comparable if they are of the same work, on any device. Each has the ratio of the
    launches' speed to its own. If none is comparable, a line of text names the closest and what
    differs, or says that there is no other result. None: each launch failed or is refuted.

    Args:
        records: launches of one work, which the page shows.
        comparisons: other records, and rows that others published.
    """
    # A refuted record contradicts its own events, so its figures are not compared.
    launches = [record for record in records if is_counted(record)]
    if not launches:
        return None
    # Each of them is a list: all launches of one work that count, or a single published row.
    candidates = _group_comparisons(records, comparisons)
    if not candidates:
        ids = {record.run_id for record in records}
        # Launches that passed and are not refuted would be candidates. So each launch of another
        # run, if there is any, did not pass, or is refuted.
        has_failed = any(isinstance(x, Record) and x.run_id not in ids for x in comparisons)
        # With a witness, the run is of a user's own program and not of a case.
        key = "nothing" if launches[0].plan.witness is None else "program_nothing"
        return _build_incomparable_callout(
            phrase("against.none_passed" if has_failed else f"against.{key}")
        )
    # The differences from each candidate: both values, by the key of the work.
    differences = [(_compare_work(launches[0], results[0]), results) for results in candidates]
    comparable = [results for differing, results in differences if not differing]
    # The first figure that the launches and at least one comparable result have is used, because a
    # published row may lack some. First comes the figure that is the case's speed, which may count
    # tokens. The last three count samples: of the training without evaluation, also without waiting
    # for data, and of the whole run.
    for figure in (name_speed_figure(launches[0]), "p_train", "p_core", "p_whole"):
        speed = summarize_figure(launches, figure)
        others = []  # the mean of the figure with the results that have it
        for results in comparable:
            other_speed = summarize_figure(results, figure)
            if other_speed is not None:
                others.append((other_speed.mean, results))
        if speed is not None and others:
            others.sort(key=lambda entry: entry[0], reverse=True)
            return _build_speed_bars(figure, launches, speed.mean, others[:_MAX_COMPARISONS])
    # The closest candidate differs in the fewest keys.
    differing, closest = min(differences, key=lambda entry: len(entry[0]))
    return _explain_closest(launches[0], closest[0], differing)


def _explain_closest(
    launch: Record, closest: Result, differing: Mapping[str, tuple[object, object]]
) -> Callout:
    """Return a line of text that names the closest result and what differs from the launch.

    Args:
        launch: a launch that the page shows.
        closest: the result that differs from it in the fewest keys.
        differing: both values, by the key of the work.
    """
    reasons = []
    for name, values in differing.items():
        if name == _WITNESSED and isinstance(closest, Record):
            reasons += _describe_witness_differences(launch, closest)
        else:
            reasons.append(_describe_difference(term("work", name), *values))
    # Without a difference the work is the same, but the two have none of the figures in common.
    why: Phrase = phrase("against.silent")
    if reasons:
        why = join(reasons[:_MAX_DIFFERENCES], "semicolon")
    return _build_incomparable_callout(
        phrase("against.none", name=_describe_system(closest), why=why)
    )


def compare_with_bound(records: Sequence[Record], candidates: Sequence[Result]) -> Callout | None:
    """Return how many times as fast as a training its bound is; None if one of them is missing.

    The training is of a model with experts. Its bound is the same training, except that equal work
    is forced on all experts: it is as fast as perfect balance could make the training.

    Args:
        records: launches of the training, or of the bound.
        candidates: other results. If ``records`` are the training, the first that is its bound
            counts; if they are the bound, the first that is its training.
    """
    # A refuted record contradicts its own events, so its figures are not compared.
    launches = [record for record in records if is_counted(record)]
    if not launches:
        return None
    work = describe_work(launches[0])  # what must be equal for launches to be comparable, by key
    # Each group is either launches of one other work, which passed and are not refuted, or a single
    # published row.
    for results in _group_comparisons(records, candidates):
        others = [x for x in results if isinstance(x, Record)]  # rows are not compared here
        if not others or not _differ_only_in_balance(work, describe_work(others[0])):
            continue
        # `work[_BOUND]` is True if the launches are the bound, else False.
        bound, trained = (launches, others) if work[_BOUND] else (others, launches)
        bound_speed = summarize_figure(bound, "p_train")
        trained_speed = summarize_figure(trained, "p_train")
        if bound_speed is None or trained_speed is None:
            continue
        return Callout(
            phrase("balance.heading"),
            phrase(
                "balance.gap",
                ratio=f"{bound_speed.mean / trained_speed.mean:.3f}",
                bound=cells.format_rate(bound_speed.mean),
                trained=cells.format_rate(trained_speed.mean),
                name=others[0].run_id,
            ),
        )
    return None


def _differ_only_in_balance(work: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether one of two pieces of work is the bound of the other.

    A bound is the same training with equal work forced on all experts. Only these keys differ:
    ``bound`` itself, the one field of the recipe that forces the balance, and the target, which a
    bound does not have.

    Args:
        work: what must be equal for launches to be comparable, by key.
        other: the same of the other piece of work.
    """
    differing_keys = set(find_differences(work, other)) - {_TARGET}
    # If ``bound`` differs, so does the field of the recipe, because ``bound`` is computed from it.
    # So of two keys, the second is that field.
    return _BOUND in differing_keys and len(differing_keys) == 2


def _group_comparisons(
    records: Sequence[Record], comparisons: Sequence[Result]
) -> list[Sequence[Result]]:
    """Return the results that count, grouped: launches of one work, and each published row alone.

    A launch counts if it passed and is not refuted: a refuted record contradicts its own events. A
    row counts if its publisher notes no failure (``failure`` is None).

    Args:
        records: the launches that the page shows, which are left out.
        comparisons: other launches, published rows, and perhaps ``records`` as well.
    """
    ids = {record.run_id for record in records}
    launches = []
    rows = []
    for result in comparisons:
        if isinstance(result, Record):
            if is_counted(result) and result.run_id not in ids:
                launches.append(result)
        elif result.failure is None:
            rows.append([result])
    return [*group_by_work(launches), *rows]


def _build_incomparable_callout(text: Phrase) -> Callout:
    """Return the text in place of a comparison if no result is comparable."""
    return Callout(phrase("against.heading"), text, is_quiet=True)


def _describe_witness_differences(record: Record, other: Record) -> list[Phrase]:
    """Return in what the work of two programs differs: their command, keys of their --witness file.

    The user's own program trained, instead of a case. Only one of the two runs may be of a program.
    """
    ours = record.plan.witness
    theirs = other.plan.witness
    if ours is None or theirs is None:
        command = [None if x is None else shlex.join(x.command) for x in (ours, theirs)]
        return [_describe_difference(phrase("against.program"), *command)]
    our_parts = ours.list_work()
    their_parts = theirs.list_work()
    reasons = []
    for key in find_differences(our_parts, their_parts):
        # The command is at the empty key.
        what = phrase("against.witness_key", name=key) if key else phrase("against.program")
        reasons.append(_describe_difference(what, our_parts.get(key), their_parts.get(key)))
    return reasons


def _describe_difference(what: Phrase, value: object, other: object) -> Phrase:
    """Return in what work differs, with both values, in plain words.

    Args:
        what: name of what differs, such as a field of the recipe.
        value: its value in the run that the page shows; None: it does not have the key.
        other: its value in the result with which the run is compared; None: the same.
    """
    # Of two long texts, only the part around their difference is shown. A text is also cut if the
    # other value is none.
    cut_value, cut_other = cut_around_difference(
        value if isinstance(value, str) else "",
        other if isinstance(other, str) else "",
        _MAX_CHARACTERS,
    )
    shown_value = cut_value if isinstance(value, str) else value
    shown_other = cut_other if isinstance(other, str) else other
    return phrase(
        "against.differs",
        what=what,
        a=_format_work_value(shown_value),
        b=_format_work_value(shown_other),
    )


def _format_work_value(value: object) -> Phrase:
    """Return a value of a piece of work: a count in groups of three digits, a flag as yes or no.

    A missing or empty value is the word "none".
    """
    if isinstance(value, bool):
        return phrase("fact.yes" if value else "fact.no")
    if isinstance(value, int):
        return cells.format_integer(value)
    if isinstance(value, float):  # a learning rate, for example; 0.0 is a value too
        return str(value)
    if not value:
        return phrase("fact.none")  # the word "none"
    # The origin of the data, such as "generated", is translated; any other value has no translation
    # and is shown as it is.
    return term("origin", str(value))


def _build_speed_bars(
    figure: str,
    launches: Sequence[Record],
    speed: float,
    others: Sequence[tuple[float, Sequence[Result]]],
) -> Bars:
    """Return a bar for the launches and one for each other result.

    Args:
        figure: name of the figure by which the results are compared.
        launches: those that the page shows.
        speed: mean of the figure over ``launches``.
        others: mean of the figure, and the launches or the published row that have it, of each
            other result; the fastest first.
    """
    highest_speed = max(speed, others[0][0])  # its bar has the whole width
    unit = launches[0].figures[figure].unit
    grades: set[str] = {get_trust(launches).grade}  # grades of trust of all that the bars show
    shown = f"{cells.format_rate(speed)} {unit}"
    own_bar = Bar(
        phrase("against.this"),
        start=0.0,
        end=speed / highest_speed,
        colour="own",
        shown="",  # the others show the ratio of this one to them
        hover=shown,
    )
    bars = [own_bar]
    for other_speed, results in others:
        runs = [result for result in results if isinstance(result, Record)]
        if runs:
            grade: str = get_trust(runs).grade
            grades.add(grade)
        else:
            grade = "published"  # a published row has no grade, but a label of this key
        label = phrase(f"against.{grade}", name=_describe_system(results[0]))
        names = ", ".join(map(identify_result, results))  # run ids, or the place of the row
        hover = f"{cells.format_rate(other_speed)} {unit}; {names}"
        ratio = f"× {speed / other_speed:#.3g}"
        bars.append(
            Bar(
                label,
                start=0.0,
                end=other_speed / highest_speed,
                colour="other",
                shown=ratio,
                hover=hover,
            )
        )
    title: list[Phrase] = [phrase("against.title", figure=figure)]
    # If one of the speeds must not be quoted, the title says that the ratios are for guidance only.
    if "do_not_quote" in grades:
        title.insert(0, phrase("against.hint"))
    return Bars(join(title, "colon"), tuple(bars))


def describe_comparison(records: Sequence[Record], comparisons: Sequence[Result]) -> Phrase:
    """Return in one line the ratio of the records' speed to that of each comparable result.

    If no result is comparable, the line says so. It is empty if each of the records failed or is
    refuted.

    Args:
        records: launches of one work.
        comparisons: other records, and rows that others published.
    """
    comparison = compare_speed(records, comparisons)
    if comparison is None:
        return ""
    if isinstance(comparison, Callout):
        return comparison.text
    _, *other_bars = comparison.items  # the first bar is of the records
    ratios = [phrase("against.ratio", ratio=bar.shown, name=bar.label) for bar in other_bars]
    return join((comparison.title, join(ratios)), "colon")


def _describe_system(result: Result) -> Phrase:
    """Return the devices of a record, or the printed configuration of a published row.

    A configuration is a text such as ``A100单机8卡（1x8）``. In English, our name for it replaces
    the printed one if the device and the numbers of nodes and of devices per node are known.
    """
    if isinstance(result, Record):
        return describe_devices(result)
    device = result.device or ""
    printed = result.configuration
    if device not in printed:  # the printed configuration does not name its device
        printed = f"{device} {printed}"
    printed = to_one_line(printed)[:_MAX_CHARACTERS]
    if not (device and result.nnodes and result.nproc):
        return printed
    ours = describe_configuration(device, nnodes=result.nnodes, nproc=result.nproc)
    # The text `reference.as_printed` is `printed` in Chinese and `ours` in English.
    return phrase("reference.as_printed", printed=printed, ours=ours)
