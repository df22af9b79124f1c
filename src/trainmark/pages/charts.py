"""Charts of a run over its steps: loss, step time, quality and values that a case reports.

``chart_specs`` has what they look like.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.events.series import compute_bucket_size, thin_values
from trainmark.pages import cells, chart_specs
from trainmark.pages.document import Block, Chart, Columns, Table, build_table
from trainmark.pages.texts import Phrase, phrase, translate_headings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from trainmark.pages.chart_specs import Spec
    from trainmark.record.record import Record
    from trainmark.spec import Shown

# Beyond this ratio between greatest and least a linear axis shows one spike and a flat line.
_LOG_RATIO = 20
TABLE_ROWS = 12
_MIN_STEPS_TO_SMOOTH = 40  # the loss of fewer steps is drawn without smoothing
# A smoothed value is the mean over a window of this share of all steps, but of at least so many.
_SMOOTHING_WINDOW_SHARE = 0.02
_MIN_SMOOTHING_WINDOW = 5


def chart_curves(record: Record) -> Block | None:
    """Return the charts of loss and step time side by side.

    A chart of fewer than two known values is left out; None if both are.
    """
    charts = tuple(chart for chart in (chart_loss(record), chart_step_time(record)) if chart)
    return Columns(charts) if charts else None


def chart_step_time(record: Record) -> Chart | None:
    """Return the step time in ms, the warm-up shaded; None for fewer than two known times."""
    values = _read_step_times_ms(record)
    title = phrase("chart.step_time")
    scale: Spec = {"zero": False}  # linear; the axis need not contain zero
    # If one time is far above the others, a linear axis would show one spike and a flat line.
    # ``initial`` is for a run without steps.
    if np.nanmax(values, initial=0) > _LOG_RATIO * np.nanmin(values, initial=math.inf):
        title = phrase("chart.log", title=title)
        scale = {"type": "log", "nice": False}
    # ``warmup`` is the number of steps at the start that are the warm-up.
    num_warmup_steps = min(record.steps.warmup, len(values))
    shades = []
    if num_warmup_steps:
        title = phrase("chart.with_warmup", title=title)
        # Up to the middle between the last step of the warm-up and the next, if there is one.
        shades.append({"step": 1, "to": min(num_warmup_steps + 0.5, len(values))})
    spec = chart_specs.draw_step_time(scale=scale, has_warmup=bool(num_warmup_steps))
    return _chart_curve(
        "step_time",
        title,
        values,
        spec,
        other_datasets={"warmup": shades},
        warmup=num_warmup_steps,  # for the placeholder of this name in the chart's description
    )


def _read_step_times_ms(record: Record) -> NDArray[np.float64]:
    """Return the time of each step in ms.

    A time of 0, which a logarithmic axis cannot show, is NaN, so that the line has a gap there.
    """
    values = np.asarray(record.steps.time_ns, np.float64) / 1e6
    values[values <= 0] = np.nan
    return values


def chart_loss(record: Record) -> Chart | None:
    """Return the chart of the loss of each step; None for fewer than two steps with a finite loss.

    The loss of a run with many steps is also drawn as a moving mean.
    """
    values = np.asarray(record.steps.loss, np.float64)  # makes NaN of a loss that is None
    title = phrase("chart.loss")
    other_datasets: dict[str, list[dict[str, Any]]] = {}
    window = _choose_smoothing_window(len(values))  # a number of steps; 0: no smoothing
    if window:
        title = phrase("chart.loss_smoothed", n=window)
        other_datasets["smoothed"] = _build_rows(
            _compute_moving_mean(values, window), range(1, len(values) + 1)
        )
    spec = chart_specs.draw_loss(is_smoothed=bool(window))
    return _chart_curve("loss", title, values, spec, other_datasets=other_datasets)


def _choose_smoothing_window(num_steps: int) -> int:
    """Return over how many steps a smoothed value is averaged, an odd number; 0: no smoothing.

    Args:
        num_steps: of the run.
    """
    if num_steps < _MIN_STEPS_TO_SMOOTH:
        return 0
    window = max(_MIN_SMOOTHING_WINDOW, int(num_steps * _SMOOTHING_WINDOW_SHARE))
    return window if window % 2 == 1 else window + 1  # odd, so that it has a step in its middle


def _compute_moving_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the mean of the finite values in a window around each value; NaN if there is none.

    Args:
        values: (N,).
        window: an odd number of values; at the ends the window is cut off.
    """
    is_finite = np.isfinite(values)
    sums = _sum_in_windows(np.where(is_finite, values, 0.0), window)
    counts = _sum_in_windows(is_finite.astype(np.float64), window)
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan)


def _sum_in_windows(terms: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the sum of the window around each term; beyond the ends, the terms are 0.

    The terms are cut into blocks as long as the window. A window that is no block lies in two: its
    sum is that of the end of one block and the start of the next. So the time does not depend on
    the length of the window. A difference of two running sums over all terms would be simpler, but
    one huge term would swallow all that come after it.

    Args:
        terms: (N,).
        window: an odd number of terms.
    """
    half = window // 2
    num_blocks = math.ceil((len(terms) + 2 * half) / window)
    padded = np.zeros(num_blocks * window)
    padded[half : half + len(terms)] = terms
    blocks = padded.reshape(num_blocks, window)
    sums_from_block_start = np.cumsum(blocks, axis=1).ravel()  # up to each term
    sums_to_block_end = np.cumsum(blocks[:, ::-1], axis=1)[:, ::-1].ravel()  # from each term
    first = np.arange(len(terms))  # of each window, by its index in ``padded``
    last = first + window - 1
    is_block = first % window == 0
    sums_in_next_block = np.where(is_block, 0.0, sums_from_block_start[last])
    sums: NDArray[np.float64] = sums_to_block_end[first] + sums_in_next_block
    return sums


def chart_case_curve(rows: Sequence[Mapping[str, Any]], shown: Shown) -> Chart | None:
    """Return the chart of one value that a case's own training code reported at some of its steps.

    None for fewer than two finite values.

    Args:
        rows: one for each step at which values were reported: the number of the step under the key
            ``step``, and each value under a key of its own.
        shown: which value to draw. ``shown.value`` is its key in a row, and ``shown.name`` is the
            title of the chart.
    """
    values = np.asarray([row[shown.value] for row in rows], np.float64)
    steps = [row["step"] for row in rows]
    spec = chart_specs.draw_loss(is_smoothed=False)  # a plain line, which fits any value
    # ``_chart_curve`` describes all charts whose names begin with ``trend_`` by one text, because
    # this value has none of its own.
    return _chart_curve(f"trend_{shown.value}", shown.name, values, spec, steps, other_datasets={})


def chart_quality(record: Record) -> Chart | None:
    """Return the chart of the quality that each evaluation measured, with a line at the target.

    None for fewer than two evaluations that have a quality.
    """
    target = record.quality.target
    evaluations = [
        evaluation for evaluation in record.quality.history if evaluation.value is not None
    ]
    values = np.asarray([evaluation.value for evaluation in evaluations], np.float64)
    # The label stands at the line, and in the text that describes the chart.
    target_label = phrase("chart.quality.no_target")
    target_rows: list[dict[str, Any]] = []
    if target is not None:
        target_label = phrase("chart.quality.target", target=f"{target:g}")
        target_rows = [{"value": target, "label": target_label}]
    return _chart_curve(
        "quality",
        phrase("chart.quality", metric=record.quality.metric),
        values,
        chart_specs.draw_quality(),
        [evaluation.step for evaluation in evaluations],
        other_datasets={"target": target_rows},
        target=target_label,
    )


def _chart_curve(
    name: str,
    title: Phrase,
    values: NDArray[np.float64],
    spec: Spec,
    steps: Sequence[int] = (),
    *,
    other_datasets: dict[str, list[dict[str, Any]]],
    **description_values: Any,
) -> Chart | None:
    """Return the chart of a value over the steps, with a table of it.

    Of very many steps, the chart shows only the extremes of neighbouring ones. None for fewer than
    two finite values.

    Args:
        name: of the chart; the text ``described.<name>`` is its description.
        title: of the chart.
        values: one for each step, ``(N,)``; NaN: the step has none.
        spec: what Vega-Lite draws. It reads the values from the dataset ``steps``.
        steps: numbers of the steps, in the order of the values; empty: 1, 2, 3 and so on.
        other_datasets: rows of each further dataset that ``spec`` reads, by its name.
        description_values: for placeholders that only this chart's description has.
    """
    finite_values = values[np.isfinite(values)]
    if len(finite_values) < 2:
        return None
    step_numbers = steps or range(1, len(values) + 1)
    description = phrase(
        # ``trend_…`` names the chart of a value that a case defines; all those share one text.
        "described.trend" if name.startswith("trend_") else f"described.{name}",
        n=cells.format_integer(len(values)),
        first=f"{finite_values[0]:.4g}",
        last=f"{finite_values[-1]:.4g}",
        **description_values,
    )
    # Of so many neighbouring steps, the chart shows the smallest and the largest value.
    bucket_size = compute_bucket_size(len(values))
    note: Phrase = ""
    if bucket_size > 1:
        note = phrase("chart.note", stretch=cells.format_integer(bucket_size))
    datasets = {"steps": _build_rows(values, step_numbers)} | other_datasets
    table = _summarize_stretches(values, step_numbers)
    return Chart(name, title, description, spec, datasets, table, note)


def _build_rows(values: NDArray[np.float64], steps: Sequence[int]) -> list[dict[str, Any]]:
    """Return the rows of a chart's dataset: each has a ``step`` and its ``value``.

    Of very many values, only the smallest and the largest of neighbouring ones have a row. A value
    is rounded to six significant digits; None replaces one that is not finite.

    Args:
        values: one for each step, ``(N,)``.
        steps: numbers of the steps, in the order of the values.
    """
    rows = []
    for index, value in thin_values(values):  # the kept values, each with its index in ``values``
        rounded = float(f"{value:.6g}") if math.isfinite(value) else None
        rows.append({"step": steps[index], "value": rounded})
    return rows


def _summarize_stretches(values: NDArray[np.float64], steps: Sequence[int]) -> Table:
    """Return a table of the least, median and greatest value in each stretch of neighbouring steps.

    The steps are cut into stretches of about the same length, at most ``TABLE_ROWS`` of them. The
    values of a stretch without a finite value are shown as not known.

    Args:
        values: one for each step, ``(N,)``; NaN: the step has none.
        steps: numbers of the steps, in the order of the values.
    """
    rows = []
    all_indices = np.arange(len(values))
    for indices in np.array_split(all_indices, min(TABLE_ROWS, len(values))):
        first = cells.format_integer(steps[indices[0]])
        last = cells.format_integer(steps[indices[-1]])
        finite_values = values[indices][np.isfinite(values[indices])]
        percentiles: list[float | None] = [None, None, None]
        if len(finite_values):
            percentiles = np.percentile(finite_values, (0, 50, 100)).tolist()
        stretch = first if first == last else f"{first} – {last}"
        rows.append((stretch, *(cells.format_rate(value) for value in percentiles)))
    return build_table(translate_headings("chart.step", "least", "median", "greatest"), rows)
