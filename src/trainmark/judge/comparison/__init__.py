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
    nearest,
)
from trainmark.judge.comparison import sides
from trainmark.judge.comparison.scaling import OF_WORLD, scaling_between
from trainmark.record.figures import specs
from trainmark.record.stats import INTERVAL_MIN_LAUNCHES, over_launches, ratio, trend
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trainmark.judge.comparison.scaling import Scaling
    from trainmark.judge.comparison.sides import Difference, Side
    from trainmark.record.record import Record
    from trainmark.spec import FigureSpec, Message

Verdict = Literal[
    "slower", "worse", "target_missed", "too_noisy", "too_little_data",
    "no_difference", "no_direction", "faster", "better", "other_world",
]  # fmt: skip
REGRESSIONS: tuple[Verdict, ...] = ("slower", "worse", "target_missed")
UNTOLD: tuple[Verdict, ...] = ("too_noisy", "too_little_data")
THRESHOLD = 0.03
# Compared unless others are asked for.
_THROUGHPUTS = ("p_core", "p_train", "p_whole")


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure of both sides.

    Args:
        better: whether higher or lower values are better; None: neither.
        a: geometric mean over the launches of A, in ``unit``; None: not known.
        ratio: ``b / a``.
        low: lower end of the ratio's 95% interval; None: there is none.
        launches: those of A and of B that tell the figure.
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
    verdict: Verdict
    sentence: Message


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is known of B over A.

    Args:
        verdict: the gravest: a regression, then what cannot be told, then the first figure's.
        exit_code: 0 if there is no regression, 1 if there is one, 2 for other numbers of ranks, 3
            if it cannot be told.
        quality: how many launches of each reached their target; None: there is none to reach.
        differences: facts of machine and software that differ.
        allowed: in what the work differs, as allowed.
        paired: launches were done in turns and are compared in pairs.
        scaling: how the work scales, in place of figures, if only the numbers of ranks differ.
    """

    verdict: Verdict
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
        """Return everything as JSON has it."""
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
        figures: names as in ``figures.toml``; None: the throughputs that both sides have.
        threshold: share by which a ratio must differ from 1, with its whole interval.
        allow: keys of the work in which the sides may differ.

    Raises:
        UsageError: other work than at other numbers of ranks, with the key and both values; a run
            given twice or copied; an unknown figure; a threshold outside 0 to 1; a side without
            launches.
    """
    if not a or not b:
        raise UsageError("a side without launches", fix="name runs that have a record")
    if not 0 <= threshold < 1:
        raise UsageError(f"threshold {threshold:g}", rule="a share from 0 up to 1, as 0.03")
    known = specs(a[0].plan.about.page)
    for name in figures or ():
        if name not in known:
            raise UsageError(f"no figure {name!r}", where="--figure", fix=nearest(name, known))
    allowed, refused = sides.different_work(a, b, allow)
    if refused:
        scaling = None
        if all(one.name in OF_WORLD for one in refused):
            scaling = scaling_between(a, b, allow)
        if scaling is None:
            raise sides.other_work(refused)
        return _scaled(a, b, scaling, allowed, threshold)
    kept, paired = sides.counted(a, b)
    of_a, of_b = map(sides.side_of, (a, b), kept)
    found = tuple(
        _compared(known[name], kept, paired=paired, threshold=threshold)
        for name in figures or _usual(kept)
    )
    of_quality, words = _quality(of_a, of_b)
    told = [(one.verdict, one.sentence) for one in found]
    told += [] if words is None else [(of_quality, words)]
    verdict, sentence = min(told, key=lambda x: (x[0] not in REGRESSIONS, x[0] not in UNTOLD))
    code = EXIT_FAILED if verdict in REGRESSIONS else EXIT_PASSED
    return Comparison(
        verdict, sentence, EXIT_NOISY if verdict in UNTOLD else code, of_a, of_b,
        figures=found, quality=words,
        differences=sides.unlike_environment(*kept), allowed=tuple(allowed),
        paired=paired, threshold=threshold,
    )  # fmt: skip


def _scaled(
    a: Sequence[Record], b: Sequence[Record], scaling: Scaling,
    allowed: Sequence[Difference], threshold: float,
) -> Comparison:  # fmt: skip
    """Return how the work scales between sides of other numbers of ranks."""
    kept, _ = sides.counted(a, b)
    of_a, of_b = map(sides.side_of, (a, b), kept)
    smallest, largest = scaling.worlds[0], scaling.worlds[-1]
    sentence = message(
        f"compare_{scaling.kind}_scaling", side="B", world=largest.name, first=smallest.name,
        efficiency=largest.efficiency,
    )  # fmt: skip
    return Comparison(
        "other_world", sentence, EXIT_USAGE, of_a, of_b, figures=(), quality=None,
        differences=sides.unlike_environment(*kept), allowed=tuple(allowed), paired=False,
        threshold=threshold, scaling=scaling,
    )  # fmt: skip


def _usual(kept: Sequence[Sequence[Record]]) -> Sequence[str]:
    """Return the throughputs that both sides have, else the first."""
    both = (
        name for name in _THROUGHPUTS
        if all(any(_value(one, name) for one in side) for side in kept)
    )  # fmt: skip
    return tuple(both) or _THROUGHPUTS[:1]


def _value(record: Record, name: str) -> float | None:
    """Return a figure; None where it is not known or has no logarithm."""
    value = record.figure(name)
    return value if value and value > 0 else None


def _compared(
    spec: FigureSpec,
    kept: Sequence[Sequence[Record]],
    *,
    paired: bool,
    threshold: float,
) -> ComparedFigure:
    """Return a figure with its verdict; it has no ratio where one side does not tell it."""
    name = spec.name
    known = [[_value(one, name) for one in side] for side in kept]
    if paired:  # a round counts where both of its launches tell the figure
        whole = [pair for pair in zip(*known, strict=True) if None not in pair]
        known = [[pair[side] for pair in whole] for side in (0, 1)]
    a, b = ([value for value in side if value is not None] for side in known)
    value, low, high = ratio(a, b, paired=paired) if a and b else (None, None, None)
    moved = None if paired or low is None else drift_of_sides(a, b, threshold)
    args = {"side": "B", "figure": name, "ratio": value, "low": low, "high": high,
            "threshold": threshold, "launches": min(len(a), len(b)),
            "least": INTERVAL_MIN_LAUNCHES}  # fmt: skip
    verdict = _verdict(low, high, spec, threshold)
    code = f"verdict.{verdict}"
    if moved is not None:
        verdict, code, args = "too_noisy", "compare_trend", args | {"change": moved}
    elif low is None:
        code = "compare_absent" if value is None else "compare_no_interval"
    means = [over_launches(side).mean if side else None for side in (a, b)]
    units = (one.figures[name].unit for side in kept for one in side if name in one.figures)
    return ComparedFigure(
        name=name, unit=next(units, spec.unit), better=spec.better, a=means[0], b=means[1],
        ratio=value, low=low, high=high, launches=(len(a), len(b)), verdict=verdict,
        sentence=message(code, **args),
    )  # fmt: skip


def drift_of_sides(a: Sequence[float], b: Sequence[float], threshold: float) -> float | None:
    """Return by what share a figure changes from launch to launch, if that could pass for B.

    Of launches that were not done in turns: the machine may drift from A to B as well. None if
    chance explains the change, or if over a side it is below a third of the threshold.
    """
    changes = (change for change in (trend(a), trend(b), trend(a, b)) if change is not None)
    greatest = max(changes, key=abs, default=0.0)
    return greatest if abs(greatest) * min(len(a), len(b)) > threshold / 3 else None


def _verdict(low: float | None, high: float | None, spec: FigureSpec, threshold: float) -> Verdict:
    """Return what the interval says against the threshold."""
    if low is None or high is None:
        return "too_little_data"
    if spec.better is None:
        return "no_direction"
    if 1 - threshold <= low and high <= 1 + threshold:
        return "no_difference"
    if 1 - threshold <= high and low <= 1 + threshold:
        return "too_noisy"
    good = (low > 1) == (spec.better == "higher")
    if spec.unit == "s" or spec.unit.endswith("/s"):
        return "faster" if good else "slower"
    return "better" if good else "worse"


def _quality(a: Side, b: Side) -> tuple[Verdict, Message | None]:
    """Return whether B misses a target that A reaches, judged by most launches of each."""
    if not a.judged or not b.judged:
        return "no_difference", None
    args: dict[str, Any] = {
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
