"""Charts drawn: static, as files, and for the page's script; their colours."""

import json
import re
import struct
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from fakes import GOLDEN
from trainmark.pages import drawing
from trainmark.pages.charts import loss
from trainmark.record.record import Record

TEXT = ("ink", "soft", "good", "warn", "bad")
MARKS = ("accent", "work", "setup", "eval", "wait", "rest")


def chart(lang="en"):
    text = (GOLDEN / "record_distilbert.json").read_text(encoding="utf-8")
    return loss.chart(Record.model_validate_json(text), lang)


def luminance(colour):
    """Relative luminance, https://www.w3.org/TR/WCAG22/#dfn-relative-luminance (2026-11-22)."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_contrast_is_enough_on_every_ground(dark):
    found = drawing.colours(dark=dark)
    for ground in ("paper", "panel"):
        assert [name for name in TEXT if contrast(found[name], found[ground]) < 4.5] == []
    for ground in ("paper", "panel", "track"):
        assert [name for name in MARKS if contrast(found[name], found[ground]) < 3] == []


def test_the_page_s_picture_has_the_page_s_colours_and_no_anchor_of_its_own():
    drawn = drawing.svg(chart())
    assert ET.fromstring(drawn).get("viewBox").startswith("0 0 ")
    assert set(re.findall(r'(?:fill|stroke)="([^"]+)"', drawn)) <= {
        "none", "transparent", "var(--accent)", "var(--eval)", "var(--rule)", "var(--soft)",
    }  # fmt: skip
    assert " id=" not in drawn
    assert "style=" not in drawn
    assert drawn == drawing.svg(chart())


def test_a_file_has_its_title_and_concrete_colours():
    drawn = drawing.svg_file(chart())
    assert "var(" not in drawn
    assert drawing.colours()["accent"] in drawn
    assert "Training loss by step" in [item.text for item in ET.fromstring(drawn).iter()]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_png_is_as_large_as_asked(lang):
    small, large = drawing.png(chart(lang), scale=1), drawing.png(chart(lang))
    assert small[:8] == b"\x89PNG\r\n\x1a\n"
    sizes = [struct.unpack(">II", made[16:24]) for made in (small, large)]
    assert sizes[1] == tuple(2 * side for side in sizes[0])


def test_only_the_script_s_document_answers_a_pointer():
    made = drawing.document(chart())
    answering = [layer["params"] for layer in made["layer"] if "params" in layer]
    assert [[param["name"] for param in params] for params in answering] == [["near"]]
    assert made["width"] == "container"
    assert len(made["datasets"]["steps"]) == 60
    json.dumps(made, allow_nan=False)


def test_words_that_look_like_colours_stay_words():
    named = replace(chart(), title="of var(--accent)")
    assert "of var(--accent)" in drawing.svg_file(named)


def test_the_script_is_whole_and_can_stand_in_a_page():
    made = drawing.scripts()
    assert "figure.chart" in made
    assert "</script" not in made
    assert "<!--" not in made
    assert len(made.encode()) < 1_000_000


@pytest.mark.parametrize(
    "word", ['\\" + datum.x + "', "a\nb", "a\u2028b", "\\u00", "\u202ertl", '"']
)
def test_a_title_is_no_expression_and_has_no_control_character(word):
    made = chart()
    spec = {
        "mark": {"type": "bar", "tooltip": {"content": "encoding"}, "aria": True},
        "data": {"name": "x"},
        "encoding": {"x": {"field": "x", "type": "quantitative", "title": word}},
    }  # fmt: skip
    hostile = replace(made, draws=lambda: spec, data={"x": [{"x": 7, "name": word}]})
    (bar,) = [
        label for item in ET.fromstring(drawing.svg(hostile)).iter()
        if (label := item.get("aria-label", "")).endswith(": 7")
    ]  # fmt: skip
    written = drawing.document(hostile)
    title = written["encoding"]["x"]["title"]
    assert bar == f"{title}: 7"
    assert "\\" not in title
    assert (title + written["datasets"]["x"][0]["name"].replace("\n", "")).isprintable()
