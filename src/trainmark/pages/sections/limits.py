"""What limits the speed of a training.

A limit is found by a rule. It states its cost, a share of the training time, if that is known, and
advises only what follows from the rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trainmark.pages import cells
from trainmark.pages.document import Bar, Bars, Paragraph
from trainmark.pages.sections.ranks import collect_throttled_shares, read_slow_rank
from trainmark.pages.texts import Phrase, has_cards, phrase
from trainmark.record.findings import BUSY_SHARE, THROTTLED_SHARE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.record.record import Record

_MIN_DRAWN_SHARE = 0.005  # of the training time; smaller parts have no bar of their own
_MIN_LIMITING_SHARE = {"data": 0.05, "evaluation": 0.25}  # of the training time
_GOOD_MATMUL_SHARE = 0.4  # of the measured matmul rate
_ROOMY_MEMORY_SHARE = 0.5  # of the memory in use
# Advice for users' own programs, which have no recipe, by the name of the limit.
_ADVICE_ON_PROGRAMS = {"data": "program_data", "evaluation": "program_evaluation"}


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
    return phrase("limit.none_rate", share=share, rate=f"{cells.format_rounded(rate, 2)}%")


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
    share_by_rank = collect_throttled_shares(record, "measured")  # of the time after the warm-up
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
    slowest = read_slow_rank(record)
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
    used = record.figure("mem")  # peak memory in use, of the device that used the most
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
