"""Charts: thinned out without losing a spike, and quick for a million steps."""

import math
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from trainmark.report import charts
from trainmark.results.record import Record

GOLDEN = Path(__file__).parents[1] / "golden"
SPACE = "{http://www.w3.org/2000/svg}"


def record(**steps):
    text = (GOLDEN / "record_distilbert.json").read_text(encoding="utf-8")
    made = Record.model_validate_json(text)
    return made.model_copy(update={"steps": made.steps.model_copy(update=steps)}) if steps else made


def path_of(picture):
    root = ET.fromstring(picture)
    return next(item.get("d") for item in root.iter(f"{SPACE}path"))


def test_few_points_are_kept_as_they_are():
    assert charts.thin(np.array([1.0, 3.0, 2.0])) == [(0, 1.0), (1, 3.0), (2, 2.0)]


def test_each_bucket_keeps_its_least_and_greatest_in_order():
    values = np.array([5.0, 1.0, 2.0, 9.0, 4.0, 4.0, 4.0, 4.0])
    assert charts.thin(values, max_points=4) == [(1, 1.0), (3, 9.0), (4, 4.0)]


def test_a_gap_stays_a_gap():
    values = np.array([1.0, 2.0, math.nan, math.inf, math.nan, math.nan, 3.0, 4.0])
    found = charts.thin(values, max_points=8 // 2)
    assert found[:2] == [(0, 1.0), (1, 2.0)]
    assert charts.thin(np.full(10, math.nan), max_points=4)[0][0] == 0
    picture = charts.loss_chart(record(loss=[1.0, 0.9, None, 0.7, 0.6]))
    assert path_of(picture).count("M") == 2


def test_no_spike_of_a_million_steps_is_lost():
    values = np.ones(1_000_000)
    values[123_456], values[765_432] = 50.0, 0.01
    found = charts.thin(values)
    assert len(found) <= 1000
    assert (123_456, 50.0) in found
    assert (765_432, 0.01) in found


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.13, 0.79, [0.2, 0.4, 0.6]),
        (1, 60, [20, 40, 60]),
        (3.0, 3.0, [3.0]),
    ],
)
def test_round_ticks(low, high, ticks):
    assert charts.linear_ticks(low, high) == pytest.approx(ticks)


def test_log_ticks_are_never_few():
    assert charts.log_ticks(0.9, 1100.0) == [1, 10, 100, 1000]
    assert charts.log_ticks(90.0, 600.0) == [100, 200, 500]


def test_loss_chart_names_its_ends_and_labels_evaluations():
    root = ET.fromstring(charts.loss_chart(record()))
    description = root.find(f"{SPACE}desc").text
    assert description == "Loss of 60 steps, from 0.7815 to 0.1447; dashed lines are evaluations"
    labels = [item.text for item in root.iter(f"{SPACE}text") if "eval" in item.get("class", "")]
    assert labels == ["acc 0.9117", "acc 0.9037", "acc 0.8796"]
    lines = [item for item in root.iter(f"{SPACE}line") if item.get("class") == "eval-line"]
    assert len(lines) == 3


def test_many_evaluations_do_not_flood_the_chart():
    made = record()
    point = made.quality.history[0]
    history = [point.model_copy(update={"step": step}) for step in range(1, 6_001)]
    made = made.model_copy(
        update={
            "quality": made.quality.model_copy(update={"history": history}),
            "steps": made.steps.model_copy(update={"loss": [0.5] * 6_000}),
        }
    )
    assert charts.loss_chart(made).count("<line") < 300


def test_step_time_chart_shades_the_warmup():
    root = ET.fromstring(charts.step_time_chart(record()))
    (shade,) = root.iter(f"{SPACE}rect")
    # 10 of 60 steps: 9 of 59 intervals of a 684 pixel axis.
    assert float(shade.get("width")) == pytest.approx(684 * 9 / 59, abs=0.05)
    assert root.find(f"{SPACE}desc").text == (
        "Time of 60 steps; the first 10 are the warm-up and are shaded"
    )


def test_nothing_to_draw_is_no_chart():
    assert charts.loss_chart(record(loss=[None, None])) is None
    assert charts.loss_chart(record(loss=[])) is None
    assert charts.step_time_chart(record(time_ns=[])) is None


@pytest.mark.parametrize("loss", [[0.5], [0.0, 0.0, 0.0], [-1.0, -2.0], [1e-9, 1e9]])
def test_odd_series_draw_inside_the_frame(loss):
    made = record(loss=loss, time_ns=[1] * len(loss), samples=[1] * len(loss))
    for picture in (charts.loss_chart(made), charts.step_time_chart(made)):
        root = ET.fromstring(picture)
        assert "nan" not in picture
        for item in root.iter(f"{SPACE}line"):
            assert 0 <= float(item.get("y1")) <= 250


def test_a_logarithmic_axis_says_so():
    even, spiked = record(time_ns=[10] * 9), record(time_ns=[10] * 8 + [10 * 21])
    assert charts.step_time_title(even, "en") == "Step time by step (ms)"
    assert charts.step_time_title(spiked, "en").endswith("logarithmic axis")
    assert charts.step_time_title(spiked, "zh").endswith("对数坐标")


def test_a_million_steps_draw_small_pictures():
    rng = np.random.default_rng(1)
    made = record(
        loss=rng.random(1_000_000).tolist(),
        time_ns=rng.integers(1_000_000, 2_000_000, 1_000_000).tolist(),
    )
    pictures = charts.loss_chart(made), charts.step_time_chart(made)
    assert max(map(len, pictures)) < 40_000
