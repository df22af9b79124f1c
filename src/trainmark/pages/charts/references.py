"""A throughput beside chosen references: bars with intervals, a look for each kind of evidence.

A reference of other work is no bar: it is refused as ``compare`` refuses it, with the key.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmark.errors import UsageError
from trainmark.judge.comparison import compare
from trainmark.judge.comparison.sides import name_of
from trainmark.pages import cells
from trainmark.pages.charts import plotting
from trainmark.pages.document import Block, Chart, Paragraph, Section, Table
from trainmark.pages.listing import in_words
from trainmark.pages.tables import device_configuration, shortened_rows
from trainmark.pages.texts import text
from trainmark.record.record import Record, Steps
from trainmark.record.rows import Row
from trainmark.record.stats import over_launches
from trainmark.record.trust import refuted
from trainmark.record.work import differing, groups, printed_work, work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.judge.comparison.sides import Result

# Kinds of evidence: colour, shape, how much of the bar is filled, and dash of its outline.
LOOKS = {
    "measured": ("accent", "circle", 0.9, [1, 0]),
    "unproven": ("setup", "square", 0.35, [1, 0]),
    "A": ("work", "diamond", 0.12, [1, 0]),
    "B": ("eval", "triangle-up", 0.0, [1, 0]),
    "C": ("wait", "triangle-down", 0.0, [6, 3]),
    "unverified": ("rest", "cross", 0.0, [2, 3]),
}
# Launches of ours on other devices are what a reference is for; each bar names its device.
_ALLOWED = "device_products"
_FIGURES = ("p_core", "p_train", "p_whole", "token/p/s", "final_result", "e2e_time")
_NO_STEPS = Steps(warmup=0, time_ns=[], loss=[], samples=[], drift=None, steady=None)
_BAR_PX = 44
_MOST_BARS = 24
_LONGEST = 80  # characters of a printed configuration


@dataclass(frozen=True, slots=True)
class _Beside:
    """A reference, or this page's own launches: what it tells, or why it is no bar.

    Args:
        over: this page's figure over the reference's, with its interval, by figure.
        refused: a sentence; empty for a bar.
    """

    results: Sequence[Result]
    over: dict[str, tuple[float, float | None, float | None]]
    refused: str = ""

    @property
    def kind(self) -> str:
        """Return the kind of evidence that all its results have, or the weakest of them."""
        return max((kind(one) for one in self.results), key=[*LOOKS].index)


def kind(result: Result) -> str:
    """Return the kind of evidence: of a row its level, of a record whether its own is there."""
    if isinstance(result, Row):
        return result.evidence
    codes = (reason.code for reason in result.trust.reasons)
    return "unproven" if any(code.startswith("evidence_") for code in codes) else "measured"


def section(records: Sequence[Record], against: Sequence[Result], lang: str) -> Section | None:
    """Return the launches of one piece of work beside references; None without any of both.

    Args:
        records: launches of the same work, of which those that passed count.
        against: launches of ours, those of the same work together, and published rows.
    """
    own = [one for one in records if one.passed and not refuted(one.trust)]
    known = {one.run_id for one in records}
    others = [one for one in against if isinstance(one, Record) and one.run_id not in known]
    references: list[Sequence[Result]] = [
        *groups(others),
        *([row] for row in against if isinstance(row, Row)),
    ]
    if not own or not references:
        return None
    found = [_beside(own, one, lang) for one in references]
    told = Counter(name for one in found for name in one.over)
    blocks: list[Block] = []
    if told:
        figure = max(told, key=lambda name: (told[name], -_FIGURES.index(name)))
        shown = [one for one in found if figure in one.over]
        blocks.append(_chart(own, shown[:_MOST_BARS], figure, lang))
        blocks.append(Paragraph(text("against.note", lang), "muted"))
        if len(shown) > _MOST_BARS:
            left = cells.count(len(shown) - _MOST_BARS)
            blocks.append(Paragraph(text("against.more", lang, n=left), "muted"))
    for why, times in Counter(one.refused for one in found if one.refused).items():
        blocks.append(Paragraph(text("against.refused", lang, why=why, n=times), "muted"))
    return Section(text("against.heading", lang), 2, "against", tuple(blocks))


def _beside(own: Sequence[Record], reference: Sequence[Result], lang: str) -> _Beside:
    """Return a reference with the ratio to it, as far as the work is the same."""
    if unlike := _other_work(own[0], reference[0], lang):
        return _Beside(reference, {}, unlike)
    rows = isinstance(reference[0], Row)
    if rows:  # says nothing of its variation, so that single steps are of no use
        own = [one.model_copy(update={"steps": _NO_STEPS}) for one in own]
    try:
        found = compare(reference, own, figures=_FIGURES, allow=() if rows else (_ALLOWED,))
    except UsageError as error:
        return _Beside(reference, {}, error.what)
    over = {one.name: (one.ratio, one.low, one.high) for one in found.figures if one.ratio}
    if over:
        return _Beside([one for one in reference if name_of(one) in found.a.names], over)
    return _Beside(reference, {}, text("against.silent", lang))


def _other_work(own: Record, other: Result, lang: str) -> str:
    """Return the first key in which the work differs, with both values."""
    if isinstance(other, Record):
        ours, theirs = work(own), work(other)
        keys = [key for key in differing(ours, theirs) if key != _ALLOWED]
    else:
        ours, theirs = printed_work(own), printed_work(other)
        keys = [key for key in theirs if ours.get(key, theirs[key]) != theirs[key]]
    if not keys:
        return ""
    key = keys[0]
    values = (in_words(one.get(key), lang) for one in (ours, theirs))
    return text("against.differs", lang, name=key, values=" / ".join(values))


@dataclass(frozen=True, slots=True)
class _Bar:
    """A bar: the median over launches or the printed value; an interval of several launches."""

    label: str
    kind: str
    value: float
    low: float | None
    high: float | None
    launches: int
    over: tuple[float, float | None, float | None] | None
    places: str


def _bar(beside: _Beside, figure: str, label: str) -> _Bar:
    told = [(one, value) for one in beside.results if (value := one.figure(figure)) is not None]
    found = over_launches([value for _, value in told])
    low, high = (found.low, found.high) if found.launches > 1 else (None, None)
    places = ", ".join(name_of(one) for one, _ in told)
    over = beside.over.get(figure)
    return _Bar(label, beside.kind, found.median, low, high, found.launches, over, places)


def _chart(own: Sequence[Record], found: Sequence[_Beside], figure: str, lang: str) -> Chart:
    """Return this page's launches above references that tell ``figure``."""
    shown = [_Beside(own, {}), *found]
    bars = [
        _bar(one, figure, label) for one, label in zip(shown, _labels(shown, lang), strict=True)
    ]
    unit = own[0].figures[figure].unit
    said = [text("against.desc", lang, figure=figure, unit=unit, own=bars[0].label,
                 value=cells.number(bars[0].value))]  # fmt: skip
    said += [_sentence(bar, lang) for bar in bars[1:]]
    return Chart(
        name="against",
        title=text("against.title", lang, figure=figure, unit=unit),
        description=" ".join(said),
        draws=plotting.later(_spec, bars, f"{figure}, {unit}", lang),
        data={"bars": [_row(bar, lang) for bar in bars]},
        table=_table(bars, f"{figure}, {unit}", lang),
    )


def _labels(shown: Sequence[_Beside], lang: str) -> list[str]:
    """Return what each bar is called; those of one name are numbered."""
    names = [_configuration(one.results[0], lang) for one in shown]
    return [
        f"{name} [{names[: place + 1].count(name)}]" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def _configuration(result: Result, lang: str) -> str:
    if isinstance(result, Record):
        return device_configuration(result, lang=lang)
    named = result.configuration
    if result.device and result.device not in named:
        named = f"{result.device} {named}"
    return cells.clean(named)[:_LONGEST]


def _ratio(over: tuple[float, float | None, float | None] | None) -> str:
    if over is None:
        return ""
    value, low, high = over
    return f"{value:#.3g}" if low is None else f"{value:#.3g} ({low:#.3g}–{high:#.3g})"


def _sentence(bar: _Bar, lang: str) -> str:
    return text("against.one", lang, label=bar.label, kind=text(f"evidence.{bar.kind}", lang),
                value=cells.number(bar.value), ratio=_ratio(bar.over))  # fmt: skip


def _row(bar: _Bar, lang: str) -> dict[str, Any]:
    shown = f"{bar.label}:  {cells.number(bar.value)}" + (
        f"  ×{_ratio(bar.over)}" if bar.over else ""
    )
    return {
        "label": bar.label, "kind": text(f"evidence.{bar.kind}", lang), "value": bar.value,
        "low": bar.low, "high": bar.high, "shown": shown,
        "filled": LOOKS[bar.kind][2],
    }  # fmt: skip


def _spec(bars: Sequence[_Bar], axis: str, lang: str) -> dict[str, Any]:
    import altair as alt

    kinds = [name for name in LOOKS if any(bar.kind == name for bar in bars)]
    names = [text(f"evidence.{name}", lang) for name in kinds]
    title, legend = text("against.kind", lang), alt.Legend(direction="vertical", labelLimit=420)

    def by_kind(channel: Callable[..., Any], looks: list[Any]) -> Any:
        scale = alt.Scale(domain=names, range=looks)
        return channel("kind:N", scale=scale, title=title, legend=legend)

    colours = [f"var(--{LOOKS[name][0]})" for name in kinds]
    fill = by_kind(alt.Fill, colours)
    farthest = max(bar.high or bar.value for bar in bars)
    x = alt.X("value:Q", title=axis, axis=alt.Axis(format="~s"),
              scale=alt.Scale(domain=[0, farthest * 1.05], nice=False))  # fmt: skip
    # Names stand above the bars: beside them they would leave no room on a telephone.
    y = alt.Y("label:N", axis=None, sort=[bar.label for bar in bars])
    base = alt.Chart(alt.NamedData("bars")).encode(y=y)
    told = [alt.Tooltip("label:N"), alt.Tooltip("kind:N", title=title), alt.Tooltip("shown:N")]
    bar = base.mark_bar(size=14, strokeWidth=1.5).encode(
        x=x,
        fill=fill,
        stroke=by_kind(alt.Stroke, colours),
        strokeDash=by_kind(alt.StrokeDash, [LOOKS[name][3] for name in kinds]),
        fillOpacity=alt.FillOpacity("filled:Q", scale=None, legend=None),
        tooltip=told,
    )
    ends = base.transform_filter("datum.low != null")
    point = base.mark_point(filled=True, size=90, opacity=1, strokeWidth=0).encode(
        x=x,
        fill=fill,
        shape=by_kind(alt.Shape, [LOOKS[name][1] for name in kinds]),
    )
    return plotting.layered(
        bar,
        ends.mark_rule(color="var(--ink)", strokeWidth=2).encode(
            x=alt.X("low:Q"), x2=alt.X2("high")
        ),
        *(
            ends.mark_tick(color="var(--ink)", size=9).encode(x=alt.X(f"{end}:Q"))
            for end in ("low", "high")
        ),
        point,
        base.mark_text(align="left", x=0, dx=1, dy=-17).encode(text=alt.Text("shown:N")),
        height=_BAR_PX * len(bars),
    )


def _table(bars: Sequence[_Bar], axis: str, lang: str) -> Table:
    rows = tuple(
        (
            bar.label,
            text(f"evidence.{bar.kind}", lang),
            cells.number(bar.value),
            cells.NOTHING
            if bar.low is None
            else f"{cells.number(bar.low)} – {cells.number(bar.high)}",
            str(bar.launches),
            _ratio(bar.over) or cells.NOTHING,
            cells.clean(bar.places),
        )
        for bar in bars
    )
    heads = (
        text("against.of", lang), text("against.kind", lang), axis, text("head.interval", lang),
        text("head.launches", lang), text("against.over", lang), text("against.place", lang),
    )  # fmt: skip
    return Table(heads, shortened_rows(rows, lang))
