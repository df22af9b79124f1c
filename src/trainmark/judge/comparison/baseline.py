"""Baselines: for each piece of work the figures that later runs are held against, and how closely.

Owns the file's form, its default tolerances, and how runs are taken into it. A file has values
only; nothing in it is evaluated. docs/compare.md describes each key.
"""

from __future__ import annotations

import json
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Gt, Le
from pydantic import BeforeValidator, Field, PlainSerializer

from trainmark.data import documents
from trainmark.data.documents import Frozen
from trainmark.errors import RecordError, UsageError, nearest
from trainmark.plan.overrides import fix_hp_text
from trainmark.recipe import NonNegativeFloat
from trainmark.record.shapes import Number  # noqa: TC001 - pydantic reads it
from trainmark.record.stats import over_launches
from trainmark.record.trust import refuted
from trainmark.record.work import each_once, groups, work

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trainmark.record.record import Record

QUALITY = "quality"  # what the case measures, whatever it is called there
FIGURES = ("final_result", "p_train", "e2e_time", "mem")
LEAST_WORSE, LEAST_BETTER = 0.03, 0.1
_DEVIATIONS = 3.0  # of launches from each other, that are no regression


def _share(value: object) -> object:
    if isinstance(value, float):
        return value
    number, sign, rest = str(value).partition("%")
    if not sign or rest:
        raise ValueError("must be a percentage, as 3%")
    return float(number) / 100


Share = Annotated[NonNegativeFloat, Le(1.0)]
Tolerance = Annotated[Share, BeforeValidator(_share), PlainSerializer(lambda x: f"{100 * x:g}%")]


class Expected(Frozen):
    """The values of a figure of a piece of work, one a launch, and how far a run may be off."""

    unit: str
    launches: list[Annotated[Number, Gt(0)]] = Field(min_length=1)
    worse_by: Tolerance = LEAST_WORSE
    better_by: Tolerance = LEAST_BETTER


class Entry(Frozen):
    """A piece of work, by the names and values of ``results.work``, and what is expected of it."""

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


def unit(record: Record, name: str) -> str:
    """Return the unit of a figure, of the quality its name; empty where the record has no such."""
    found = record.figures.get(name)
    return record.quality.metric if name == QUALITY else found.unit if found else ""


def values(launches: Sequence[Record], name: str, unit_: str | None = None) -> list[float]:
    """Return a figure, or the quality, of the launches that tell it above zero and in ``unit_``."""
    told = [one for one in launches if unit_ in (None, unit(one, name))]
    found = (one.quality.value if name == QUALITY else one.figure(name) for one in told)
    return [value for value in found if value and value > 0]


def in_words(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as one line of text each, as a file has them."""
    return {
        name: item if isinstance(item, str) else json.dumps(item) for name, item in values.items()
    }


def environment(record: Record) -> dict[str, str]:
    """Return what a record tells of machine and software in a word each."""
    facts = {**record.environment, **record.environment.get("packages", {})}
    return {name: fact for name, fact in facts.items() if isinstance(fact, str)}


def title(record: Record) -> str:
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
        key = in_words(work(newest))
        entry = old.of(key) if old else None
        figures = dict(entry.figures) if entry else {}
        for name in names or figures or FIGURES:
            figures[name] = _expected(launches, name, figures.get(name))
        entries[json.dumps(entry.work if entry else key)] = Entry(
            name=entry.name if entry else title(newest), work=key, figures=figures,
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
    found = values(launches, name)
    if len(found) < len(launches):
        others = [other for other in (QUALITY, *launches[0].figures) if values(launches, other)]
        what = f"no {name} above zero in each launch"
        raise UsageError(what, where=launches[0].run_id, remedy=nearest(name, others))
    new: dict[str, Any] = {"unit": unit(launches[0], name), "launches": found}
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
