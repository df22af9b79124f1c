"""Charts: exact places and tables; every chart is drawn in both languages."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.comparison_records import make_series
from support.document_texts import list_charts, read_datasets, translate_headers, translate_rows
from support.fakes import GOLDEN
from support.telemetry_files import (
    GIB,
    make_busy_device,
    make_devices_line,
    make_end_line,
    make_host_line,
    make_ranks_with_devices,
    make_start_line,
    write_sampled_run,
)
from trainmark.pages import charts, rendering
from trainmark.pages.comparison_charts import chart_overlays
from trainmark.pages.document import Chart, Table
from trainmark.pages.pictures import to_svg
from trainmark.pages.sections import figures
from trainmark.pages.telemetry_charts import chart_over_time
from trainmark.pages.texts import Missing, phrase, translate
from trainmark.record import reduce
from trainmark.record.record import Record
from trainmark.spec import message

if TYPE_CHECKING:
    from pathlib import Path

TIMES_S = (0.0, 4.0, 8.0, 9.0, 12.0)


def read_golden_record(**changes: Any) -> Record:
    """Return the golden record of distilbert with changed fields of its steps.

    Args:
        changes: such as ``loss`` or ``time_ns``, lists with a value for each step, or ``warmup``,
            the number of the first steps that do not count.
    """
    golden_record = Record.model_validate_json((GOLDEN / "record_distilbert.json").read_bytes())
    return golden_record.model_copy(
        update={"steps": golden_record.steps.model_copy(update=changes)}
    )


def check_pictures(chart: Chart | None) -> Chart:
    """Return the chart. Its pictures in both languages must be XML without NaN or infinity."""
    assert chart is not None
    for lang in ("en", "zh"):
        picture = rendering.draw_static_picture(chart, lang)
        ET.fromstring(picture)
        assert not re.search("NaN|undefined|Infinity", picture)
    return chart


def read_first_layer(chart: Chart | None) -> Any:
    """Return the data rows of the first layer of a chart, which is drawn below all others.

    It is a shade or the line of a target, if the chart has one.
    """
    assert chart is not None
    name = rendering.build_script_chart(chart, "en")["layer"][0]["data"]["name"]
    return read_datasets(chart)[name]


def test_the_table_behind_a_chart_covers_every_step() -> None:
    # 24 steps in 12 rows; a time of 0 is no time and is left out.
    # Each row has 2 steps: 1 and 5 ms have the median 3; of 0 and 2 ms only the 2 counts.
    # ``translate_rows`` returns the cells of the chart's table in English.
    nanoseconds = [int(1e6 * ms) for ms in (1.0, 5.0, 0.0, 2.0, *[3.0] * 20)]
    chart = charts.chart_step_time(read_golden_record(time_ns=nanoseconds))
    assert chart is not None
    assert chart.table is not None
    assert translate_headers(chart.table) == ["step", "min", "median", "max"]
    assert len(chart.table.rows) == 12
    assert translate_rows(chart.table)[:2] == [
        ("1 – 2", "1.000", "3.000", "5.000"),
        ("3 – 4", "2.000", "2.000", "2.000"),
    ]
    gap = charts.chart_loss(read_golden_record(loss=[1.0, None, 0.5]))
    assert gap is not None
    assert gap.table is not None
    assert translate_rows(gap.table)[1] == ("2", "–", "–", "–")  # the step without a loss


def test_loss_chart_names_first_and_last_loss() -> None:
    # ``check_pictures`` checks that the chart can be drawn, and returns it. The losses of the first
    # and the last step are those of the golden record; ``read_datasets`` returns the drawn points.
    chart = check_pictures(charts.chart_loss(read_golden_record()))
    # The golden record has 60 steps.
    description = translate(chart.description, "en")
    assert description == "Training loss over 60 steps, from 0.7815 to 0.1447"
    assert read_datasets(chart)["steps"][0] == {"step": 1, "value": 0.7815}
    assert charts.chart_loss(read_golden_record(loss=[None, None])) is None
    # A step without a finite loss is a gap in the line.
    gap = charts.chart_loss(read_golden_record(loss=[1.0, 0.9, None, 0.7, 0.6]))
    assert [row["value"] for row in read_datasets(gap)["steps"]] == [1.0, 0.9, None, 0.7, 0.6]


def test_the_axis_of_a_loss_that_diverged_has_short_numbers() -> None:
    # The fields of the golden record's steps are replaced: a loss per step, None where it is not
    # finite. The labels are all texts of the picture; 7.6e33 is rounded to 8e+33.
    chart = check_pictures(charts.chart_loss(read_golden_record(loss=[0.7, 2.0, 7.6e33, None])))
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", rendering.draw_static_picture(chart, "en"))
    assert "8e+33" in labels
    assert max(map(len, labels)) <= 12  # in full, 8e+33 would have 34 digits
    # An ordinary axis keeps whole numbers.
    linear = check_pictures(
        # Steps of 400 to 1000 ms, whose axis is in ms.
        charts.chart_step_time(
            read_golden_record(time_ns=[int(ms * 1e6) for ms in range(400, 1001, 10)])
        )
    )
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", rendering.draw_static_picture(linear, "en"))
    assert {"500", "1000"} <= set(labels)


def test_a_long_loss_is_smoothed_by_a_moving_mean() -> None:
    # Steps 1, 2, 3, … have the losses 0, 1, 0, …, and step 4 has none.
    losses: list[float | None] = [float(step % 2) for step in range(40)]
    losses[3] = None
    chart = check_pictures(charts.chart_loss(read_golden_record(loss=losses)))
    # The window is 2% of the steps, but at least 5 of them.
    assert translate(chart.title, "en") == "Training loss; bold: moving average over 5 steps"
    smoothed = [row["value"] for row in read_datasets(chart)["smoothed"]]
    assert smoothed[0] == pytest.approx(1 / 3, abs=1e-6)  # of steps 1 to 3
    assert smoothed[3] == pytest.approx(2 / 4, abs=1e-6)  # of 2, 3, 5 and 6
    assert smoothed[10] == pytest.approx(2 / 5, abs=1e-6)  # of 9 to 13
    assert read_datasets(chart)["steps"][3] == {"step": 4, "value": None}
    # A huge loss counts only in the windows that contain it, here those of steps 9 to 13.
    losses[10] = 1e18
    spiked = check_pictures(charts.chart_loss(read_golden_record(loss=losses)))
    spiked_means = [row["value"] for row in read_datasets(spiked)["smoothed"]]
    changed_steps = [step for step in range(1, 41) if spiked_means[step - 1] != smoothed[step - 1]]
    assert changed_steps == [9, 10, 11, 12, 13]
    # Fewer than 40 steps are drawn as they are.
    short = charts.chart_loss(read_golden_record(loss=losses[:39]))
    assert short is not None
    assert list(read_datasets(short)) == ["steps"]


def test_curves_of_several_runs_share_one_chart() -> None:
    # The sides of a comparison, A and B, share a chart for each of loss, step time and quality. The
    # legend names the devices of each side, here always those of the golden record.
    record = read_golden_record()
    overlays = {
        overlay.name: overlay
        for overlay in chart_overlays({"A": [record], "B": [read_golden_record(loss=[])]})
    }
    # B has no loss, so no overlay of it.
    assert list(overlays) == ["sides-step_time", "sides-quality"]
    overlays = {overlay.name: overlay for overlay in chart_overlays({"A": [record], "B": [record]})}
    loss = check_pictures(overlays["sides-loss"])
    labels = {row["side"] for row in read_datasets(loss)["steps"]}
    assert labels == {"A · 2 x NVIDIA A100-SXM4-40GB", "B · 2 x NVIDIA A100-SXM4-40GB"}
    # Of nine sides seven are drawn, as there are so many colours.
    many = {str(index): [record] for index in range(9)}
    (first, *_) = chart_overlays(many, {side: f"run {side}" for side in many})
    assert {row["side"] for row in read_datasets(first)["steps"]} == {
        f"{number} · run {number}" for number in range(7)
    }


def test_a_picture_is_drawn_once_for_both_languages() -> None:
    chart = charts.chart_loss(read_golden_record(loss=[3.0, 2.0, 1.5]))
    assert chart is not None
    rendering._draw_svg.cache_clear()  # drawn pictures are kept; another test may have drawn this
    pictures = {lang: rendering.draw_static_picture(chart, lang) for lang in ("en", "zh")}
    # Texts of the other language are put into the drawn picture.
    assert rendering._draw_svg.cache_info().misses == 1
    assert ">step</text>" in pictures["en"]
    assert ">步数</text>" in pictures["zh"]
    assert pictures["zh"].replace("步数", "step") == pictures["en"]
    # The width of a legend's first word decides where the second one stands, so a legend cannot be
    # translated in the drawn picture.
    verdicts = phrase("compare.faster"), phrase("compare.slower")
    spec = chart.spec | {"encoding": {"color": {"scale": {"domain": list(verdicts)}}}}
    assert rendering._find_standalone_labels(spec, "zh") is None  # draw the chart anew


def test_very_many_steps_and_evaluations_are_thinned() -> None:
    # Random losses and step times of 100,000 steps, and 6,000 copies of an evaluation; a chart
    # draws at most 1000 points of a curve, and ``read_datasets`` returns those that are drawn.
    rng = np.random.default_rng(1)
    record = read_golden_record(
        loss=rng.random(100_000).tolist(),
        time_ns=rng.integers(1_000_000, 2_000_000, 100_000).tolist(),
    )
    point = record.quality.history[0]
    history = [point.model_copy(update={"step": step}) for step in range(1, 6_001)]
    long_quality = record.quality.model_copy(update={"history": history})
    record = record.model_copy(update={"quality": long_quality})
    assert len(read_datasets(charts.chart_step_time(record))["steps"]) <= 1000
    assert len(read_datasets(charts.chart_quality(record))["steps"]) <= 1000
    curve = charts.chart_loss(record)
    assert curve is not None
    assert all(len(rows) <= 1000 for rows in read_datasets(curve).values())  # raw and smoothed
    # 100,000 steps in 500 groups, of each the lowest and the highest loss.
    assert "For every 200 steps" in translate(curve.note, "en")


def test_quality_chart_shows_its_target() -> None:
    # The golden record evaluates its accuracy three times: 0.8796, 0.9037 and 0.9117; its target is
    # 0.91. ``check_pictures`` checks that the chart can be drawn, and returns it.
    chart = check_pictures(charts.chart_quality(read_golden_record()))
    # The first layer is the line of the target, if there is one.
    assert read_first_layer(chart) == [{"value": 0.91, "label": "target 0.91"}]
    assert translate(chart.description, "en") == "3 evaluations, from 0.8796 to 0.9117; target 0.91"
    bare = read_golden_record().quality.model_copy(update={"target": None})
    assert (
        read_first_layer(
            charts.chart_quality(read_golden_record().model_copy(update={"quality": bare}))
        )
        == []
    )


def test_the_warm_up_is_shaded() -> None:
    # The golden record has a warm-up of 10 steps (``steps.warmup``).
    chart = check_pictures(charts.chart_step_time(read_golden_record()))
    # From the first step to between the tenth, the last of the warm-up, and the next one.
    assert read_first_layer(chart) == [{"step": 1, "to": 10.5}]
    assert translate(chart.title, "en") == "Step time (ms); shaded: warm-up"
    # The first layer is the shade, if there is a warm-up.
    chart_without_warmup = charts.chart_step_time(read_golden_record(warmup=0))
    assert chart_without_warmup is not None
    assert len(chart_without_warmup.spec["layer"]) == 1
    assert charts.chart_step_time(read_golden_record(time_ns=[0, 0])) is None
    # A step more than 20 times as long as the others needs a logarithmic axis.
    spiked = check_pictures(
        charts.chart_step_time(read_golden_record(time_ns=[10] * 8 + [10 * 21]))
    )
    assert translate(spiked.title, "zh") == "步耗时（ms），对数坐标；阴影部分为预热"


def test_labels_of_a_logarithmic_axis_do_not_overlap() -> None:
    # 3 and 30 have no label: they would be too close to 2 and 20. Letters are 14 px high.
    chart = charts.chart_step_time(read_golden_record(time_ns=[1_000_000] * 8 + [200_000_000]))
    assert chart is not None
    labels = re.findall(
        # Of a label at the left: its height and its text; those left out have an opacity of 0.
        r'<text text-anchor="end"[^>]*translate\(-\d+,([\d.]+)\)[^>]*opacity="1">(\d+)<',
        to_svg(chart, "en"),
    )
    assert [text for _, text in labels] == ["1", "2", "4", "10", "20", "40", "100", "200"]
    heights = [float(height) for height, _ in labels]  # from the bottom up
    assert min(lower - upper for lower, upper in pairwise(heights)) > 14


def read_sampled_record(tmp_path: Path, world: int = 2) -> Record:
    """Return the record of a run with readings of ``world`` devices, hot at 9 s, and the host."""
    # ``TIMES_S`` = 0, 4, 8, 9 and 12 s. The helpers make lines of the file of readings: its start,
    # a reading of the devices, one of the host, and its end.
    lines = [make_start_line(*range(world))]
    for t_s in TIMES_S:
        hot = {"throttle_reasons": ["thermal"]} if t_s == 9.0 else {}
        samples = [
            make_busy_device(t_s, number, temperature_c=40.0 + number + t_s, **hot)
            for number in range(world)
        ]
        lines += [
            make_devices_line(t_s, *samples),
            make_host_line(t_s, utilization_percent=25.0, memory_used_bytes=8 * GIB),
        ]
    folder = write_sampled_run(
        tmp_path / "run", [*lines, make_end_line()], ranks=make_ranks_with_devices(world)
    )
    return reduce.reduce(folder)


def test_each_quantity_has_a_chart_in_its_order(tmp_path: Path) -> None:
    charts_by_name = list_charts(chart_over_time(read_sampled_record(tmp_path)))
    assert list(charts_by_name) == [
        "time-device-memory",
        "time-device-busy",
        "time-device-power",
        "time-device-temperature",
        "time-host-memory",
        "time-host-busy",
    ]
    memory, heat = (
        check_pictures(charts_by_name["time-device-memory"]),
        check_pictures(charts_by_name["time-device-temperature"]),
    )
    # Points of a line: the time in seconds, the memory in GiB, and the rank of the device. Rank 0's
    # device is read at ``TIMES_S`` and uses 10 GiB once training has begun at 6 s.
    assert read_datasets(memory)["lines"][2:4] == [
        {"s": 8.0, "v": 10.0, "of": "0"},
        {"s": 9.0, "v": 10.0, "of": "0"},
    ]
    # The time of the steps that count, from 8 s to 9.625 s in this run, is shaded.
    assert read_datasets(memory)["measured"] == [{"from": 8.0, "to": 9.625}]
    # A device has 40 °C, plus its number, plus the seconds since the start, up to 12.
    sentence = (
        "Temperature, 2 devices: 40.0 to 53.0 °C; the highest value was read on rank 1 at 12 s."
    )
    assert translate(heat.description, "en") == sentence
    (tmp_path / "many").mkdir()
    # Of many devices there are three lines: lowest, median and highest.
    many = list_charts(chart_over_time(read_sampled_record(tmp_path / "many", world=10)))
    sentence = (
        "Temperature, 10 devices: 40.0 to 61.0 °C; the highest value was read on rank 9 at 12 s."
    )
    assert translate(check_pictures(many["time-device-temperature"]).description, "en") == sentence
    host_load = check_pictures(many["time-host-busy"])
    assert "the highest value was read on node 0 at " in translate(host_load.description, "en")


def test_ranks_are_listed_from_the_slowest() -> None:
    # The golden record of two A100 as a launch called "r1", which here gets three ranks with these
    # step times and matmul rates.
    record = make_series("r", [100.0])[0]
    ranks = []
    for rank, (step_ns, matmul_rate) in enumerate([(100, 4e12), (100, 2e12), (120, 4e12)]):
        changes = {"rank": rank, "step_ns": step_ns, "matmul_flops_per_second": matmul_rate}
        ranks.append(record.ranks[0].model_copy(update=changes))
    table = figures.build_ranks(record.model_copy(update={"ranks": ranks}))
    assert table is not None
    (rank_table,) = table.blocks
    assert isinstance(rank_table, Table)
    # By the time of a step; equal ones by their number.
    assert [row[0] for row in translate_rows(rank_table)] == ["2", "0", "1"]
    # Data wait per step (350 ms in 50 steps) and the rate in TFLOP/s of rank 1.
    assert translate_rows(rank_table)[2][3:5] == ("7", "2")


def test_missing_value_of_a_rank_has_a_reason() -> None:
    # One launch "r1" at 100 samples/s, in all else the golden record of two A100. The power is an
    # entry like ``p_core``, but without a value and with this reason.
    record = make_series("r", [100.0])[0]
    ranks = [record.ranks[0].model_copy(update={"rank": rank, "step_ns": 100}) for rank in range(2)]
    reason = message("devices_unmonitored")
    power = record.figures["p_core"].model_copy(update={"value": None, "reason": reason})
    # Two ranks, and the figure of the power without a value, as nothing can read these devices.
    changes = {"ranks": ranks, "figures": record.figures | {"power": power}}
    table = figures.build_ranks(record.model_copy(update=changes))
    assert table is not None
    (rank_table,) = table.blocks
    assert isinstance(rank_table, Table)
    column = [translate(head, "en") for head in rank_table.headers].index("power W")
    cell = rank_table.rows[0][column]
    assert isinstance(cell, Missing)
    assert translate(cell, "en") == "–"
    assert (
        translate(cell.reason, "en")
        == "no library or tool on this machine can take readings from these devices"
    )


def test_picture_uses_colours_of_the_page() -> None:
    # The picture of the loss of the golden record, as SVG that stands inside of a page.
    inner = rendering.draw_static_picture(
        check_pictures(charts.chart_loss(read_golden_record())), "en"
    )
    # Variables of the page's style sheet, which is light or dark; no colour is fixed in the
    # picture.
    assert set(re.findall(r'(?:fill|stroke)="([^"]+)"', inner)) <= {
        "none",
        "transparent",
        "var(--accent)",
        "var(--rule)",
        "var(--soft)",
    }
    assert " id=" not in inner  # ids of several pictures on a page would collide
    assert "style=" not in inner


def test_script_is_complete_and_safe_inside_html() -> None:
    script = rendering.build_chart_script()
    # What draws the charts of a page, our ``charts.js``, is in it beside the libraries.
    assert "figure.chart" in script
    assert "</script" not in script  # it would end the element early
    assert len(script.encode()) < 1_000_000  # a limit of our own, as each page contains it


def test_title_is_never_evaluated_and_has_no_control_character() -> None:
    chart = charts.chart_loss(read_golden_record())
    assert chart is not None
    # Vega makes the label of a point, "title: value", from titles by an expression, which the first
    # title tries to end. The only point has the value 7.
    for hostile_title in ('\\" + datum.x + "', "a\nb\u202e"):
        spec = {
            "mark": {"type": "bar", "aria": True},  # with labels, which charts leave out by default
            "data": {"name": "x"},
            "encoding": {"x": {"field": "x", "type": "quantitative", "title": hostile_title}},
        }
        hostile = replace(chart, spec=spec, data={"x": [{"x": 7}]})
        labels = [
            x.get("aria-label", "")
            for x in ET.fromstring(rendering.draw_static_picture(hostile, "en")).iter()
        ]
        title = rendering.build_script_chart(hostile, "en")["encoding"]["x"]["title"]
        assert [label for label in labels if label.endswith(": 7")] == [f"{title}: 7"]
        assert title.isprintable()
        assert "\\" not in title
