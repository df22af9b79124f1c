"""Compare two groups of launches: ratios with intervals, verdicts, and what else differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import to_jsonable_python

from trainmark.errors import (
    EXIT_FAILED,
    EXIT_NOISY,
    EXIT_PASSED,
    EXIT_USAGE,
    UsageError,
)
from trainmark.judge.comparison import sides
from trainmark.judge.comparison.scaling import WORLD_FIELDS, find_scaling_of_sides
from trainmark.record.figures import list_specs
from trainmark.record.stats import (
    INTERVAL_MIN_LAUNCHES,
    estimate_ratio,
    estimate_trend,
    summarize_launches,
)
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trainmark.judge.comparison.scaling import Scaling
    from trainmark.judge.comparison.sides import CountedLaunches, Difference, Side, WorkDifferences
    from trainmark.record.record import Record
    from trainmark.spec import FigureSpec, Message

ComparisonVerdict = Literal[
    "slower",
    "worse",
    "target_missed",
    "too_noisy",
    "too_little_data",
    "no_difference",
    "no_direction",
    "faster",
    "better",
    "other_world",
]
REGRESSIONS: tuple[ComparisonVerdict, ...] = ("slower", "worse", "target_missed")
INCONCLUSIVE: tuple[ComparisonVerdict, ...] = ("too_noisy", "too_little_data")
THRESHOLD = 0.03
_DRIFT_DIVISOR = 3  # a drift is suspicious if it is more than a third of the threshold
# Compared unless others are named.
_DEFAULT_FIGURES = ("p_core", "p_train", "p_whole")
_EXIT_CODES = (EXIT_FAILED, EXIT_NOISY, EXIT_PASSED)  # by the rank of a verdict's severity


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure of both sides.

    Args:
        better: whether higher or lower values are better; None: neither.
        a: geometric mean over the launches of A, in ``unit``; None: not known.
        b: geometric mean over the launches of B, in ``unit``; None: not known.
        ratio: ``b / a``; None: one side has no value.
        low: lower end of the ratio's 95% interval; None: too few launches for an interval.
        high: upper end of the ratio's 95% interval; None: too few launches for an interval.
        launches: number of launches of A and of B that have the figure.
        sentence: the verdict with its numbers.
    """

    name: str
    unit: str
    better: str | None
    a: float | None
    b: float | None
    ratio: float | None
    low: float | None
    high: float | None
    launches: tuple[int, int]
    verdict: ComparisonVerdict
    sentence: Message


@dataclass(frozen=True, slots=True)
class Comparison:
    """B compared with A.

    Args:
        verdict: the worst verdict of the figures and the quality: a regression, then an
            inconclusive figure, then the verdict of the first figure.
        exit_code: 0 if there is no regression, 1 if there is one, 2 if the numbers of ranks
            differ, 3 if the figures are inconclusive.
        quality: how many launches of each side reached their target; None: no target was set.
        differences: facts of machine and software that differ.
        allowed: differences of the work that ``allow`` names.
        paired: launches of both sides alternated and are compared in pairs.
        threshold: amount by which a ratio must differ from 1, with its whole interval.
        scaling: how the work scales, in place of figures, if only the numbers of ranks differ.
    """

    verdict: ComparisonVerdict
    sentence: Message
    exit_code: int
    a: Side
    b: Side
    figures: tuple[ComparedFigure, ...]
    quality: Message | None
    differences: tuple[Difference, ...]
    allowed: tuple[Difference, ...]
    paired: bool
    threshold: float
    scaling: Scaling | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return all fields in the form of JSON."""
        document: dict[str, Any] = to_jsonable_python(self)
        return document


def compare(
    a: Sequence[Record],
    b: Sequence[Record],
    *,
    figures: Sequence[str] | None = None,
    threshold: float = THRESHOLD,
    allow: Collection[str] = (),
) -> Comparison:
    """Compare the launches ``b`` with the launches ``a``.

    Args:
        a: launches that are the reference; those that did not pass do not count.
        b: launches to compare with it.
        figures: names as in ``figures.toml``; None: the throughputs that both sides have. If the
            sides differ in the number of ranks, no figures are compared, but how the throughput
            scales with the ranks; then this function only checks that the names exist.
        threshold: amount by which a ratio must differ from 1, with its whole interval.
        allow: keys of the work in which the sides may differ.

    Raises:
        UsageError: the work differs in more than the number of ranks; a run is given twice or is a
            copy; a figure is unknown; the threshold is not from 0 to 1; a side has no launches.
    """
    if not a or not b:
        raise UsageError(
            "one side of the comparison has no launches", fix="choose runs that have a record"
        )
    if not 0 <= threshold < 1:
        raise UsageError(
            f"the threshold is {threshold:g}",
            rule="the threshold must be at least 0 and less than 1, for example 0.03",
        )
    # Declarations by name of the figures that every case has, and of those that only this case has:
    # ``page`` declares what pages show of the case in addition. Different cases are refused below.
    specs = list_specs(a[0].plan.about.page)
    sides.reject_unknown_figures(figures or (), specs)
    differences = sides.find_work_differences(a, b, allow)  # refuses runs given twice and copies
    if differences.not_allowed:
        # Raises, unless only the number of ranks differs: then the sides are compared as scaling.
        return _compare_scaling(a, b, differences, allow, threshold)
    counted = sides.select_counted(a, b)
    compared_figures = tuple(
        _compare_figure(specs[name], counted, threshold)
        for name in figures or _select_figures(counted)
    )
    return _combine_figures(
        a,
        b,
        counted,
        figures=compared_figures,
        allowed=differences.allowed,
        threshold=threshold,
    )


def _combine_figures(
    a: Sequence[Record],
    b: Sequence[Record],
    counted: CountedLaunches,
    *,
    figures: tuple[ComparedFigure, ...],
    allowed: tuple[Difference, ...],
    threshold: float,
) -> Comparison:
    """Return the comparison of sides with the same work, with the worst verdict of its figures.

    Args:
        a: all launches of side A.
        b: all launches of side B.
        counted: the launches of both sides that count.
        figures: the compared figures, each with its verdict.
        allowed: differences of the work that the user allowed.
    """
    side_a = sides.describe_side(a, counted.a)
    side_b = sides.describe_side(b, counted.b)
    verdicts = [(figure.verdict, figure.sentence) for figure in figures]
    quality_verdict, quality = _compare_quality(side_a, side_b)
    if quality is not None:
        verdicts.append((quality_verdict, quality))
    # The most severe verdict has rank 0. Of equally severe ones ``min`` returns the first.
    verdict, sentence = min(verdicts, key=lambda item: _rank_severity(item[0]))
    return Comparison(
        verdict,
        sentence,
        _EXIT_CODES[_rank_severity(verdict)],
        side_a,
        side_b,
        figures=figures,
        quality=quality,
        differences=sides.find_environment_differences(counted.a, counted.b),
        allowed=allowed,
        paired=counted.paired,
        threshold=threshold,
    )


def _compare_scaling(
    a: Sequence[Record],
    b: Sequence[Record],
    differences: WorkDifferences,
    allow: Collection[str],
    threshold: float,
) -> Comparison:
    """Compare sides with different numbers of ranks by how their throughput scales.

    Raises:
        UsageError: the work differs in more, or neither the batch of a rank (weak scaling) nor that
            of all ranks together (strong scaling) is the same.
    """
    scaling = None
    # For scaling, the sides may differ only in these fields: the number of ranks and the batch.
    if all(difference.name in WORLD_FIELDS for difference in differences.not_allowed):
        scaling = find_scaling_of_sides(a, b, allow)
    if scaling is None:
        raise sides.make_other_work_error(differences.not_allowed)
    return _compare_worlds(a, b, scaling, differences.allowed, threshold)


def _rank_severity(verdict: ComparisonVerdict) -> int:
    """Return 0 for a regression, 1 for an inconclusive figure, 2 for others."""
    if verdict in REGRESSIONS:
        return 0
    return 1 if verdict in INCONCLUSIVE else 2


def _compare_worlds(
    a: Sequence[Record],
    b: Sequence[Record],
    scaling: Scaling,
    allowed: tuple[Difference, ...],
    threshold: float,
) -> Comparison:
    """Return how the work scales between sides with different numbers of ranks.

    Args:
        a: all launches of side A.
        b: all launches of side B.
        scaling: throughput of each world, which is a number of ranks; the smallest world first.
        allowed: differences of the work that the user allowed.
        threshold: only stored, because no figure is judged.
    """
    counted = sides.select_counted(a, b)
    smallest = scaling.worlds[0]
    largest = scaling.worlds[-1]
    sentence = message(
        f"compare_{scaling.kind}_scaling",
        # The name of the side in the sentence; a page with several comparisons replaces it.
        side="B",
        world=largest.name,
        first=smallest.name,
        efficiency=largest.efficiency,
    )
    return Comparison(
        "other_world",
        sentence,
        # The sides do different work. Neither success nor a regression would be true, because no
        # figure was judged; a gate on other work ends with this code, too.
        EXIT_USAGE,
        sides.describe_side(a, counted.a),
        sides.describe_side(b, counted.b),
        figures=(),
        quality=None,
        differences=sides.find_environment_differences(counted.a, counted.b),
        allowed=allowed,
        paired=False,  # an efficiency is computed from all launches of a world
        threshold=threshold,
        scaling=scaling,
    )


def _select_figures(counted: CountedLaunches) -> Sequence[str]:
    """Return the throughputs that both sides have; if there are none, the first throughput."""
    names = [
        name
        for name in _DEFAULT_FIGURES
        if _has_figure(counted.a, name) and _has_figure(counted.b, name)
    ]
    return names or _DEFAULT_FIGURES[:1]  # whose verdict then says that there is no value


def _has_figure(launches: Sequence[Record], name: str) -> bool:
    """Tell whether a launch has a figure with a value that can be compared."""
    return any(_read_positive_value(record, name) is not None for record in launches)


def _read_positive_value(record: Record, name: str) -> float | None:
    """Return a figure; None if it is not known, or not above 0.

    Ratios are estimated from logarithms, which only values above 0 have.
    """
    value = record.figure(name)
    return value if value is not None and value > 0 else None


def _compare_figure(spec: FigureSpec, counted: CountedLaunches, threshold: float) -> ComparedFigure:
    """Return a figure with its verdict; it has no ratio if one side has no value."""
    name = spec.name
    a, b = _read_values(counted, name)
    ratio = None
    low = None
    high = None
    if a and b:
        ratio, low, high = estimate_ratio(a, b, paired=counted.paired)
    drift = None
    if low is not None and not counted.paired:  # launches in pairs drift alike
        drift = find_suspicious_drift(a, b, threshold)
    args = {  # what the sentence says, by name
        # The name of the side in the sentence; a page with several comparisons replaces it.
        "side": "B",
        "figure": name,
        "ratio": ratio,
        "low": low,
        "high": high,
        "threshold": threshold,
        "launches": min(len(a), len(b)),
        "least": INTERVAL_MIN_LAUNCHES,
    }
    verdict = _judge_interval(low, high, spec, threshold)
    code = f"verdict.{verdict}"  # of the sentence; the cases below have sentences of their own
    if drift is not None:  # it may cause a difference or hide one, so nothing is concluded
        verdict = "too_noisy"
        code = "compare_trend"
        args["change"] = drift
    elif not counted.a or not counted.b:
        code = "compare_no_launch"
        args |= {"excluded_a": counted.num_excluded_a, "excluded_b": counted.num_excluded_b}
    elif ratio is None:
        code = "compare_absent"
    elif low is None:
        code = "compare_no_interval"
    # A record has the unit of its case: `tokens/s` for `{work}/s`.
    units = [x.figures[name].unit for x in (*counted.a, *counted.b) if name in x.figures]
    return ComparedFigure(
        name=name,
        unit=units[0] if units else spec.unit,
        better=spec.better,
        a=summarize_launches(a).mean if a else None,
        b=summarize_launches(b).mean if b else None,
        ratio=ratio,
        low=low,
        high=high,
        launches=(len(a), len(b)),
        verdict=verdict,
        sentence=message(code, **args),
    )


def _read_values(counted: CountedLaunches, name: str) -> tuple[list[float], list[float]]:
    """Return the known values of a figure on side A, and those on side B.

    If launches are compared in pairs, only pairs with a value on both sides count.
    """
    values_a = [_read_positive_value(record, name) for record in counted.a]
    values_b = [_read_positive_value(record, name) for record in counted.b]
    if not counted.paired:
        known_a = [value for value in values_a if value is not None]
        known_b = [value for value in values_b if value is not None]
        return known_a, known_b
    pairs = [
        (value_a, value_b)
        for value_a, value_b in zip(values_a, values_b, strict=True)
        if value_a is not None and value_b is not None
    ]
    return [value_a for value_a, _ in pairs], [value_b for _, value_b in pairs]


def find_suspicious_drift(a: Sequence[float], b: Sequence[float], threshold: float) -> float | None:
    """Return the relative change of a figure per launch, if that could explain the result.

    This is for launches that did not alternate: if the machine drifts within a side, it may have
    drifted from A to B as well. None if chance explains the change, or if over the launches of the
    smaller side it adds up to less than a third of the threshold. ``docs/compare.md`` tells
    how well comparisons with this rule detect a difference.
    """
    # Within each side, and one trend that both sides share.
    trends = [estimate_trend(a), estimate_trend(b), estimate_trend(a, b)]
    significant = [trend for trend in trends if trend is not None]
    if not significant:
        return None
    largest = max(significant, key=abs)
    drift_over_side = abs(largest) * min(len(a), len(b))
    return largest if drift_over_side > threshold / _DRIFT_DIVISOR else None


def _judge_interval(
    low: float | None, high: float | None, spec: FigureSpec, threshold: float
) -> ComparisonVerdict:
    """Return the verdict on a figure by the interval of its ratio ``b / a``."""
    if low is None or high is None:
        return "too_little_data"
    if spec.better is None:
        return "no_direction"
    if 1 - threshold <= low and high <= 1 + threshold:
        return "no_difference"
    if 1 - threshold <= high and low <= 1 + threshold:
        return "too_noisy"  # only a part of the interval is beyond the threshold
    # Here the whole interval is on one side of 1, so one end tells the direction.
    is_improvement = (low > 1) == (spec.better == "higher")
    # Only times and rates are fast or slow; other figures are better or worse.
    if spec.unit == "s" or spec.unit.endswith("/s"):
        return "faster" if is_improvement else "slower"
    return "better" if is_improvement else "worse"


def _compare_quality(a: Side, b: Side) -> tuple[ComparisonVerdict, Message | None]:
    """Return the verdict on the quality of B, and its sentence; None: no target was set.

    B misses the target if most launches of A reach it and most launches of B do not: a few may miss
    it by chance. If all launches of A reach it and some of B miss it, but not most, the verdict is
    "too_noisy". Otherwise it is "no_difference", also if A itself misses the target at times.
    """
    # ``judged``: number of launches with a target; ``reached``: how many of them reached it.
    if not a.judged or not b.judged:
        return "no_difference", None
    args: dict[str, Any] = {
        # The name of the side in the sentence; a page with several comparisons replaces it.
        "side": "B",
        "a": a.reached,
        "of_a": a.judged,
        "b": b.reached,
        "of_b": b.judged,
    }
    if 2 * a.reached > a.judged and 2 * b.reached < b.judged:
        return "target_missed", message("compare_target_missed", **args)
    if a.reached == a.judged and b.reached < b.judged:
        return "too_noisy", message("compare_target_sometimes", **args)
    return "no_difference", message("compare_targets", **args)
