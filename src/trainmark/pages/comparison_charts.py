"""Charts that compare sides, each of which is launches of the same work.

``chart_specs`` has what they look like.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.pages import chart_specs
from trainmark.pages.charts import chart_loss, chart_quality, chart_step_time
from trainmark.pages.document import Chart, build_table
from trainmark.pages.texts import Phrase, describe_devices, join, phrase, translate_headings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.judge.comparison import Comparison
    from trainmark.pages.chart_specs import Spec
    from trainmark.record.record import Record

# Beyond this quotient of the greatest and the least ratio, their axis is logarithmic.
_LOG_RATIO_OF_SIDES = 3
# Colours of verdicts, as names of the page's style; all others are "rest".
_VERDICT_COLOURS = {"faster": "good", "better": "good", "slower": "bad", "worse": "bad"}
MAX_SIDES = 7  # lines of one chart, for each of which there is a colour


def chart_ratios(sides: Mapping[str, Comparison]) -> Chart | None:
    """Return the chart of the ratio of each side's figures to those of side A.

    A figure is a measured quantity, such as throughput, of a side and of A; its ratio is the side's
    value divided by A's. The colour shows the verdict. None if no figure has a ratio.

    Args:
        sides: the comparison of each side with side A, by the side's letter, such as ``B``.
    """
    rows: list[dict[str, Any]] = []
    verdict_names: dict[str, Phrase] = {}
    for letter, comparison in sides.items():
        for figure in comparison.figures:
            # Also of a figure without a ratio, which has no point: the legend has all verdicts.
            verdict_names[figure.verdict] = phrase(f"compare.{figure.verdict}")
            if figure.ratio is None:
                continue
            rows.append(
                {
                    "name": f"{letter} {figure.name}",
                    "ratio": figure.ratio,
                    # Ends of the ratio's interval; None: too few launches for an interval.
                    "low": figure.low,
                    "high": figure.high,
                    "verdict": verdict_names[figure.verdict],  # by which the chart colours the row
                }
            )
    if not rows:
        return None
    ratios = [row["ratio"] for row in rows]
    title = phrase("compare.ratios")
    scale: Spec = {"zero": False}
    # A wide range of ratios needs a logarithmic axis. 1 belongs to the range, because the axis also
    # shows a line at 1, where both sides are equal.
    if max(*ratios, 1) >= _LOG_RATIO_OF_SIDES * min(*ratios, 1):
        title = phrase("chart.log", title=title)
        scale = {"type": "log", "base": 2}
    description = phrase(
        "compare.ratios_seen",
        n=len(rows),
        lowest=f"{min(ratios):.3f}",
        highest=f"{max(ratios):.3f}",
    )
    # "rest" is the colour of verdicts that are neither good nor bad.
    colours = [f"var(--{_VERDICT_COLOURS.get(verdict, 'rest')})" for verdict in verdict_names]
    spec = chart_specs.draw_ratios(
        scale=scale, verdicts=list(verdict_names.values()), colours=colours
    )
    table_rows: list[list[Phrase]] = []
    for row in rows:
        numbers = [row["ratio"], row["low"], row["high"]]
        texts = [None if number is None else f"{number:.3f}" for number in numbers]
        table_rows.append([row["name"], *texts, row["verdict"]])
    columns = translate_headings("name", "compare.ratio", "least", "greatest", "compare.verdict")
    table = build_table(columns, table_rows)
    return Chart("ratios", title, description, spec, {"ratios": rows}, table)


def chart_overlays(
    sides: Mapping[str, Sequence[Record]],
    legend_names: Mapping[str, Phrase] | None = None,
    *,
    prefix: str = "sides",
) -> list[Chart]:
    """Return a chart of losses, one of step times and one of qualities, with a curve of each side.

    A side is one or more launches of the same work, which are compared with other launches. All
    sides have the same case, and so the same metric of quality. A chart is left out if fewer than
    two sides have a curve for it.

    Args:
        sides: the launches of each side, by the side's short name, such as ``A`` or ``[1]``. The
            curve of a side is that of its first launch that has one.
        legend_names: what the legend writes after each short name, by short name; None: the
            devices of the side's first launch.
        prefix: the names of the charts are ``<prefix>-loss``, ``<prefix>-step_time`` and
            ``<prefix>-quality``.
    """
    first_record = next(iter(sides.values()))[0]
    titles: dict[str, Phrase] = {
        "loss": phrase("compare.loss"),
        "step_time": phrase("compare.step_time"),
        "quality": phrase("compare.quality", metric=first_record.quality.metric),
    }
    # Each function charts one launch; it returns None if the launch has too few values for a curve.
    chart_functions = {"loss": chart_loss, "step_time": chart_step_time, "quality": chart_quality}
    labels: dict[str, Phrase] = {}
    for side, records in sides.items():
        name = legend_names[side] if legend_names else describe_devices(records[0])
        labels[side] = (f"{side} · ", name)
    overlays = []
    for quantity, title in titles.items():
        curves: dict[str, Chart] = {}
        for side, records in list(sides.items())[:MAX_SIDES]:  # there are no colours for more
            charts = (chart_functions[quantity](record) for record in records)
            first_chart = next((chart for chart in charts if chart is not None), None)
            if first_chart is not None:
                curves[side] = first_chart
        if len(curves) > 1:
            overlays.append(_chart_overlay(f"{prefix}-{quantity}", title, curves, labels))
    return overlays


def _chart_overlay(
    name: str, title: Phrase, curves: Mapping[str, Chart], labels: Mapping[str, Phrase]
) -> Chart:
    """Return one chart with the curves of several sides; its table has the rows of all of them.

    Args:
        name: of the new chart, unique in its page.
        title: of the new chart.
        curves: the chart of each side alone, by the side's short name, such as ``A``.
        labels: of the sides in the legend, by the same short names.
    """
    points = []
    table_rows = []
    descriptions = []
    for side, chart in curves.items():
        # ``steps`` has a row for each step that is drawn. Only the chart of the loss of a run with
        # many steps has ``smoothed``, with the moving mean of the values.
        for point in chart.data.get("smoothed") or chart.data["steps"]:
            points.append(point | {"side": labels[side]})
        if chart.table:
            table_rows += [(side, *row) for row in chart.table.rows]
        descriptions.append(join((side, chart.description), "colon"))
    # After the side, the columns of each curve's own table, as `pages.charts` makes it.
    columns = translate_headings("compare.side", "chart.step", "least", "median", "greatest")
    return Chart(
        name,
        title,
        join(descriptions, "semicolon"),
        chart_specs.draw_sides(),
        {"steps": points},
        build_table(columns, table_rows),
    )
