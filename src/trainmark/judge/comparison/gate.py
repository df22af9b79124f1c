"""Judge runs against a baseline or against their own history, figure by figure.

Owns the verdicts, the rule of each and its exit code; the form of a baseline file, its default
tolerances, and how runs are taken into it. docs/compare.md states them and describes each key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Gt, Le
from pydantic import BeforeValidator, Field

from trainmark.data import documents
from trainmark.data.documents import Frozen
from trainmark.errors import (
    EXIT_FAILED,
    EXIT_NOISY,
    EXIT_PASSED,
    EXIT_USAGE,
    RecordError,
    UsageError,
    nearest,
)
from trainmark.judge.comparison import history
from trainmark.judge.comparison.sides import environment
from trainmark.plan.overrides import fix_hp_text
from trainmark.recipe import NonNegativeFloat
from trainmark.record.figures import specs
from trainmark.record.shapes import Number  # noqa: TC001 - pydantic reads it
from trainmark.record.stats import INTERVAL_MIN_LAUNCHES, over_launches, ratio
from trainmark.record.trust import refuted
from trainmark.record.work import differing, each_once, groups, work
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    from trainmark.record.record import Record

Verdict = Literal[
    "passed", "improved", "regressed", "failed", "missing", "other_work", "noisy", "no_history"
]
_EXITS = {"passed": EXIT_PASSED, "improved": EXIT_PASSED, "noisy": EXIT_NOISY,
          "no_history": EXIT_NOISY, "other_work": EXIT_USAGE}  # fmt: skip
_WORST_FIRST = (EXIT_FAILED, EXIT_USAGE, EXIT_NOISY, EXIT_PASSED)
# By what is not the program that is measured.
_DISTURBED = {"machine_busy", "device_shared"}
QUALITY = "quality"  # what the case measures, whatever it is called there
FIGURES = ("final_result", "p_train", "e2e_time", "mem")
LEAST_WORSE, LEAST_BETTER = 0.03, 0.1
_DEVIATIONS = 3.0  # of launches from each other, that are no regression
_Tolerance = Annotated[NonNegativeFloat, Le(1.0)]


class Expected(Frozen):
    """The values of a figure of a piece of work, one a launch, and how far a run may be off."""

    unit: str
    launches: list[Annotated[Number, Gt(0)]] = Field(min_length=1)
    worse_by: _Tolerance = LEAST_WORSE
    better_by: _Tolerance = LEAST_BETTER


class Entry(Frozen):
    """A piece of work, by the names and values of ``record.work``, and what is expected of it."""

    name: str
    taken: date
    environment: dict[str, str]
    work: dict[str, str]
    figures: dict[str, Expected] = Field(min_length=1)


class Baseline(Frozen):
    """A whole file; of entries of the same work the first counts."""

    schema_version: Annotated[Literal[1], BeforeValidator(int)] = 1
    entries: list[Entry] = Field(min_length=1)

    def of(self, key: Mapping[str, str]) -> Entry | None:
        """Return the entry of a piece of work."""
        return next((entry for entry in self.entries if entry.work == key), None)


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


def _told(record: Record, name: str) -> tuple[float, str]:
    """Return a figure, or the quality, with its unit; 0 where it is not told or not above zero."""
    found = record.figures.get(name)
    value, unit = (found.value, found.unit) if found else (None, "")
    if name == QUALITY:
        value, unit = record.quality.value, record.quality.metric
    return max(value or 0.0, 0.0), unit


def _values(launches: Sequence[Record], name: str, unit: str | None = None) -> list[float]:
    """Return a figure of the launches that tell it, in ``unit`` where one is asked for."""
    told = [_told(one, name) for one in launches]
    return [value for value, of in told if value and unit in (None, of)]


def _work(record: Record) -> dict[str, str]:
    """Return what is the same work, as one line of text each, as a file has it."""
    return {
        name: item if isinstance(item, str) else json.dumps(item)
        for name, item in work(record).items()
    }


def _title(record: Record) -> str:
    """Return a name of a record's work for people."""
    changed = fix_hp_text(record.fix_hp | record.extra)
    return f"{record.case_key} {record.plan.recipe_name} {changed}".rstrip(" /")


def take(records: Sequence[Record], names: Sequence[str], old: Baseline | None = None) -> Baseline:
    """Return the baseline that ``records`` make, in place of the same figures of ``old``.

    Args:
        names: figures to take; none: those an entry has, for other work ``FIGURES``.

    Raises:
        RecordError: a record that did not pass, or that its evidence contradicts.
        UsageError: no record, a run given twice, or a figure that a record lacks.
    """
    if not records:
        raise UsageError("no run there", remedy="name runs that passed")
    each_once(record.run_id for record in records)
    for record in records:
        if refuted(record.trust) or not record.passed:
            rule = "a baseline is of runs that passed and agree with their evidence"
            raise RecordError(f"status {record.status}", where=record.run_id, rule=rule)
    entries = {json.dumps(entry.work): entry for entry in old.entries} if old else {}
    for launches in groups(records):
        newest = max(launches, key=lambda record: record.started)
        key = _work(newest)
        entry = entries.get(json.dumps(key))
        figures = dict(entry.figures) if entry else {}
        for name in names or figures or FIGURES:
            figures[name] = _expected(launches, name, figures.get(name))
        entries[json.dumps(key)] = Entry(
            name=entry.name if entry else _title(newest), work=key, figures=figures,
            taken=date.fromisoformat(newest.started[:10]), environment=environment(newest),
        )  # fmt: skip
    return Baseline(entries=list(entries.values()))


def tolerance(cv: float | None, launches: int) -> float:
    """Return the share by which a later launch may be worse than the mean of ``launches``.

    Three coefficients of variation, more for few launches, which tell their scatter badly.
    """
    factor = _DEVIATIONS * (1 + 2 / max(1, launches - 1))
    return min(1.0, max(LEAST_WORSE, round(factor * (cv or 0.0), 3)))


def _expected(launches: Sequence[Record], name: str, known: Expected | None) -> Expected:
    """Return a figure over ``launches``, with the tolerances that a file has for it already."""
    found = _values(launches, name)
    if len(found) < len(launches):
        others = [other for other in (QUALITY, *launches[0].figures) if _values(launches, other)]
        what = f"no {name} above zero in each launch"
        raise UsageError(what, where=launches[0].run_id, remedy=nearest(name, others))
    new: dict[str, Any] = {"unit": _told(launches[0], name)[1], "launches": found}
    if known:
        return known.model_copy(update=new)
    worse = tolerance(over_launches(found).cv, len(found))
    return Expected(**new, worse_by=worse, better_by=min(1.0, max(LEAST_BETTER, 2 * worse)))


def dumps(baseline: Baseline) -> str:
    """Return the text of a baseline file."""
    import yaml

    document = baseline.model_dump(mode="json")
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100))


def read(path: Path) -> Baseline:
    """Read a baseline file.

    Raises:
        UsageError: no YAML of this form, or of another schema; it names line and nearest key.
    """
    remedy = "docs/compare.md has the keys; `trainmark gate RUN --write FILE` makes one"
    return documents.checked(Baseline, documents.read_yaml(path), path, remedy=remedy)


def against_baseline(records: Sequence[Record], baseline: Baseline) -> Iterator[Judgement]:
    """Yield a judgement for each figure that ``baseline`` has of the work of ``records``."""
    for launches in groups(records):
        name, key = _title(launches[0]), _work(launches[0])
        entry = baseline.of(key)
        if entry is None:
            near = min(baseline.entries, key=lambda one: len(differing(one.work, key)))
            first, *others = differing(near.work, key)
            sides = {"known": near.work.get(first), "found": key.get(first), "others": len(others)}
            reason = message("gate_other_work", key=first, entry=near.name, **sides)
            yield Judgement(name, "work", "other_work", reason)
            continue
        usable = yield from _usable(launches)
        here = environment(launches[0])
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
        names: figures to judge; none: those of ``FIGURES`` that are known.

    Raises:
        UsageError: one of ``names`` is no figure.
    """
    for launches in groups(records):
        possible = (QUALITY, *specs(launches[0].plan.about.page))
        for name in names:
            if name not in possible:
                remedy = nearest(name, possible)
                raise UsageError(f"no figure {name!r}", where="--figure", remedy=remedy)
        usable = yield from _usable(launches)
        begun, key = min(record.started for record in launches), work(launches[0])
        past = [one for one in earlier if one.passed and not refuted(one.trust)]
        past = [one for one in past if one.started < begun and work(one) == key]
        told = {name: _runs(past, name) for name in names or FIGURES}
        least, most = history.LEAST_RUNS, max(map(len, told.values()))
        if usable and most < least:
            reason = message("gate_no_history", runs=most, least=least)
            yield Judgement(_title(launches[0]), ", ".join(told), "no_history", reason)
        for name, runs in told.items() if usable else ():
            if len(runs) >= least:
                yield _by_history(usable, name, runs)


def _runs(past: Sequence[Record], name: str) -> dict[str, float]:
    """Return the mean of each of the last runs by its id, the oldest first."""
    runs: dict[str, list[float]] = {}
    for one in sorted(past, key=lambda one: one.started):
        run = one.run_id.removesuffix(f"-r{one.plan.repeat_index}")
        runs.setdefault(run, []).extend(_values([one], name))
    means = [(run, over_launches(found).mean) for run, found in runs.items() if found]
    return dict(means[-history.MOST_RUNS :])


def _usable(launches: Sequence[Record]) -> Generator[Judgement, None, list[Record]]:
    """Yield a failure for each launch that cannot be judged, and return the others."""
    good = [one for one in launches if one.passed and not refuted(one.trust)]
    for one in launches:
        if one not in good:
            code = "gate_refuted" if refuted(one.trust) else "gate_status"
            reason = message(code, run=one.run_id, status=one.status)
            yield Judgement(_title(one), "status", "failed", reason)
    return good


def _by_baseline(launches: Sequence[Record], name: str, expected: Expected) -> Judgement:
    """Judge by the interval of the change; of fewer than five launches by their range."""
    values, known = _values(launches, name, expected.unit), expected.launches
    if len(values) < len(launches):
        return _judged(launches, name, "missing", "missing", unit=expected.unit)
    middle = over_launches(known).mean
    now, *ends = ratio(known, values)
    if None in ends:
        ends = [min(values) / middle, max(values) / middle]
    sign = _sign(launches[0], name)
    low, high = sorted(sign * ((end or 0.0) - 1) for end in ends)
    verdict: Verdict = (
        "regressed" if high < -expected.worse_by
        else "improved" if low > expected.better_by
        else "noisy" if low < -expected.worse_by
        else "passed"
    )  # fmt: skip
    tolerances = {"worse_by": expected.worse_by, "better_by": expected.better_by}
    return _judged(launches, name, verdict, verdict, unit=expected.unit, expected=middle,
                   value=now * middle, change=sign * (now - 1) + 0.0, low=low, high=high,
                   **tolerances)  # fmt: skip


def _by_history(launches: Sequence[Record], name: str, runs: Mapping[str, float]) -> Judgement:
    """Judge one figure by the steps, the drift and the noise in the runs before, by their ids."""
    values, unit = _values(launches, name), _told(launches[0], name)[1]
    if not values:
        return _judged(launches, name, "missing", "missing", unit=unit)
    seen = history.outlook([*runs.values(), over_launches(values).mean])
    sign = _sign(launches[0], name)
    change, worse = sign * (seen.value / seen.expected - 1), max(LEAST_WORSE, seen.noise)
    args: dict[str, Any] = {"expected": seen.expected, "value": seen.value, "unit": unit,
                            "change": change + 0.0, "worse_by": worse}  # fmt: skip
    since = None if seen.began is None else [*runs, launches[0].run_id][seen.began]
    verdict: Verdict = "passed"
    if change > max(LEAST_BETTER, seen.noise):
        verdict = "improved"
    elif change < -worse:
        alone = since is None and len(values) < INTERVAL_MIN_LAUNCHES
        verdict = "noisy" if alone else "regressed"
    elif seen.drift and sign * seen.drift < 0:
        args |= {"change": sign * seen.drift, "runs": history.RAMP}
        return _judged(launches, name, "regressed", "drift", **args)
    code = "step" if since and verdict != "passed" else f"usual_{verdict}"
    return _judged(launches, name, verdict, code, since=since, **args)


def _sign(record: Record, name: str) -> int:
    """Return 1 where more is better; what has no direction, power for instance, should not rise."""
    about = record.plan.about
    spec = specs(about.page).get(name)
    higher = about.higher_is_better if name == QUALITY else spec and spec.better == "higher"
    return 1 if higher else -1


def _judged(
    launches: Sequence[Record], name: str, verdict: Verdict, code: str, **args: Any
) -> Judgement:
    doubts = {found.code for one in launches for found in one.trust.reasons}
    if verdict == "regressed" and doubts & _DISTURBED:
        verdict, code = "noisy", "disturbed"
    reason = message(f"gate_{code}", figure=name, launches=len(launches), **args)
    return Judgement(_title(launches[0]), name, verdict, reason)
