"""Up to six runs side by side: what differs, then figures, with intervals over the first.

A run stands there with all its launches. Ratios are those of ``comparison``, which refuses runs
of other work.
"""

from __future__ import annotations

from statistics import geometric_mean
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from trainmark.judge.comparison import compare
from trainmark.judge.comparison.sides import surroundings
from trainmark.pages import cells
from trainmark.pages.charts import intervals as charts
from trainmark.pages.document import Paragraph, Section, table
from trainmark.pages.phrases import heads
from trainmark.pages.texts import join, t, worded
from trainmark.record.figures import FIGURES
from trainmark.record.work import differing, work

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from trainmark.judge.comparison import ComparedFigure, Comparison
    from trainmark.pages.document import Block
    from trainmark.record.record import Record

LETTERS = ascii_uppercase
_FIGURES = (
    "p_train", "p_core", "p_whole", "token/p/s", "MFU", "step_time_p50", "e2e_time", "mem", "power",
    "energy_per_sample",
)  # fmt: skip


def sections(
    sides: Sequence[Sequence[Record]], *, allow: Collection[str] = ()
) -> tuple[list[Section], list[str]]:
    """Return the sections of a comparison of sides, each one or more launches of a run.

    Args:
        allow: keys of the work in which sides may differ.

    Returns:
        The sections, and the keys that would have to be allowed besides to compare all.
    """
    first = [launches[0] for launches in sides]
    recipes = [{**record.plan.recipe} for record in first]
    works = [work(record) for record in first]
    rest = [{k: v for k, v in one.items() if k not in recipes[0]} for one in works]
    facts = {"environment": surroundings(first), "recipe": recipes, "work": rest}
    told = [_differences(name, of) for name, of in facts.items()]
    refused = [sorted({*differing(works[0], one)} - {*allow}) for one in works]
    blocks = (*_refusals(refused), *_figures(sides, refused, allow))
    keys = sorted({key for some in refused for key in some})
    return [*told, Section(t("site.figures"), "figures", blocks)], keys


def _differences(name: str, facts: Sequence[Mapping[str, Any]]) -> Section:
    """Return in what the sides differ, as far as all that tell it go."""
    rows = []
    for key in dict.fromkeys(key for told in facts for key in told):
        values = [told.get(key) for told in facts]
        if len({repr(value) for value in values if value is not None}) > 1:
            rows.append((key, *(None if x is None else worded(x) for x in values)))
    none = Paragraph(t("site.no_difference"), "muted")
    block: Block = table((t("compare.fact"), *LETTERS[: len(facts)]), rows) if rows else none
    return Section(t(f"differ.{name}"), f"differ-{name}", (block,))


def _refusals(refused: Sequence[Sequence[str]]) -> Iterator[Block]:
    """Yield which sides are not compared, once for the same reason."""
    for keys in dict.fromkeys(tuple(some) for some in refused if some):
        who = [letter for letter, some in zip(LETTERS, refused, strict=False) if (*some,) == keys]
        yield Paragraph(t("site.refused", side=join(who), keys=", ".join(keys)), "warn")


def _figures(
    sides: Sequence[Sequence[Record]],
    refused: Sequence[Sequence[str]],
    allow: Collection[str],
) -> Iterator[Block]:
    """Yield what was left out, the figures of all sides, and their ratios to the first."""
    letters = LETTERS[: len(sides)]
    ratios: dict[str, list[ComparedFigure | None]] = {name: [] for name in _FIGURES}
    for letter, launches, keys in list(zip(letters, sides, refused, strict=True))[1:]:
        found = None if keys else _compared(sides[0], launches, allow)
        for one in found.b.left_out if found else ():
            said = t("compare.left_out", side=letter, run=one.name, reason=one.reason)
            yield Paragraph(said, "warn")
        known = {one.name: one for one in found.figures} if found else {}
        for name, of in ratios.items():
            of.append(known.get(name))
    rows = []
    for name in _FIGURES:
        values = [_mean(launches, name) for launches in sides]
        if any(value is not None for value in values):
            shown, unit = cells.scaled(values, FIGURES[name].unit)
            rows.append((name, unit, *shown))
    yield table((*heads("name", "unit"), *letters), rows)
    told = {name: of for name, of in ratios.items() if any(one and one.ratio for one in of)}
    if told:
        yield charts.ratios(told, letters)
        if any(one and one.descriptive for of in told.values() for one in of):
            yield Paragraph(t("repeats.descriptive"), "warn")


def _mean(launches: Sequence[Record], name: str) -> float | None:
    """Return the geometric mean over the launches that passed, as comparisons have it."""
    told = [value for one in launches if one.passed and (value := one.figure(name)) and value > 0]
    return geometric_mean(told) if told else None


def _compared(
    base: Sequence[Record], launches: Sequence[Record], allow: Collection[str]
) -> Comparison:
    both = (base, launches)
    names = [name for name in _FIGURES if all(_mean(side, name) is not None for side in both)]
    there = work(base[0]).keys() | work(launches[0]).keys()
    return compare(base, launches, figures=names or None, allow=[x for x in allow if x in there])
