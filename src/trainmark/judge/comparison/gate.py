"""Judge runs against a baseline or against their own history, figure by figure.

Owns the verdicts, the rule of each and its exit code; docs/compare.md states them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal

import numpy as np

from trainmark.errors import (
    EXIT_FAILED,
    EXIT_NOISY,
    EXIT_PASSED,
    EXIT_USAGE,
    UsageError,
    nearest,
)
from trainmark.judge.comparison import baseline as base
from trainmark.judge.comparison import history
from trainmark.judge.comparison.statistics import Group, ratio
from trainmark.record.figures import specs
from trainmark.record.stats import INTERVAL_MIN_LAUNCHES
from trainmark.record.trust import MOST_CV, refuted
from trainmark.record.work import differing, groups, work
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from trainmark.judge.comparison.baseline import Baseline, Expected
    from trainmark.record.record import Record

Verdict = Literal["passed", "improved", "regressed", "failed", "missing", "outdated", "other_work",
                  "noisy"]  # fmt: skip
_EXITS = {"passed": EXIT_PASSED, "improved": EXIT_PASSED, "noisy": EXIT_NOISY,
          "other_work": EXIT_USAGE, "outdated": EXIT_USAGE}  # fmt: skip
_WORST_FIRST = (EXIT_FAILED, EXIT_USAGE, EXIT_NOISY, EXIT_PASSED)
# By what is not the program that is measured.
_DISTURBED = {"machine_busy", "device_shared", "device_shared_unknown"}


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a figure of a piece of work, with its numbers in ``message``."""

    work: str
    figure: str
    verdict: Verdict
    message: Message
    fails: bool = False

    @property
    def exit_code(self) -> int:
        """The exit code that this verdict alone leads to."""
        return EXIT_FAILED if self.fails else _EXITS.get(self.verdict, EXIT_FAILED)


def exit_code(judgements: Sequence[Judgement]) -> int:
    """Return the exit code over all: 1 before 2 before 3; 3 if nothing was judged."""
    codes = (one.exit_code for one in judgements)
    return min(codes, key=_WORST_FIRST.index, default=EXIT_NOISY)


def against_baseline(records: Sequence[Record], baseline: Baseline) -> Iterator[Judgement]:
    """Yield a judgement for each figure that ``baseline`` has of the work of ``records``."""
    for launches in groups(records):
        name, key = base.title(launches[0]), base.in_words(work(launches[0]))
        entry = baseline.of(key)
        if entry is None:
            near = min(baseline.entries, key=lambda one: len(differing(one.work, key)))
            first, *others = differing(near.work, key)
            sides = {"known": near.work.get(first), "found": key.get(first), "others": len(others)}
            reason = message("gate_other_work", key=first, entry=near.name, **sides)
            yield Judgement(name, "work", "other_work", reason)
            continue
        usable = yield from _usable(launches, entry.status)
        age = max(map(base.day, launches)) - entry.taken
        if entry.max_age_days and age.days > entry.max_age_days:
            reason = message("gate_outdated", days=age.days, most=entry.max_age_days)
            yield Judgement(name, "age", "outdated", reason)
        here = base.environment(launches[0])
        changed = [f"{key}: {entry.environment.get(key, '/')} -> {here.get(key, '/')}"
                   for key in differing(entry.environment, here)]  # fmt: skip
        if changed:
            reason = message("gate_environment", changed=", ".join(changed))
            yield Judgement(name, "environment", "passed", reason)
        for figure, expected in entry.figures.items() if usable else ():
            yield _judged(usable, figure, expected)


def against_history(
    records: Sequence[Record], earlier: Sequence[Record], names: Sequence[str], *, last: int = 60
) -> Iterator[Judgement]:
    """Yield a judgement for each figure by the runs of the same work before ``records``.

    Args:
        names: figures to judge; none: those of ``baseline.FIGURES`` that are known.
        last: runs of the history that count; the launches of one run count as their median.

    Raises:
        UsageError: one of ``names`` is no figure.
    """
    for launches in groups(records):
        usable = yield from _usable(launches, "passed")
        begun, key = min(record.started for record in launches), work(launches[0])
        past = [one for one in earlier if one.passed and not refuted(one.trust)]
        past = [one for one in past if one.started < begun and work(one) == key]
        known = [name for name in base.FIGURES if base.values([*past, *usable], name)]
        possible = (base.QUALITY, *specs(launches[0].plan.about.page))
        for name in names:
            if name not in possible:
                remedy = nearest(name, possible)
                raise UsageError(f"no figure {name!r}", where="--figure", remedy=remedy)
        for name in (names or known) if usable else ():
            runs: dict[str, list[float]] = {}
            for one in sorted(past, key=lambda one: one.started):
                run = one.run_id.removesuffix(f"-r{one.plan.repeat_index}")
                runs.setdefault(run, []).extend(base.values([one], name))
            medians = [(run, median(found)) for run, found in runs.items() if found]
            yield _by_history(usable, name, dict(medians[-last:]))


def _usable(launches: Sequence[Record], status: str) -> Generator[Judgement, None, list[Record]]:
    """Yield a failure for each launch that cannot be judged, and return the others."""
    bad = [one for one in launches if one.status != status or refuted(one.trust)]
    for one in bad:
        args = {"run": one.run_id, "status": one.status, "wanted": status}
        reason = message("gate_refuted" if refuted(one.trust) else "gate_status", **args)
        yield Judgement(base.title(one), "status", "failed", reason)
    return [one for one in launches if one not in bad]


def _by_history(launches: Sequence[Record], name: str, runs: Mapping[str, float]) -> Judgement:
    """Judge one figure by the steps and the noise in the runs before, by their ids."""
    values, least = base.values(launches, name), 2 * history.SHORTEST
    if len(runs) < least:
        reason = message("gate_short_history", figure=name, runs=len(runs), least=least)
        return Judgement(base.title(launches[0]), name, "noisy", reason)
    series = [*runs.values(), *([median(values)] if values else [])]
    seen = history.outlook(series, history.bounds(history.starts(series)))
    worse, better = (min(1.0, max(x, seen.noise)) for x in (base.LEAST_WORSE, base.LEAST_BETTER))
    expected = base.Expected(
        median=seen.expected, unit=base.unit(launches[0], name), worse_by=worse, better_by=better
    )
    judged = _judged(launches, name, expected, seen.value)
    if seen.began is not None and judged.verdict in ("regressed", "improved"):
        since = [*runs, launches[0].run_id][seen.began]
        return replace(judged, message=message("gate_step", since=since, **judged.message.args))
    if judged.verdict == "regressed" and len(values) < INTERVAL_MIN_LAUNCHES:
        reason = message("gate_alone", **judged.message.args)
        return replace(judged, verdict="noisy", message=reason)
    change = judged.message.args.get("change")
    if judged.verdict == "passed" and isinstance(change, float) and change < -MOST_CV:
        return replace(judged, verdict="noisy", message=message("gate_wide", **judged.message.args))
    return judged


def _judged(
    launches: Sequence[Record], name: str, expected: Expected, level: float | None = None
) -> Judgement:
    """Judge a figure by its limits, then by the interval of its change.

    Args:
        level: stands for the values of the launches.
    """
    values, about = base.values(launches, name, expected.unit), launches[0].plan.about
    if len(values) < len(launches):
        reason = message("gate_missing", figure=name, unit=expected.unit)
        return Judgement(base.title(launches[0]), name, "missing", reason)
    spec = specs(about.page).get(name)
    higher = about.higher_is_better if name == base.QUALITY else spec and spec.better == "higher"
    sign = 1 if higher else -1  # what has no better direction, power for instance, should not rise
    now, sides = level or median(values), ([level] if level else values, expected.launches)
    low, high = sorted(sign * (end - 1) for end in _interval(*sides, expected.median))
    args = dict(expected) | {"figure": name, "value": now, "launches": len(values)}
    args |= {"change": sign * (now / expected.median - 1) + 0.0, "low": low, "high": high}
    least, most = expected.at_least, expected.at_most
    beyond = "too_low" if least is not None and now < least else ""
    beyond = "too_high" if most is not None and now > most else beyond
    verdict: Verdict = (
        "regressed" if beyond or high < -expected.worse_by
        else "improved" if low > expected.better_by
        else "noisy" if low < -expected.worse_by
        else "passed"
    )  # fmt: skip
    reason = message(f"gate_{beyond or verdict}", **args)
    doubts = {found.code for one in launches for found in one.trust.reasons}
    if verdict == "regressed" and doubts & _DISTURBED:
        verdict, reason = "noisy", message("gate_disturbed", **args)
    fails = verdict == "improved" and expected.fail_if_better
    return Judgement(base.title(launches[0]), name, verdict, reason, fails)


def _interval(values: Sequence[float], known: Sequence[float], middle: float) -> list[float]:
    """Return the 95% interval of the ratio; of fewer than five launches the range to ``middle``."""
    if min(len(values), len(known)) < INTERVAL_MIN_LAUNCHES:
        return [min(values) / middle, max(values) / middle]
    before, now = (Group(np.log(side), None) for side in (known, values))
    found = ratio(before, now, paired=False, rng=np.random.default_rng(0))
    return [found.value if end is None else end for end in (found.low, found.high)]
