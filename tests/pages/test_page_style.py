"""The style of pages: contrast of every colour in both themes, one place for each colour."""

import re
from pathlib import Path

import pytest

import trainmark.pages

TEMPLATES = Path(trainmark.pages.__file__).parent / "templates"
COLOUR = re.compile(r"--([a-z]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);")
BASE = (TEMPLATES / "base.css").read_text(encoding="utf-8")
COLOURS = {name: pair for name, *pair in COLOUR.findall(BASE)}
# What decorates and tells nothing that is not told otherwise.
DECORATION = {"rule", "track", "shade", "tint", "panel", "paper"}
TEXT = ("ink", "soft", "accent", "good", "warn", "bad")


def luminance(colour):
    """Return the relative luminance, https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    """Return the contrast ratio, https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def mixed(colour, paper, share):
    pairs = ((int(one[place : place + 2], 16) for one in (colour, paper)) for place in (1, 3, 5))
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in pairs)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_and_marks_can_be_told_from_every_ground(theme):
    for name in set(COLOURS) - DECORATION:
        least = 4.5 if name in TEXT else 3
        for ground in ("paper", "panel", *["tint"] * (name in TEXT)):
            assert contrast(COLOURS[name][theme], COLOURS[ground][theme]) >= least, (name, ground)
    (share,) = re.findall(r"currentColor (\d+)%", BASE)
    for name in ("good", "warn", "bad"):  # badges, on their own tint
        colour = COLOURS[name][theme]
        assert contrast(colour, mixed(colour, COLOURS["paper"][theme], int(share) / 100)) >= 4.5


def test_colours_are_said_once_and_every_one_is_known():
    sheets = [path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.glob("*.css"))]
    said = [name for sheet in sheets for name, *_ in COLOUR.findall(sheet)]
    assert len(said) == len(set(said)) == len(COLOURS)
    beside = [COLOUR.sub("", sheet) for sheet in sheets]
    assert [found for sheet in beside for found in re.findall(r"#[0-9a-f]{6}\b", sheet)] == []
    used = {name for sheet in sheets for name in re.findall(r"var\(--([a-z]+)\)", sheet)}
    assert used <= {*COLOURS, "sans", "mono"}
