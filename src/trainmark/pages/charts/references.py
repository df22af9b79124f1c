"""A throughput beside chosen references: bars with intervals, a look for each kind of evidence.

A reference of other work is no bar: it is refused as ``compare`` refuses it, with the key.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.errors import UsageError
from trainmark.judge.comparison import compare
from trainmark.judge.comparison.sides import name_of
from trainmark.pages import cells
from trainmark.pages.charts import vega
from trainmark.pages.document import Block, Chart, Paragraph, Section, table
from trainmark.pages.phrases import device_configuration, heads
from trainmark.pages.texts import Phrase, say, t
from trainmark.record.record import Record, Steps
from trainmark.record.rows import Row
from trainmark.record.stats import over_launches
from trainmark.record.trust import refuted
from trainmark.record.work import differing, groups, printed_work, work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.judge.comparison.sides import Result
    from trainmark.pages.charts.vega import Spec

# Kinds of evidence, the weakest last: colour and shape.
LOOKS = {
    "measured": ("accent", "circle"),
    "unproven": ("setup", "square"),
    "A": ("work", "diamond"),
    "B": ("eval", "triangle-up"),
    "C": ("wait", "triangle-down"),
    "unverified": ("rest", "cross"),
}
# Launches of ours on other devices are what a reference is for; each bar names its device.
_ALLOWED = "device_products"
_FIGURES = ("p_core", "p_train", "p_whole", "token/p/s", "final_result", "e2e_time")
_NO_STEPS = Steps(warmup=0, time_ns=[], loss=[], samples=[], drift=None, steady=None)
_MOST_BARS = 24
_LONGEST = 80  # characters of a printed configuration


@dataclass(frozen=True, slots=True)
class _Beside:
    """A reference, or this page's own launches; ``refused``: why it is no bar.

    Args:
        over: this page's figure over the reference's, with its interval, by figure.
    """

    results: Sequence[Result]
    over: dict[str, tuple[float, float | None, float | None]]
    refused: Phrase = None

    @property
    def kind(self) -> str:
        """Return the kind of evidence that all its results have, or the weakest of them."""
        kinds: list[str] = []
        for one in self.results:
            if isinstance(one, Row):
                kinds.append(one.evidence)
                continue
            codes = (reason.code for reason in one.trust.reasons)
            bare = any(code.startswith("evidence_") for code in codes)
            kinds.append("unproven" if bare else "measured")
        return max(kinds, key=[*LOOKS].index)


def section(records: Sequence[Record], against: Sequence[Result]) -> Section | None:
    """Return the launches of one piece of work beside references; None without any of both.

    Args:
        records: launches of the same work, of which those that passed count.
        against: launches of ours, those of the same work together, and published rows.
    """
    own = [one for one in records if one.passed and not refuted(one.trust)]
    known = {one.run_id for one in records}
    others = [one for one in against if isinstance(one, Record) and one.run_id not in known]
    rows: list[Sequence[Result]] = [[row] for row in against if isinstance(row, Row)]
    if not own or not (others or rows):
        return None
    every: list[Sequence[Result]] = [*groups(others), *rows]
    found = [_beside(own, one) for one in every]
    told = Counter(name for one in found for name in one.over)
    blocks: list[Block] = []
    if told:
        figure = max(told, key=lambda name: (told[name], -_FIGURES.index(name)))
        shown = [one for one in found if figure in one.over]
        blocks = [
            _chart([_Beside(own, {}), *shown[:_MOST_BARS]], figure),
            Paragraph(t("against.note"), "muted"),
        ]
        if len(shown) > _MOST_BARS:
            blocks.append(Paragraph(t("against.more", n=len(shown) - _MOST_BARS), "muted"))
    refused = {say(one.refused, "en"): one.refused for one in found if one.refused}
    times = Counter(say(one.refused, "en") for one in found)
    blocks += [
        Paragraph(t("against.refused", why=why, n=times[words]), "muted")
        for words, why in refused.items()
    ]
    return Section(t("against.heading"), "against", tuple(blocks))


def _beside(own: Sequence[Record], reference: Sequence[Result]) -> _Beside:
    """Return a reference with the ratio to it, as far as the work is the same."""
    other, rows = reference[0], isinstance(reference[0], Row)
    ours, theirs = (printed_work if rows else work)(own[0]), printed_work(other)
    keys = [key for key in theirs if ours.get(key, theirs[key]) != theirs[key]]
    if isinstance(other, Record):
        theirs = work(other)
        keys = [key for key in differing(ours, theirs) if key != _ALLOWED]
    if keys:
        values = (" / ".join(str(one.get(keys[0], "/")) for one in (ours, theirs)),)
        return _Beside(reference, {}, t("against.differs", name=keys[0], values=values))
    if rows:  # says nothing of its variation, so that single steps are of no use
        own = [one.model_copy(update={"steps": _NO_STEPS}) for one in own]
    try:
        found = compare(reference, own, figures=_FIGURES, allow=() if rows else (_ALLOWED,))
    except UsageError as error:
        return _Beside(reference, {}, error.what)
    over = {one.name: (one.ratio, one.low, one.high) for one in found.figures if one.ratio}
    if over:
        return _Beside([one for one in reference if name_of(one) in found.a.names], over)
    return _Beside(reference, {}, t("against.silent"))


def _chart(shown: Sequence[_Beside], figure: str) -> Chart:
    """Return this page's launches above references that tell ``figure``."""
    axis = f"{figure}, {shown[0].results[0].figures[figure].unit}"
    data: list[Spec] = []
    rows: list[tuple[Phrase, ...]] = []
    names = [_configuration(one.results[0]) for one in shown]
    same = Counter(say(name, "en") for name in names)
    for place, (one, name) in enumerate(zip(shown, names, strict=True), start=1):
        label = (name, f" [{place}]") if same[say(name, "en")] > 1 else name
        told = [(x, value) for x in one.results if (value := x.figure(figure)) is not None]
        found = over_launches([value for _, value in told])
        low, high = (found.low, found.high) if found.launches > 1 else (None, None)
        median, ratio, evidence = cells.number(found.median), _ratio(one.over.get(figure)), one.kind
        data.append({
            "label": label, "kind": t(f"evidence.{evidence}"), "value": found.median, "low": low,
            "high": high, "look": evidence,
            "shown": (label, f":  {median}", f"  ×{ratio}" if ratio else ""),
        })  # fmt: skip
        ends = None if low is None else f"{cells.number(low)} – {cells.number(high)}"
        places = ", ".join(name_of(x) for x, _ in told)
        rows.append((label, t(f"evidence.{evidence}"), median, ends, found.launches,
                     ratio or None, places))  # fmt: skip
    columns = [*heads("against.of", "against.kind"), axis,
               *heads("interval", "launches", "against.over", "against.place")]  # fmt: skip
    said = t("against.desc", label=data[0]["label"], value=rows[0][2], n=len(data) - 1)
    kinds = [name for name in LOOKS if any(bar["look"] == name for bar in data)]
    colours, shapes = zip(*(LOOKS[name] for name in kinds), strict=True)
    spec = vega.spec(
        "against", axis=axis, order=[bar["label"] for bar in data],
        kinds=[t(f"evidence.{x}") for x in kinds], colours=[f"var(--{x})" for x in colours],
        shapes=[*shapes], height=44 * len(data),
        end=1.05 * max(bar["high"] or bar["value"] for bar in data),
    )  # fmt: skip
    behind = table(columns, rows, short=True)
    return Chart("against", t("against.title", axis=axis), said, spec, {"bars": data}, behind)


def _configuration(result: Result) -> Phrase:
    if isinstance(result, Record):
        return device_configuration(result)
    named = result.configuration
    if result.device and result.device not in named:
        named = f"{result.device} {named}"
    return cells.clean(named)[:_LONGEST]


def _ratio(over: tuple[float, float | None, float | None] | None) -> str:
    if over is None:
        return ""
    value, low, high = over
    return f"{value:#.3g}" if low is None else f"{value:#.3g} ({low:#.3g}–{high:#.3g})"
