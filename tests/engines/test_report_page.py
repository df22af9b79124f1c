"""The report in Chromium: one file without requests, at every width, accessible."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from engines.browser import WIDTHS, click_folds, file_home, unfold
from support.document_texts import render_html
from support.many_records import write_runs
from trainmark.record.record import read_record

if TYPE_CHECKING:
    from pathlib import Path

CJK = re.compile(r"[\u4e00-\u9fff]")
RUNS = ("bert-0-tf32-1", "eight-ranks", "failed")  # of ``write_runs``: usual, a slow rank, no end


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with made-up runs, among them ``RUNS``.

    ``write_runs`` writes the records of 27 runs: a subfolder each, by the run's name.
    """
    folder = tmp_path_factory.mktemp("runs")
    write_runs(folder)
    return folder


@pytest.fixture(scope="module")
def pages(runs, tmp_path_factory):
    """Return the HTML file of each run in ``RUNS`` by its name; ``several``: one of all of them.

    ``RUNS`` are the names of three of the made-up runs: a usual one, one with a slow rank, and one
    that failed.
    """
    folder = tmp_path_factory.mktemp("pages")
    files: dict[str, Path] = {}
    for name in RUNS:
        files[name] = folder / f"{name}.html"
        files[name].write_text(render_html([read_record(runs / name)]), encoding="utf-8")
    files["several"] = folder / "several.html"
    records = [read_record(runs / name) for name in RUNS]
    files["several"].write_text(render_html(records), encoding="utf-8")
    return files


@pytest.mark.parametrize("name", [*RUNS, "several"])
def test_page_fits_every_width(pages, visit, name):
    """Nothing of the report of a run, or of several, reaches beyond the right edge.

    ``RUNS`` are the names of three runs; ``pages`` has the HTML file of each, and of all three
    ("several"). ``WIDTHS`` are 360 to 2560 pixels: from a phone to a large screen.
    """
    window = visit(file_home(pages[name])).open("")  # the home is the page itself
    for width in WIDTHS:
        window.page.set_viewport_size({"width": width, "height": 900})
        assert window.list_overflowing_elements() == [], width


def choose_option(window, name, value):
    """Choose a language or a theme as a reader does."""
    window.page.locator(f"label[for={name}-{value}]").click()


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", RUNS)
def test_axe_finds_no_accessibility_violation(pages, visit, name, dark, lang):
    """No report hinders people with disabilities: folded or not, light or dark, in both languages.

    ``pages`` has the HTML file of each of the three runs in ``RUNS``. ``visit`` returns a function
    that opens a window, whose address may only be that of the file: the rest, "", is empty.
    ``list_barriers`` returns what the checker axe finds; ``unfold`` opens all folded parts.
    """
    window = visit(file_home(pages[name]), dark=dark).open("")
    choose_option(window, "lang", lang)
    assert window.list_barriers() == []
    unfold(window)  # axe does not see what is folded
    assert window.list_barriers() == []


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
def test_language_is_switched_with_and_without_scripts(pages, visit, scripts):
    """The page has its texts in English and Chinese, and shows those of the chosen one.

    ``pages`` has the HTML file of each run of ``RUNS``; ``CJK`` finds a Chinese character. The
    heading is the sentence that says what the run achieved; "#en" holds the English texts.
    """
    window = visit(file_home(pages[RUNS[0]]), java_script_enabled=scripts).open("")
    heading = window.page.locator(".sentence:visible")
    english = heading.inner_text()
    choose_option(window, "lang", "zh")
    assert window.page.locator("#en").is_hidden()
    assert heading.inner_text() != english
    assert CJK.search(heading.inner_text())
    choose_option(window, "lang", "en")
    assert heading.inner_text() == english


@pytest.mark.parametrize("name", RUNS)
def test_every_control_is_reachable_by_keyboard_with_visible_focus(pages, visit, name):
    """Each link, button and choice of a report is reached by Tab and then visibly marked.

    ``pages`` has the HTML file of each of the three runs in ``RUNS``. ``tab_through`` presses Tab
    until a control comes again; it returns the controls that were not reached, and those that were
    without an outline or a shadow.
    """
    window = visit(file_home(pages[name])).open("")
    unreached, unmarked = window.tab_through()
    assert (unreached, unmarked) == ([], [])


# Returns the text of the page that is visible above the fold of a screen 800 pixels high.
_TEXT_OF_FIRST_SCREEN = """() => {
    const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
    const texts = [];
    for (let node; (node = walker.nextNode());) {
        const range = document.createRange();
        range.selectNodeContents(node);
        const box = range.getBoundingClientRect(), parent = node.parentElement;
        if (parent.closest("svg")) continue;  // nobody reads axes first
        if (box.height && box.bottom <= 800 && parent.checkVisibility())
            texts.push(node.data);
    }
    return texts.join(' ');
}"""


@pytest.mark.parametrize("name", RUNS)
def test_the_first_screen_has_at_most_180_words_and_50_figures(pages, visit, name):
    # ``pages`` has the HTML file of each of the three made-up runs in ``RUNS``, which ``visit``
    # opens; "" is what follows its address. The limits are this project's own.
    window = visit(file_home(pages[name])).open("")
    window.page.set_viewport_size({"width": 1280, "height": 800})
    # The script returns the texts that are seen without scrolling, except those of charts.
    text = window.page.evaluate(_TEXT_OF_FIRST_SCREEN)
    # A word has a letter or a digit; a figure is a number that does not follow a letter or a dot.
    assert sum(any(map(str.isalnum, word)) for word in text.split()) <= 180, text
    assert len(re.findall(r"(?<![\w.])[-+×]?\d[\d,.]*", text)) <= 50, text


def test_table_wider_than_the_screen_shows_that_it_scrolls(pages, visit):
    # ``pages[RUNS[0]]`` is the HTML file of a usual run, in a window of 360 pixels. ".performance
    # .scroll" is the frame of its table of figures, in which the table scrolls; a script of the
    # page marks it "cut" while columns are hidden. ``hint`` returns the text that its style then
    # adds.
    window = visit(file_home(pages[RUNS[0]]), width=360).open("")
    table = window.page.locator(".performance .scroll:visible")
    hint = "e => getComputedStyle(e, '::before').content"
    assert "more columns" in table.evaluate(hint)
    # A shadow at the edge where columns are hidden.
    assert "radial-gradient" in table.evaluate("e => getComputedStyle(e).backgroundImage")

    # On a wide screen the whole table is visible.
    window.page.set_viewport_size({"width": 1280, "height": 900})
    window.page.locator(".performance .scroll:not(.cut):visible").wait_for()
    assert table.evaluate(hint) == "none"


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
def test_all_trust_reasons_are_reachable_from_the_first_screen(pages, visit, scripts):
    window = visit(file_home(pages["eight-ranks"]), java_script_enabled=scripts).open("")
    # The page of a run with a slow rank names two reasons to doubt its figures in its summary, and
    # has a link ".more" to the folded list of all of them; no item of the list is visible at first.
    reasons = window.page.locator(".doubts:visible li:visible")
    assert reasons.count() == 0
    more = window.page.locator(".doubts:visible .more")
    hidden = int(re.search(r"\d+", more.inner_text()).group())  # the link says how many more
    more.click()
    assert reasons.count() == 2 + hidden  # the two of the summary are in the list too


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_states_differ_by_mark_and_shape(pages, visit, dark):
    """The badges of a passed and of a failed run: mark, border and color.

    ``pages`` has the HTML file of each run: "eight-ranks" passed, "failed" did not. ``style``
    returns, of the badge with the run's state, its mark (the text before it), the kind of its
    border and its color; each of the three must differ, for people who see no colors.
    """
    style = """e => { const own = getComputedStyle(e), mark = getComputedStyle(e, '::before');
        return [mark.content, own.borderTopStyle, own.backgroundColor]; }"""
    marks_and_forms = []
    for name in ("eight-ranks", "failed"):
        window = visit(file_home(pages[name]), dark=dark).open("")
        marks_and_forms.append(window.page.locator(".badge:visible").evaluate(style))
    assert all(first != second for first, second in zip(*marks_and_forms, strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_charts_are_drawn_when_they_become_visible(pages, visit, name):
    # ``RUNS`` are the names of three runs, ``pages`` has the HTML file of each. Charts lie in
    # folded sections.
    window = visit(file_home(pages[name])).open("")
    unfold(window)
    charts = window.page.locator("figure.chart:visible")
    assert charts.count() >= 1
    for chart in charts.all():
        chart.scroll_into_view_if_needed()
        chart.locator(".drawing svg, .drawing canvas").first.wait_for()
        assert chart.locator(".drawing").get_attribute("aria-label")
    # A chart whose values are in a table of the page has no table of its own; at least one has it.
    assert window.page.locator("figure.chart:visible details table").count() >= 1


def test_without_scripts_charts_are_images_with_tables(pages, visit):
    # ``RUNS[1]`` is a run of eight ranks; ``pages`` has the HTML file of each run.
    window = visit(file_home(pages[RUNS[1]]), java_script_enabled=False).open("")
    click_folds(window)
    charts = window.page.locator("figure.chart:visible")
    assert charts.count() >= 1
    for chart in charts.all():
        assert chart.locator(".drawing svg").is_visible()
    with_table = charts.filter(has=window.page.locator("details summary"))
    assert with_table.count() >= 1
    for chart in with_table.all():
        chart.locator("details summary").click()
        assert chart.locator("table").is_visible()


def test_page_prints_completely(pages, visit):
    # Charts are printed and switches are not, also from the dark theme.
    # ``RUNS[1]`` is a run of eight ranks; ``pages`` has the HTML file of each run.
    window = visit(file_home(pages[RUNS[1]]), dark=True).open("")
    window.page.emulate_media(media="print")
    assert window.page.locator("figure.chart .drawing svg:visible").count() >= 1
    assert window.page.locator(".switches").is_hidden()
    printed = window.page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    # At least two pages: each is an object "/Type /Page". Without the line end the count also has
    # "/Type /Pages", the list of all pages.
    assert printed.count(b"/Type /Page\n") >= 2 or printed.count(b"/Type /Page") >= 3
