"""The report in Chromium: one file that asks nobody, at every width, for everybody."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engines.browser import HALF, MOST_DIFFERENT, WIDTHS, check_shot, difference, file_home, shot
from engines.browser import SHOTS as PICTURES
from hostile_records import ATTACK, LONG, hostile
from many_records import write_runs
from trainmark.pages.page import html_page
from trainmark.record.record import Record, read

CJK = re.compile(r"[\u4e00-\u9fff]")
RUNS = ("bert-0-tf32-1", "eight-ranks", "failed")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_runs(folder)
    return folder


@pytest.fixture(scope="module")
def pages(runs, tmp_path_factory):
    """Return the files of the pages by the runs' names."""
    folder = tmp_path_factory.mktemp("pages")
    found: dict[str, Path] = {}
    for name in RUNS:
        found[name] = folder / f"{name}.html"
        found[name].write_text(html_page([read(runs / name)]), encoding="utf-8")
    return found


@pytest.mark.parametrize("name", RUNS)
def test_no_width_breaks_the_page(pages, visit, name):
    shown = visit(file_home(pages[name])).open("")
    for width in WIDTHS:
        shown.page.set_viewport_size({"width": width, "height": 900})
        assert shown.overflow() == [], width


def switch(shown, name, value):
    """Choose a language or a theme as a reader does."""
    shown.page.locator(f"label[for={name}-{value}]").click()


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", RUNS)
def test_axe_finds_no_barrier(pages, visit, name, dark, lang):
    shown = visit(file_home(pages[name]), dark=dark).open("")
    switch(shown, "lang", lang)
    assert shown.barriers() == []


def paper(shown):
    return shown.page.evaluate("getComputedStyle(document.body).backgroundColor")


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
def test_language_and_theme_are_switched(pages, visit, scripts):
    shown = visit(file_home(pages[RUNS[0]]), java_script_enabled=scripts).open("")
    heading = shown.page.locator("h1:visible")
    english = heading.inner_text()
    switch(shown, "lang", "zh")
    assert shown.page.locator("#en").is_hidden()
    assert heading.inner_text() != english
    assert CJK.search(heading.inner_text())
    switch(shown, "lang", "en")
    assert heading.inner_text() == english


def test_a_theme_is_chosen_against_that_of_the_system_and_kept(pages, visit):
    shown = visit(file_home(pages[RUNS[0]]), dark=True).open("")
    dark = paper(shown)
    switch(shown, "theme", "light")
    light = paper(shown)
    assert light != dark
    assert paper(shown.open("")) == light
    switch(shown, "theme", "auto")
    assert paper(shown) == dark


def test_the_record_is_handed_out(runs, pages, visit):
    shown = visit(file_home(pages[RUNS[0]])).open("")
    with shown.page.expect_download() as started:
        shown.page.locator("button.download:visible").click()
    found = Path(started.value.path()).read_text(encoding="utf-8")
    assert Record.model_validate_json(found) == read(runs / RUNS[0])


def test_a_link_leads_to_its_section(pages, visit):
    shown = visit(file_home(pages[RUNS[0]])).open("")
    address = shown.page.locator(".contents a:visible").last.get_attribute("href")
    shown.open(address)
    target = shown.page.locator(address)
    assert target.is_visible()
    assert shown.page.evaluate("scrollY") > 0


@pytest.mark.parametrize("name", RUNS)
def test_every_control_is_reached_by_keyboard_and_is_marked_then(pages, visit, name):
    shown = visit(file_home(pages[name])).open("")
    assert shown.tabbed() == ([], [])


def test_switches_and_tables_behind_charts_work_by_keyboard(pages, visit):
    shown = visit(file_home(pages[RUNS[1]])).open("")
    shown.page.locator("#lang-en").focus()
    shown.page.keyboard.press("ArrowRight")
    assert shown.page.locator("#zh").is_visible()
    behind = shown.page.locator("#zh figure.chart details").first
    behind.locator("summary").focus()
    shown.page.keyboard.press("Enter")
    assert behind.locator("table").is_visible()


@pytest.mark.parametrize("name", RUNS)
def test_charts_are_drawn_when_they_are_seen(pages, visit, name):
    shown = visit(file_home(pages[name])).open("")
    charts = shown.page.locator("figure.chart:visible")
    assert charts.count() >= 1
    for chart in charts.all():
        chart.scroll_into_view_if_needed()
        chart.locator(".drawing svg, .drawing canvas").first.wait_for()
        assert chart.locator(".drawing").get_attribute("aria-label")
        assert chart.locator("details table").count() == 1


def test_without_scripts_charts_are_pictures_with_tables(pages, visit):
    shown = visit(file_home(pages[RUNS[1]]), java_script_enabled=False).open("")
    charts = shown.page.locator("figure.chart:visible")
    assert charts.count() >= 1
    for chart in charts.all():
        assert chart.locator(".drawing svg").is_visible()
        chart.locator("summary").click()
        assert chart.locator("table").is_visible()


def test_the_page_is_printed(pages, visit):
    shown = visit(file_home(pages[RUNS[1]]), dark=True).open("")
    shown.page.emulate_media(media="print")
    assert shown.page.locator("figure.chart .drawing svg:visible").count() >= 1
    assert shown.page.locator(".switches").is_hidden()
    printed = shown.page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert printed.count(b"/Type /Page\n") >= 2 or printed.count(b"/Type /Page") >= 3


SHOTS = {
    "report": (RUNS[1], "en", {"width": 1280}),
    "report-failed-zh-dark-narrow": (RUNS[2], "zh", {"width": 360, "dark": True}),
}


@pytest.fixture
def pictured(runs, visit, tmp_path):
    """Return a function that opens what a screenshot shows; charts are those without scripts."""

    def opened(name):
        run, lang, window = SHOTS[name]
        path = tmp_path / "page.html"
        path.write_text(html_page([read(runs / run)], lang), encoding="utf-8")
        return visit(file_home(path), **window, **HALF).open("")

    return opened


@pytest.mark.parametrize("name", SHOTS)
def test_the_page_looks_as_it_did(pictured, tmp_path, name):
    check_shot(name, shot(pictured(name)), tmp_path)


@pytest.mark.parametrize(
    "fault",
    [
        "figure.chart:nth-of-type(1) .drawing svg { visibility: hidden }",
        "main { max-width: 70% !important }",
        "table { display: none }",
        ":root { color-scheme: dark !important }",
    ],
    ids=["chart", "layout", "tables", "theme"],
)
def test_a_page_that_is_broken_looks_otherwise(pictured, fault):
    shown = pictured("report")
    shown.page.add_style_tag(content=fault)
    kept = (PICTURES / "report.png").read_bytes()
    assert difference(shot(shown), kept) > MOST_DIFFERENT


@pytest.mark.parametrize("golden", ["record_sampled.json", "record_distilbert.json"])
@pytest.mark.parametrize("text", [ATTACK, LONG], ids=["markup", "long"])
def test_hostile_text_is_text(visit, tmp_path, golden, text):
    path = tmp_path / "page.html"
    path.write_text(html_page([hostile(golden, text=text)]), encoding="utf-8")
    shown = visit(file_home(path)).open("")
    assert shown.attacked() == []
    assert text[:9] in shown.page.locator("body").inner_text()
    assert shown.overflow() == []
