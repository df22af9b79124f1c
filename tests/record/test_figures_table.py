"""The table of figures: whole, in both languages, and as the documentation shows it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trainmark import cases
from trainmark.record.figures import FIGURES

if TYPE_CHECKING:
    from trainmark.spec import FigureSpec

ROOT = Path(__file__).parents[2]


# How the documentation of each language names the unit of work and the better direction.
WORK = {"en": "samples or tokens/s", "zh": "samples/s 或 tokens/s"}
BETTER = {
    "en": {"higher": "higher", "lower": "lower", None: ""},
    "zh": {"higher": "越高越好", "lower": "越低越好", None: ""},
}


def format_row(spec: FigureSpec, lang: str = "en") -> str:
    """Return the row of a figure in the documentation.

    Its cells are name, label, definition, unit and which direction is better (``BETTER``: a word,
    or nothing). A unit for any kind of work names all of them (``WORK``).
    """
    label, definition = spec.label.in_language(lang), spec.definition.in_language(lang)
    unit = spec.unit.replace("{work}/s", WORK[lang])
    words = (label, definition, unit, BETTER[lang][spec.better])
    return " | ".join((f"| `{spec.name}`", *words)) + " |"


@pytest.mark.parametrize(("lang", "page"), [("en", "metrics.md"), ("zh", "metrics.zh.md")])
def test_metrics_page_has_the_row_of_every_figure_in_order(lang: str, page: str) -> None:
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    # Tables of other things have fewer columns.
    num_columns = format_row(FIGURES["e2e_time"], lang).count(" | ")
    rows = [line for line in lines if line.startswith("| `") and line.count(" | ") == num_columns]
    assert rows == [format_row(spec, lang) for spec in FIGURES.values()]


@pytest.mark.parametrize(
    "name", [name for name in cases.list_names() if cases.load(name).page.figures]
)
def test_readme_of_a_case_shows_its_figures(name: str) -> None:
    # ``page.figures`` are figures that a case has besides those of all cases. ``format_row`` gives
    # the row of a table that documents a figure.
    text = (cases.get_folder(name) / "README.md").read_text(encoding="utf-8")
    for spec in cases.load(name).page.figures:
        assert format_row(spec) in text.splitlines()
