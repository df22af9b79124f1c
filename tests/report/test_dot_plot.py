"""The dot plot over launches: exact places, and only launches that passed."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from fakes import GOLDEN
from trainmark.report import svg
from trainmark.report.charts import launches_plot
from trainmark.results.record import Record

SPACE = "{http://www.w3.org/2000/svg}"


def launch(run_id: str, p_train: float, **changes: Any) -> Record:
    text = (GOLDEN / "record_distilbert.json").read_text(encoding="utf-8")
    made = Record.model_validate_json(text)
    entry = made.figures["p_train"].model_copy(update={"value": p_train})
    figures = {"p_train": entry}
    return made.model_copy(update={"run_id": run_id, "figures": figures, **changes})


def test_dots_stand_at_their_difference_from_the_median() -> None:
    found = launches_plot(
        [launch("a", 90.0), launch("b", 100.0), launch("c", 120.0)], lang="en", ident="p"
    )
    assert found is not None
    root = ET.fromstring(found)
    xs = [float(dot.get("cx", "")) for dot in root.iter(f"{SPACE}circle")]
    # The axis ends 8% beyond the farthest dot, +20% of the median.
    left, right = 118, svg.WIDTH - 128
    middle, per_cent = (left + right) / 2, (right - left) / (2 * 20 * 1.08)
    expected = [middle - 10 * per_cent, middle, middle + 20 * per_cent]
    assert xs == pytest.approx(expected, abs=0.06)
    labels = [item.text for item in root.iter(f"{SPACE}text")]
    assert "p_train" in labels
    assert "100.0 samples/s" in labels


def test_launches_that_failed_are_no_dots() -> None:
    launches = [launch("a", 90.0), launch("b", 100.0), launch("c", 9.0, status="failed")]
    found = launches_plot(launches, lang="zh", ident="p")
    assert found is not None
    assert found.count("<circle") == 2


def test_one_launch_is_no_plot() -> None:
    launches = [launch("a", 90.0), launch("c", 9.0, status="failed")]
    assert launches_plot(launches, lang="en", ident="p") is None
