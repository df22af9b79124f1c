"""What limits a training, how it compares with other results, and how its ranks differ.

A limit is found by a rule. It states its cost, a share of the training time, if that is known, and
advises only what follows from the rule. Results are comparable if they are of the same work, on any
device: launches measured here, and published rows.
"""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.errors import to_one_line
from trainmark.pages import cells
from trainmark.pages.document import Bar, Bars, Callout, Paragraph, Strip
from trainmark.pages.texts import (
    Phrase,
    Tone,
    describe_configuration,
    describe_devices,
    has_cards,
    join,
    name_speed_figure,
    phrase,
    term,
)
from trainmark.record.compared import cut_around_difference
from trainmark.record.findings import (
    BUSY_SHARE,
    SLOW_SHARE,
    THROTTLED_SHARE,
    find_throttling_shares,
)
from trainmark.record.record import Record
from trainmark.record.stats import summarize_launches
from trainmark.record.trust import get_trust, is_refuted
from trainmark.record.work import (
    Row,
    describe_work,
    find_differences,
    find_row_differences,
    group_by_work,
    identify_result,
)
from trainmark.results.store.columns import get_device_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.record.stats import LaunchSummary
    from trainmark.record.work import Result
    from trainmark.telemetry.summary import IntervalName

_MIN_DRAWN_SHARE = 0.005  # of the training time; smaller parts have no bar of their own
_MIN_LIMITING_SHARE = {"data": 0.05, "evaluation": 0.25}  # of the training time
_GOOD_MATMUL_SHARE = 0.4  # of the measured matmul rate
_ROOMY_MEMORY_SHARE = 0.5  # of the memory in use
_DEVICES = "device_products"  # key of the work; other devices are what a comparison is for
_BOUND = "bound"  # key of the work: whether it is a bound, see `compare_with_bound`
_TARGET = "target_value"  # key of the work; a bound has no quality target
_MAX_COMPARISONS = 3  # results that are drawn
_MAX_DIFFERENCES = 3  # of the closest result, that are named
_MAX_NAMED_RANKS = 4
# Advice for users' own programs, which have no recipe, by the name of the limit.
_ADVICE_ON_PROGRAMS = {"data": "program_data", "evaluation": "program_evaluation"}
_MAX_CHARACTERS = 60  # of a published configuration, and of a value in a difference


class Limit(NamedTuple):
    """A rule that applies to a run, with its advice.

    Attributes:
        cost: the share of the training time that it costs; None: not known.
        advice: what limits the training and what to do.
        arithmetic: how the rule's value compares with its threshold.
    """

    rule: str
    cost: float | None
    advice: Phrase
    arithmetic: str


def split_training_time(record: Record) -> dict[str, float]:
    """Return how many seconds of the training were spent on each activity.

    The keys: ``compute``; ``data``, waiting for data; ``evaluation``; and ``rest``, checkpoints and
    the time between steps. Empty if the record has none of these times.
    """
    # In a record, evaluations and checkpoints are spans of their own; the time of the steps and
    # between them is divided into parts.
    spans = record.spans.by_name_ns
    parts = record.spans.train_parts_ns
    spent_ns = {
        "compute": parts.get("compute", 0),
        "data": parts.get("data_wait", 0),
        "evaluation": spans.get("evaluate", 0),
        "rest": parts.get("other", 0) + spans.get("checkpoint", 0),
    }
    if not any(spent_ns.values()):
        return {}
    return {name: ns / 1e9 for name, ns in spent_ns.items()}


def build_time_bar(record: Record) -> Bars | None:
    """Return the training time as one bar, with a part for each activity; None without any time.

    Below the bar stand a sentence on what limits the training most, and the arithmetic of this
    limit: how a value compares with its threshold, ``12.0% > 5%``.
    """
    spent = split_training_time(record)  # seconds by activity
    total = sum(spent.values())
    start = 0.0
    bars = []
    for name, seconds in spent.items():
        share = seconds / total
        # Of several ranks, computing cannot be separated from communication, so the label has both.
        label = "compute_all" if name == "compute" and record.plan.world_size > 1 else name
        if share >= _MIN_DRAWN_SHARE:  # a smaller part is left blank: the next one keeps its place
            bar = Bar(
                label=phrase(f"limit.{label}"),
                start=start,
                end=start + share,
                colour=name,  # the page's style has a colour for each activity
                shown=f"{100 * share:.0f}%",
                hover=f"{seconds:.3f} s / {total:.3f} s",
            )
            bars.append(bar)
        start += share
    if not bars:
        return None
    limits = find_limits(record)  # the costliest first
    arithmetic = limits[0].arithmetic if limits else ""
    title = phrase("limit.title")
    return Bars(
        title,
        items=tuple(bars),
        sentence=describe_dominant_limit(record),
        arithmetic=arithmetic,
        stacked=True,
    )


def describe_dominant_limit(record: Record) -> Phrase:
    """Return what limits the training most, and what to do about it.

    If nothing limits it, return the share of the training time that was spent on computing; empty
    if the record has no times of the training.
    """
    limits = find_limits(record)  # the costliest first
    if limits:
        return limits[0].advice
    spent = split_training_time(record)  # seconds by activity
    if not spent:
        return ""
    share = f"{spent['compute'] / sum(spent.values()):.0%}"
    rate = record.figure("MAMFU")  # share of the measured matmul rate, in percent
    if rate is None:  # the matmul rate was not measured
        return phrase("limit.none", share=share)
    return phrase("limit.none_rate", share=share, rate=f"{rate:.2g}%")


def list_minor_limits(record: Record) -> list[Paragraph]:
    """Return a paragraph for each limit of a training, except for the costliest.

    A limit is something that slows the training down. Its paragraph has advice and, in brackets,
    the arithmetic behind it: how a value compares with its threshold, ``12.0% > 5%``. The costliest
    limit stands elsewhere on the page.
    """
    # A tuple is one phrase of several parts.
    return [
        Paragraph((limit.advice, f" ({limit.arithmetic})")) for limit in find_limits(record)[1:]
    ]


def find_limits(record: Record) -> list[Limit]:
    """Return what slows a training down, the costliest limit first, those of unknown cost last.

    The cost of a limit is the share of the training time that it takes. Each of the functions
    called here is a rule that finds a limit. Limits of the same cost are in the order of the rules.
    """
    limits = [
        *_find_time_limits(record),
        _find_throttling(record),
        _find_slow_rank(record),
        _find_other_work(record),
        _find_small_batch(record),
    ]
    applying = [limit for limit in limits if limit is not None]
    # A cost that is not known sorts as 0, because a limit with a known cost is the better advice.
    return sorted(applying, key=lambda limit: limit.cost or 0.0, reverse=True)


def _find_time_limits(record: Record) -> Iterator[Limit]:
    """Yield a limit for waiting for data and for evaluation if they take much of the time."""
    spent = split_training_time(record)  # seconds by activity
    total = sum(spent.values())
    if not total:
        return
    for name, min_share in _MIN_LIMITING_SHARE.items():
        share = spent[name] / total
        if share >= min_share:
            arithmetic = f"{spent[name]:.3f} s / {total:.3f} s = {share:.1%} ≥ {min_share:.0%}"
            # A user's own program, which has a witness, has no recipe fields that the advice could
            # name.
            key = name if record.plan.witness is None else _ADVICE_ON_PROGRAMS[name]
            advice = phrase(f"advice.{key}", share=f"{share:.0%}")
            yield Limit(name, cost=share, advice=advice, arithmetic=arithmetic)


def _find_throttling(record: Record) -> Limit | None:
    """Return a limit if the clocks of a device were lowered in much of the measured time."""
    share_by_rank = _collect_throttled_shares(record, "measured")  # of the time after the warm-up
    if not share_by_rank:
        return None
    share, rank = max((share, rank) for rank, share in share_by_rank.items())
    if share <= THROTTLED_SHARE:
        return None
    arithmetic = f"{share:.1%} > {THROTTLED_SHARE:.0%}"
    advice = phrase("advice.clocks", rank=rank)
    # The cost is at most this share, because lowered clocks still compute.
    return Limit("clocks", cost=share, advice=advice, arithmetic=arithmetic)


def _find_slow_rank(record: Record) -> Limit | None:
    """Return a limit if a finding names a slow rank, for which all others wait."""
    # `excess`: by how much its step is longer than the median rank's, as a share of the latter.
    slowest = _read_slow_rank(record)
    # An excess of 0 costs nothing. Only a record that Trainmark did not write has such a finding.
    if slowest is None or not slowest.excess:
        return None
    # A step takes 1 + excess times as long as it would without the slow rank.
    lost_share = slowest.excess / (1 + slowest.excess)
    arithmetic = f"{slowest.excess:.3f} / {1 + slowest.excess:.3f} = {lost_share:.1%}"
    advice = phrase("advice.rank", rank=slowest.rank)
    return Limit("rank", cost=lost_share, advice=advice, arithmetic=arithmetic)


def _find_other_work(record: Record) -> Limit | None:
    """Return a limit if other programs used much of the host's cores."""
    others_share: float = record.environment.get("others_cpu_share") or 0.0  # None: not known
    if others_share <= BUSY_SHARE:
        return None
    # A rank that computes with several threads is hit harder, because its threads wait for one
    # another. The advice then also names OMP_NUM_THREADS=1.
    advice_key = "other_work_threads" if _has_threads(record) else "other_work"
    arithmetic = f"{others_share:.1%} > {BUSY_SHARE:.0%}"
    advice = phrase(f"advice.{advice_key}")
    # How much time the other work costs is not known.
    return Limit("other_work", cost=None, advice=advice, arithmetic=arithmetic)


def _find_small_batch(record: Record) -> Limit | None:
    """Return a limit if the device computes slowly and has free memory for a larger batch."""
    rate = record.figure("MAMFU")  # share of the measured matmul rate, in percent
    used = record.figure("mem")  # memory of a device that was used at most
    total = record.figure("mem_total")
    if rate is None or not used or not total:
        return None
    if not has_cards(record):  # the memory is the host's, not a device's
        return None
    # The advice is a larger batch or torch.compile, so it is not given to a run that compiles.
    if record.plan.recipe.get("compile"):
        return None
    if rate >= 100 * _GOOD_MATMUL_SHARE or used / total >= _ROOMY_MEMORY_SHARE:
        return None
    advice = phrase("advice.batch", rate=f"{rate:.0f}%", memory=f"{used / total:.0%}")
    memory = f"{cells.format_memory(used, total)} < {_ROOMY_MEMORY_SHARE:.0%}"
    arithmetic = f"MAMFU {rate:.1f}% < {_GOOD_MATMUL_SHARE:.0%}; {memory}"
    return Limit("batch", cost=None, advice=advice, arithmetic=arithmetic)


def _has_threads(record: Record) -> bool:
    """Tell whether each rank computed on the processor with several threads."""
    # Launchers set the variable for each rank. Without it the number of threads is not known, and a
    # single thread is assumed.
    threads = (record.environment.get("variables") or {}).get("OMP_NUM_THREADS", "1")
    return not has_cards(record) and threads != "1"


def _collect_throttled_shares(record: Record, interval: IntervalName) -> dict[int, float]:
    """Return for what share of an interval each throttled device had lowered clocks.

    Args:
        interval: ``run``, until the last rank ends, or ``measured``, the training after its
            warm-up.

    Returns:
        The share by the number of the first rank that uses the device. A device whose clocks were
        never lowered is left out.
    """
    # By the first rank of each throttled device, then by reason. Each has a reason: a device whose
    # clocks were never lowered is not in it.
    shares = find_throttling_shares(record.telemetry, interval)
    # Several reasons may apply at once, so their shares cannot be added.
    return {rank: max(reasons.values()) for rank, reasons in shares.items()}


class _SlowRank(NamedTuple):
    """A rank that is slower than others.

    ``excess``: by how much its step is longer than that of the median rank, as a share of the
    latter.
    """

    rank: int
    excess: float


def _read_slow_rank(record: Record) -> _SlowRank | None:
    """Return the rank that a finding of the record calls slow; None without such a finding.

    A finding is a message about the launch that was computed from its measurements.
    """
    for finding in record.findings:
        if finding.code == "slow_rank":
            # A record that Trainmark did not write may have other arguments.
            match finding.args:
                # `share`: of the median rank's step, by which the slow rank's step is longer.
                case {"rank": int(rank), "share": float(share)}:
                    return _SlowRank(rank, excess=share)
    return None


def summarize_figure(results: Sequence[Result], figure: str) -> LaunchSummary | None:
    """Return mean and interval of a figure over the results that have it; None if none has.

    Args:
        results: launches or published rows.
        figure: its name, such as ``p_train``.
    """
    values = []
    for result in results:
        value = result.figure(figure)
        if value is not None:
            values.append(value)
    return summarize_launches(values) if values else None


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
    launches = [record for record in records if record.passed and not is_refuted(record.trust)]
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
    reasons = [_describe_difference(name, *values) for name, values in differing.items()]
    # Without a difference the work is the same, but the two have none of the figures in common.
    why: Phrase = phrase("against.silent")
    if reasons:
        why = join(reasons[:_MAX_DIFFERENCES], "semicolon")
    return _build_incomparable_callout(
        phrase("against.none", name=_describe_system(closest[0]), why=why)
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
    launches = [record for record in records if record.passed and not is_refuted(record.trust)]
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
            counts = result.passed and not is_refuted(result.trust)
            if counts and result.run_id not in ids:
                launches.append(result)
        elif result.failure is None:
            rows.append([result])
    return [*group_by_work(launches), *rows]


def _build_incomparable_callout(text: Phrase) -> Callout:
    """Return the text in place of a comparison if no result is comparable."""
    return Callout(phrase("against.heading"), text, is_quiet=True)


def _describe_difference(name: str, value: object, other: object) -> Phrase:
    """Return in what work differs, with both values, in plain words.

    Args:
        name: key of the work, such as a field of the recipe.
        value: its value in the run that the page shows; None: it does not have the key.
        other: its value in the result with which the run is compared; None: the same.
    """
    shown_value = value
    shown_other = other
    # Of two long texts, only the part around their difference is shown.
    if isinstance(value, str) or isinstance(other, str):  # one of them may be missing
        shown_value, shown_other = cut_around_difference(
            str(value or ""), str(other or ""), _MAX_CHARACTERS
        )
    return phrase(
        "against.differs",
        what=term("work", name),
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


def build_rank_strip(record: Record) -> Strip | None:
    """Return a cell for each rank, by node, and a sentence on the ranks that stand out.

    The tone of a cell, by which it is coloured, is "bad" for a slow rank and "warn" for a throttled
    rank or one that did not finish. Hovering over a cell shows the median time of the rank's steps.
    None for one rank, and if the record has nothing about ranks.
    """
    if record.plan.world_size < 2 or not record.ranks:
        return None
    slowest = _read_slow_rank(record)  # None: no finding calls a rank slow
    # A key for each device whose clocks were lowered: its first rank.
    throttled_ranks = _collect_throttled_shares(record, "measured")
    cells_by_node: dict[int, list[tuple[Tone, Phrase]]] = {}
    for entry in record.ranks:
        tone: Tone = "plain"
        if slowest and entry.rank == slowest.rank:
            tone = "bad"
        elif entry.rank in throttled_ranks or not entry.finished:
            tone = "warn"
        step = cells.NOTHING if entry.step_ns is None else f"{entry.step_ns / 1e6:.4g} ms"
        hover = f"rank {entry.rank}, {get_device_name(record)}: {step}"
        node = entry.rank // record.plan.nproc  # a node has `nproc` ranks
        cells_by_node.setdefault(node, []).append((tone, hover))
    remarks = join(_list_rank_remarks(record), "semicolon")
    return Strip(phrase("strip.title"), tuple(map(tuple, cells_by_node.values())), remarks)


def _list_rank_remarks(record: Record) -> list[Phrase]:
    """Return remarks on the slowest rank, the throttled ones and the hottest, as far as known.

    If no finding calls a rank slow, the first remarks say how far the slowest is from the median.
    """
    # `excess`: by how much its step is longer than the median rank's, as a share of the latter.
    slowest = _read_slow_rank(record)
    # The share of the time after the warm-up with lowered clocks, by rank.
    measured_shares = _collect_throttled_shares(record, "measured")
    remarks: list[Phrase] = []
    if slowest:
        share = f"{slowest.excess:+.0%}"
        remarks.append(phrase("strip.slowest", rank=slowest.rank, share=share))
    else:
        remarks += _describe_step_differences(record)
    if measured_shares:
        worst = max(measured_shares, key=measured_shares.__getitem__)
        share = f"{measured_shares[worst]:.0%}"
        remarks.append(phrase("strip.throttled", rank=worst, share=share))
    run_shares = _collect_throttled_shares(record, "run")  # of the whole run, warm-up included
    # Ranks that were throttled only before the measured steps or after them.
    throttled_outside = [str(rank) for rank in run_shares if rank not in measured_shares]
    if throttled_outside:
        ranks = ", ".join(throttled_outside[:_MAX_NAMED_RANKS])
        remarks.append(phrase("strip.outside", ranks=ranks))
    hottest = _find_hottest_rank(record)
    if hottest:
        rank, celsius = hottest
        remarks.append(phrase("strip.hottest", rank=rank, celsius=f"{celsius:.0f}"))
    return remarks


def _describe_step_differences(record: Record) -> list[Phrase]:
    """Return how much slower the slowest rank is than the median, and why that may mean nothing.

    It is for a record without a finding of a slow rank.
    """
    # Of each rank the median time of its measured steps; a rank that measured none has no time.
    steps_ns = [rank_entry.step_ns for rank_entry in record.ranks if rank_entry.step_ns]
    if len(steps_ns) < 2:
        return [phrase("strip.no_steps")]
    # Of two ranks, median_low takes the faster one, with which the slower one is compared.
    excess = max(steps_ns) / median_low(steps_ns) - 1
    parts: list[Phrase] = [phrase("strip.spread", share=f"{excess:.1%}")]
    # A rank above the threshold SLOW_SHARE has no finding only if ranks were not searched for slow
    # ones: there are more ranks than cores ("oversubscribed"), or the measured time was too short.
    # The text of this part says the latter.
    if excess > SLOW_SHARE and "oversubscribed" not in record.plan.labels:
        parts.append(phrase("strip.not_compared"))
    if not has_cards(record):  # the ranks have no devices of their own
        parts.append(phrase("strip.shared_cores"))
    return parts


def _find_hottest_rank(record: Record) -> tuple[int, float] | None:
    """Return the rank with the hottest device in the training, and how hot it was in °C.

    None if fewer than two devices that are used by ranks report temperatures.
    """
    if record.telemetry is None:
        return None
    readings = []
    for device in record.telemetry.devices:
        use = device.over.get("train")  # what was read of the device during the training
        if device.ranks and use is not None and "temperature_c" in use.quantities:
            # One rank stands for all that share the device.
            readings.append((use.quantities["temperature_c"].highest, device.ranks[0]))
    if len(readings) < 2:
        return None
    celsius, rank = max(readings)  # by the temperature
    return rank, celsius
