"""Judge runs against a baseline or against their own history, figure by figure.

Owns the verdicts, the rule of each and its exit code; docs/compare.md states them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trainmark.errors import EXIT_FAILED, EXIT_NOISY, EXIT_PASSED, EXIT_USAGE, UsageError, nearest
from trainmark.judge.comparison import baseline as base
from trainmark.judge.comparison import history
from trainmark.record.figures import specs
from trainmark.record.stats import INTERVAL_MIN_LAUNCHES, over_launches, ratio
from trainmark.record.trust import refuted
from trainmark.record.work import differing, groups, work
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from trainmark.judge.comparison.baseline import Baseline, Expected
    from trainmark.record.record import Record

Verdict = Literal[
    "passed", "improved", "regressed", "failed", "missing", "other_work", "noisy", "no_history"
]
_EXITS = {"passed": EXIT_PASSED, "improved": EXIT_PASSED, "noisy": EXIT_NOISY,
          "no_history": EXIT_NOISY, "other_work": EXIT_USAGE}  # fmt: skip
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

    @property
    def exit_code(self) -> int:
        """The exit code that this verdict alone leads to."""
        return _EXITS.get(self.verdict, EXIT_FAILED)


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
        usable = yield from _usable(launches)
        here = base.environment(launches[0])
        changed = [f"{key}: {entry.environment.get(key, '/')} -> {here.get(key, '/')}"
                   for key in differing(entry.environment, here)]  # fmt: skip
        if changed:
            reason = message("gate_environment", changed=", ".join(changed))
            yield Judgement(name, "environment", "passed", reason)
        for figure, expected in entry.figures.items() if usable else ():
            yield _by_baseline(usable, figure, expected)


def against_history(
    records: Sequence[Record], earlier: Sequence[Record], names: Sequence[str]
) -> Iterator[Judgement]:
    """Yield a judgement for each figure by the runs of the same work before ``records``.

    The launches of one run count as their mean; where no figure has enough runs, one judgement
    says so.

    Args:
        names: figures to judge; none: those of ``baseline.FIGURES`` that are known.

    Raises:
        UsageError: one of ``names`` is no figure.
    """
    for launches in groups(records):
        usable = yield from _usable(launches)
        begun, key = min(record.started for record in launches), work(launches[0])
        past = [one for one in earlier if one.passed and not refuted(one.trust)]
        past = [one for one in past if one.started < begun and work(one) == key]
        known = [name for name in base.FIGURES if base.values([*past, *usable], name)]
        possible = (base.QUALITY, *specs(launches[0].plan.about.page))
        for name in names:
            if name not in possible:
                remedy = nearest(name, possible)
                raise UsageError(f"no figure {name!r}", where="--figure", remedy=remedy)
        told = {name: _runs(past, name) for name in names or known}
        least, most = history.LEAST_RUNS, max((len(runs) for runs in told.values()), default=0)
        if usable and most < least:
            reason = message("gate_no_history", runs=most, least=least)
            yield Judgement(base.title(launches[0]), ", ".join(told), "no_history", reason)
            continue
        for name, runs in told.items() if usable else ():
            if len(runs) >= least:
                yield _by_history(usable, name, runs)


def _runs(past: Sequence[Record], name: str) -> dict[str, float]:
    """Return the mean of each of the last runs by its id, the oldest first."""
    runs: dict[str, list[float]] = {}
    for one in sorted(past, key=lambda one: one.started):
        run = one.run_id.removesuffix(f"-r{one.plan.repeat_index}")
        runs.setdefault(run, []).extend(base.values([one], name))
    means = [(run, over_launches(found).mean) for run, found in runs.items() if found]
    return dict(means[-history.MOST_RUNS :])


def _usable(launches: Sequence[Record]) -> Generator[Judgement, None, list[Record]]:
    """Yield a failure for each launch that cannot be judged, and return the others."""
    bad = [one for one in launches if not one.passed or refuted(one.trust)]
    for one in bad:
        code = "gate_refuted" if refuted(one.trust) else "gate_status"
        reason = message(code, run=one.run_id, status=one.status)
        yield Judgement(base.title(one), "status", "failed", reason)
    return [one for one in launches if one not in bad]


def _by_baseline(launches: Sequence[Record], name: str, expected: Expected) -> Judgement:
    """Judge by the interval of the change; of fewer than five launches by their range."""
    values, known = base.values(launches, name, expected.unit), expected.launches
    if len(values) < len(launches):
        return _missing(launches, name, expected.unit)
    middle = over_launches(known).mean
    now, low, high = ratio(known, values)
    ends = (min(values) / middle, max(values) / middle) if low is None or high is None else (
        low, high)  # fmt: skip
    sign = _sign(launches[0], name)
    low, high = sorted(sign * (end - 1) for end in ends)
    verdict: Verdict = (
        "regressed" if high < -expected.worse_by
        else "improved" if low > expected.better_by
        else "noisy" if low < -expected.worse_by
        else "passed"
    )  # fmt: skip
    args = {"worse_by": expected.worse_by, "better_by": expected.better_by, "low": low,
            "high": high, "unit": expected.unit, "expected": middle}  # fmt: skip
    return _judged(launches, name, verdict, verdict, value=now * middle,
                   change=sign * (now - 1) + 0.0, **args)  # fmt: skip


def _by_history(launches: Sequence[Record], name: str, runs: Mapping[str, float]) -> Judgement:
    """Judge one figure by the steps, the drift and the noise in the runs before, by their ids."""
    values, unit = base.values(launches, name), base.unit(launches[0], name)
    if not values:
        return _missing(launches, name, unit)
    seen = history.outlook([*runs.values(), over_launches(values).mean])
    sign = _sign(launches[0], name)
    change, worse = sign * (seen.value / seen.expected - 1), max(base.LEAST_WORSE, seen.noise)
    args: dict[str, Any] = {"expected": seen.expected, "value": seen.value, "unit": unit,
                            "change": change + 0.0, "worse_by": worse}  # fmt: skip
    since = None if seen.began is None else [*runs, launches[0].run_id][seen.began]
    verdict: Verdict = "passed"
    if change > max(base.LEAST_BETTER, seen.noise):
        verdict = "improved"
    elif change < -worse:
        alone = since is None and len(values) < INTERVAL_MIN_LAUNCHES
        verdict = "noisy" if alone else "regressed"
    elif seen.drift and sign * seen.drift < 0:
        args |= {"change": sign * seen.drift, "runs": history.RAMP}
        return _judged(launches, name, "regressed", "drift", **args)
    code = "step" if since and verdict != "passed" else f"usual_{verdict}"
    return _judged(launches, name, verdict, code, since=since, **args)


def _missing(launches: Sequence[Record], name: str, unit: str) -> Judgement:
    reason = message("gate_missing", figure=name, unit=unit)
    return Judgement(base.title(launches[0]), name, "missing", reason)


def _sign(record: Record, name: str) -> int:
    """Return 1 where more is better; what has no direction, power for instance, should not rise."""
    about = record.plan.about
    spec = specs(about.page).get(name)
    higher = about.higher_is_better if name == base.QUALITY else spec and spec.better == "higher"
    return 1 if higher else -1


def _judged(
    launches: Sequence[Record], name: str, verdict: Verdict, code: str, **args: Any
) -> Judgement:
    doubts = {found.code for one in launches for found in one.trust.reasons}
    if verdict == "regressed" and doubts & _DISTURBED:
        verdict, code = "noisy", "disturbed"
    reason = message(f"gate_{code}", figure=name, launches=len(launches), **args)
    return Judgement(base.title(launches[0]), name, verdict, reason)
