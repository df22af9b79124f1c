"""Charts: thinned out without losing a spike, exact places, tables; specifications as golden files.

``UPDATE_GOLDEN=1 pytest tests/pages/test_charts.py`` writes the golden file anew.
"""

import json
import math
import os
import sys

import numpy as np
import pytest

from fakes import GOLDEN
from trainmark.pages import charts, page
from trainmark.pages.charts import launches, loss, plotting, quality, spans, step_time, throughput
from trainmark.pages.document import Chart
from trainmark.record.record import Record
from trainmark.record.series import RunSeries
from trainmark.record.thinning import thin

S = 1_000_000_000


def record(**steps):
    text = (GOLDEN / "record_distilbert.json").read_text(encoding="utf-8")
    made = Record.model_validate_json(text)
    return made.model_copy(update={"steps": made.steps.model_copy(update=steps)}) if steps else made


def of_spans(**changes):
    made = record()
    return made.model_copy(update={"spans": made.spans.model_copy(update=changes)})


def launch(run_id, p_train, **changes):
    made = record()
    figures = {"p_train": made.figures["p_train"].model_copy(update={"value": p_train})}
    return made.model_copy(update={"run_id": run_id, "figures": figures, **changes})


def all_charts(lang, made=None):
    sections = charts.of_record(made or record(), lang)
    return [block for section in sections for block in section.blocks if isinstance(block, Chart)]


def test_specifications_are_golden_and_the_same_again():
    repeated = [launch("a", 90.0), launch("b", 100.0), launch("c", 120.0)]
    made = [
        {chart.name: [chart.description, chart.spec, chart.data] for chart in found}
        for found in [[*all_charts("en"), launches.chart(repeated, "en")] for _ in range(2)]
    ]
    assert made[0] == made[1]
    path = GOLDEN / "charts.json"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(json.dumps(made[0], indent=1) + "\n", encoding="utf-8")
    assert made[0] == json.loads(path.read_text(encoding="utf-8"))


def test_vega_lite_accepts_every_specification():
    import altair as alt

    for chart in [*all_charts("en"), launches.chart([launch("a", 9.0), launch("b", 8.0)], "zh")]:
        alt.Chart.from_dict(chart.spec, validate=True)


def test_the_charts_stand_in_order_and_differ_in_name():
    names = [chart.name for chart in all_charts("zh")]
    assert names == ["throughput", "spans", "step-time", "loss", "quality"]
    several = [one.of_several("run2-", " [2]") for one in charts.of_record(record(), "en")]
    assert [(one.anchor, one.heading) for one in several] == [
        ("run2-spans", "Where the time went [2]"), ("run2-steps", "Step by step [2]"),
    ]  # fmt: skip
    assert several[1].blocks[0].name == "run2-step-time"


def test_few_points_are_kept_as_they_are():
    assert thin(np.array([1.0, 3.0, 2.0])) == [(0, 1.0), (1, 3.0), (2, 2.0)]


def test_each_bucket_keeps_its_least_and_greatest_in_order():
    values = np.array([5.0, 1.0, 2.0, 9.0, 4.0, 4.0, 4.0, 4.0])
    assert thin(values, max_points=4) == [(1, 1.0), (3, 9.0), (4, 4.0)]


def test_a_gap_stays_a_gap():
    values = np.array([1.0, 2.0, math.nan, math.inf, math.nan, math.nan, 3.0, 4.0])
    found = thin(values, max_points=8 // 2)
    assert found[:2] == [(0, 1.0), (1, 2.0)]
    assert thin(np.full(10, math.nan), max_points=4)[0][0] == 0
    chart = loss.chart(record(loss=[1.0, 0.9, None, 0.7, 0.6]), "en")
    assert [row["value"] for row in chart.data["steps"]] == [1.0, 0.9, None, 0.7, 0.6]


def test_no_spike_of_a_million_steps_is_lost():
    values = np.ones(1_000_000)
    values[123_456], values[765_432] = 50.0, 0.01
    found = thin(values)
    assert len(found) <= 1000
    assert (123_456, 50.0) in found
    assert (765_432, 0.01) in found


def test_stretches_of_a_table_cover_every_step():
    table = plotting.stretches(np.array([1.0, 5.0, math.nan, 2.0] + [3.0] * 20), "ms", "en")
    assert table.headers == ("step", "least, ms", "median, ms", "greatest, ms")
    assert len(table.rows) == 12
    assert table.rows[0] == ("1 – 2", "1.000", "3.000", "5.000")
    assert table.rows[1] == ("3 – 4", "2.000", "2.000", "2.000")
    assert plotting.stretches(np.array([math.nan]), "", "en").rows == (("1", "/", "/", "/"),)


def test_the_loss_names_its_ends_and_marks_evaluations():
    chart = loss.chart(record(), "en")
    assert chart.description == (
        "Loss of 60 steps, from 0.7815 to 0.1447; dashed lines are evaluations"
    )
    assert [row["step"] for row in chart.data["evaluations"]] == [20, 40, 60]
    assert chart.data["steps"][0] == {"step": 1, "value": 0.7815}
    assert chart.table.rows[0] == ("1 – 5", "0.6672", "0.7163", "0.7815")


def test_many_evaluations_do_not_flood_the_charts():
    made = record(loss=[0.5] * 6_000)
    point = made.quality.history[0]
    history = [point.model_copy(update={"step": step}) for step in range(1, 6_001)]
    found = made.quality.model_copy(update={"history": history})
    made = made.model_copy(update={"quality": found})
    shown = [row["step"] for row in loss.chart(made, "en").data["evaluations"]]
    assert len(shown) == 200
    assert (shown[0], shown[-1]) == (1, 6_000)
    drawn = quality.chart(made, "en")
    assert len(drawn.data["steps"]) == 400
    assert len(drawn.table.rows) == 12


def test_quality_stands_against_its_target():
    chart = quality.chart(record(), "en")
    assert chart.data["target"] == [{"value": 0.91, "label": "target 0.91"}]
    assert chart.description == "3 evaluations, from 0.8796 to 0.9117; target 0.91"
    assert chart.table.rows[-1] == ("60", "0.9117")
    bare = record().quality.model_copy(update={"target": None})
    found = quality.chart(record().model_copy(update={"quality": bare}), "en")
    assert found.data["target"] == []
    assert found.description.endswith("no target")


def test_the_warm_up_and_lowered_clocks_are_shaded():
    chart = step_time.chart(record(), "en", throttled=[(30, 35), (60, 60)])
    assert chart.data["shaded"] == [
        {"kind": "warm-up", "step": 1, "to": 10.5},
        {"kind": "clocks lowered", "step": 29.5, "to": 35.5},
        {"kind": "clocks lowered", "step": 59.5, "to": 60},
    ]
    assert chart.description == (
        "Time of 60 steps; the first 10 are the warm-up and are shaded; "
        "2 stretches with lowered clocks are shaded"
    )
    assert step_time.chart(record(warmup=0), "en").data["shaded"] == []


def test_steps_under_lowered_clocks_are_those_of_the_record():
    lowered = record().model_copy(update={"series": RunSeries(lowered=[(30, 35)])})
    found = {chart.name: chart for chart in all_charts("en", lowered)}
    assert [row["kind"] for row in found["step-time"].data["shaded"]] == [
        "warm-up", "clocks lowered",
    ]  # fmt: skip


def test_a_logarithmic_axis_says_so():
    even, spiked = record(time_ns=[10] * 9), record(time_ns=[10] * 8 + [10 * 21])
    assert step_time.chart(even, "en").title == "Step time by step (ms)"
    assert step_time.chart(spiked, "en").title.endswith("logarithmic axis")
    assert step_time.chart(spiked, "zh").title.endswith("对数坐标")


def test_throughput_names_what_is_lost():
    chart = throughput.chart(record(), "en")
    assert chart.table.rows == (
        ("p_whole", "412.9", "88.9%"),
        ("lost to evaluation", "−44.2", "9.5%"),
        ("p_train", "457.2", "98.4%"),
        ("lost to waiting for data", "−7.411", "1.6%"),
        ("p_core", "464.6", "100.0%"),
    )
    ends = [(row["colour"], row["from"], row["to"]) for row in chart.data["bars"]]
    whole, train, core = (record().figure(name) for name in ("p_whole", "p_train", "p_core"))
    assert ends == [
        ("work", 0, whole), ("eval", whole, train), ("work", 0, train),
        ("wait", train, core), ("work", 0, core),
    ]  # fmt: skip


def test_spans_fill_the_wall_time_and_parts_stand_within_the_steps():
    chart = spans.chart(record(), "en")
    rows = chart.data["bars"]
    assert (rows[0]["from"], rows[10]["to"]) == (0, 46.15)
    assert [row["to"] for row in rows[:10]] == [row["from"] for row in rows[1:11]]
    assert rows[11]["label"] == "· data_wait\n0.402 s · 1.6%"
    compile_s, train_s = rows[5]["from"], rows[7]["to"]
    assert rows[11]["from"] == compile_s
    assert rows[13]["to"] == pytest.approx(train_s, abs=1e-6)
    assert chart.table.rows[11] == ("· data_wait", "waiting for data", "/", "0.402", "1.6%")
    assert chart.description == "11 spans over 46.150 s of wall time; the longest is train"


def test_hostile_names_of_spans_are_text_of_one_line():
    hostile = {"</script>\n\x1b[31m": 4 * S, "a&b": 8 * S}
    made = of_spans(wall_ns=10 * S, by_name_ns=hostile, train_parts_ns={})
    first, second = spans.chart(made, "en").data["bars"]
    assert first["label"] == "</script> \\u001b[31m\n4.000 s · 40.0%"
    assert (second["from"], second["to"]) == (4, 10)  # never beyond the wall time


def test_dots_stand_at_their_difference_from_the_median():
    chart = launches.chart([launch("a", 90.0), launch("b", 100.0), launch("c", 120.0)], "en")
    assert [(row["run"], row["percent"]) for row in chart.data["launches"]] == [
        ("a", -10.0), ("b", 0.0), ("c", 20.0),
    ]  # fmt: skip
    assert chart.data["launches"][1]["label"] == "p_train\n100.0 samples/s"
    assert chart.table.rows[2] == ("p_train", "c", "120.0 samples/s", "+20.00%")


def test_launches_that_failed_are_no_dots():
    failed = launch("c", 9.0, status="failed")
    found = launches.chart([launch("a", 90.0), launch("b", 100.0), failed], "zh")
    assert len(found.data["launches"]) == 2
    assert launches.chart([launch("a", 90.0), failed], "en") is None


def test_nothing_to_draw_is_no_chart():
    assert loss.chart(record(loss=[None, None]), "en") is None
    assert loss.chart(record(loss=[]), "en") is None
    assert step_time.chart(record(time_ns=[]), "en") is None
    assert step_time.chart(record(time_ns=[0, 0]), "en") is None
    assert spans.chart(of_spans(by_name_ns={}), "en") is None
    assert throughput.chart(launch("a", 9.0), "en") is None
    bare = record().quality.model_copy(update={"history": []})
    assert quality.chart(record().model_copy(update={"quality": bare}), "en") is None


@pytest.mark.parametrize("series", [[0.5], [0.0, 0.0, 0.0], [-1.0, -2.0], [1e-9, 1e9]])
def test_odd_series_are_drawn(series):
    from trainmark.pages import drawing

    made = record(loss=series, time_ns=[1] * len(series), samples=[1] * len(series))
    for chart in all_charts("en", made):
        assert "NaN" not in drawing.svg(chart)
        json.dumps(drawing.document(chart), allow_nan=False)


def test_a_million_steps_are_thinned_out():
    rng = np.random.default_rng(1)
    made = record(
        loss=rng.random(1_000_000).tolist(),
        time_ns=rng.integers(1_000_000, 2_000_000, 1_000_000).tolist(),
    )
    assert len(loss.chart(made, "en").data["steps"]) <= 1000
    assert len(step_time.chart(made, "en").data["steps"]) <= 1000


def test_a_page_without_pictures_loads_nothing_that_draws(monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    assert "throughput" in page.markdown_page([record()])
