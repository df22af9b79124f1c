"""The results site in Chromium, from a server's process: read, filtered, compared, taken away."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
from urllib.parse import parse_qs, urljoin, urlsplit

import pytest

from engines.browser import HALF, WIDTHS, check_shot, shot
from engines.site_server import plain_files, served
from hostile_records import ATTACK, LONG, hostile
from many_records import DEVICES, PRECISIONS, REPEATS, write_runs
from trainmark.library.store.database import Database
from trainmark.library.store.index import Index
from trainmark.pages.site.writing import write_site
from trainmark.record import record

CJK = re.compile(r"[\u4e00-\u9fff]")
PAGES = {
    "list": "/",
    "case": "/cases/distilbert_sst2",
    "run": "/runs/eight-ranks",
    "failed": "/runs/failed",
    "compare": "/compare?run=bert-0-tf32-1&run=bert-1-tf32-1&run=bert-2-bf16-1",
    "references": "/references",
    "references-of-case": "/references/distilbert_sst2",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_runs(folder)
    return folder


@pytest.fixture(scope="module")
def site(runs):
    with served(runs) as address:
        yield address


@pytest.fixture
def opened(site, visit):
    """Return a function that opens a page of the site."""

    def at(address, **window):
        return visit(site, **window).open(address)

    return at


def in_language(address, lang):
    return address if lang == "en" else f"{address}{'&' if '?' in address else '?'}lang={lang}"


def rows(shown):
    return shown.page.locator("table.runs tbody tr")


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_barrier(opened, name, dark, lang):
    shown = opened(in_language(PAGES[name], lang), dark=dark)
    assert shown.barriers() == []
    assert shown.page.locator("html").get_attribute("lang").startswith(lang)
    if lang == "zh":
        assert CJK.search(shown.page.locator("main").inner_text())


@pytest.mark.parametrize("name", PAGES)
def test_no_width_breaks_a_page(opened, name):
    shown = opened(PAGES[name])
    for width in WIDTHS:
        shown.page.set_viewport_size({"width": width, "height": 900})
        assert shown.overflow() == [], width


@pytest.mark.parametrize("name", ["list", "case", "run", "compare", "references-of-case"])
def test_every_control_is_reached_by_keyboard_and_is_marked_then(opened, name):
    assert opened(PAGES[name]).tabbed() == ([], [])


def test_filters_stand_in_the_address_and_lead_back(site, opened):
    shown = opened("/")
    everything = rows(shown).count()
    shown.page.select_option("select[name=precision]", "bf16")
    shown.page.select_option("select[name=device]", DEVICES[1])
    shown.page.locator(".filters button[type=submit]").click()
    shown.page.wait_for_url("**precision=bf16*")
    asked = parse_qs(urlsplit(shown.page.url).query)
    assert (asked["precision"], asked["device"]) == (["bf16"], [DEVICES[1]])
    assert rows(shown).count() == REPEATS < everything
    again = opened(shown.page.url)  # what somebody else sees who gets the address
    assert rows(again).all_inner_texts() == rows(shown).all_inner_texts()
    shown.page.locator("a.clear").click()
    shown.page.wait_for_url(site + "/")
    assert rows(shown).count() == everything


def test_a_search_finds_by_name_and_by_figure(opened):
    shown = opened("/")
    shown.page.fill("input[name=q]", "two-ranks")
    shown.page.keyboard.press("Enter")
    shown.page.wait_for_url("**/?*q=two-ranks*")
    assert rows(shown).locator("th a").all_inner_texts() == ["two-ranks"]
    shown.page.fill("input[name=q]", "p_core>1800 precision=bf16")
    shown.page.keyboard.press("Enter")
    shown.page.wait_for_url("**p_core*")
    assert rows(shown).count() == REPEATS


def test_runs_are_sorted_by_a_column(opened):
    shown = opened("/?case=distilbert_sst2&status=passed")
    shown.page.locator("th[data-key=p_train] a").click()
    shown.page.wait_for_url("**sort=*")
    first = rows(shown).first.locator("th a").inner_text()
    assert first == f"bert-{len(DEVICES) - 1}-{PRECISIONS[0]}-{REPEATS}"
    assert shown.page.locator("th[data-key=p_train]").get_attribute("aria-sort") == "descending"


def test_ticked_runs_are_compared_side_by_side(opened):
    shown = opened("/?case=distilbert_sst2&precision=tf32&status=passed")
    button = shown.page.locator(".compare button")
    assert button.is_disabled()
    for place in range(2):
        rows(shown).nth(place).locator("input").check()
    button.click()
    shown.page.wait_for_url("**/compare?*")
    asked = parse_qs(urlsplit(shown.page.url).query)["run"]
    assert len(asked) == 2
    text = shown.page.locator("main").inner_text()
    assert all(name in text for name in asked)


def test_language_and_theme_are_switched_and_kept(opened):
    shown = opened("/runs/two-ranks")
    color = "getComputedStyle(document.body).backgroundColor"
    light = shown.page.evaluate(color)
    shown.page.locator("label[for=theme-dark]").click()
    dark = shown.page.evaluate(color)
    shown.page.locator("header a[hreflang=zh-Hans]").click()
    shown.page.wait_for_url("**lang=zh*")
    assert shown.page.evaluate(color) == dark != light
    assert shown.page.locator("html").get_attribute("lang") == "zh-Hans"
    assert CJK.search(shown.page.locator("h1").first.inner_text())
    shown.page.locator("header a.brand").click()
    assert shown.page.locator("html").get_attribute("lang") == "zh-Hans"


def taken(shown, link):
    """Return what a link leads to: a file, or a page of its own."""
    return shown.page.request.get(urljoin(shown.page.url, link.get_attribute("href"))).body()


def test_lists_and_records_are_taken_away(runs, opened):
    shown = opened("/?case=distilbert_sst2&precision=bf16")
    link = functools.partial(shown.page.get_by_role, "link", exact=True)
    count = REPEATS * len(DEVICES)
    listed = taken(shown, link(name="CSV")).decode()
    assert len(list(csv.reader(io.StringIO(listed)))) == 1 + count
    assert json.loads(taken(shown, link(name="JSON")))["total"] == count
    shown = opened("/runs/two-ranks")
    kept = (runs / "two-ranks" / "record.json").read_bytes()
    assert taken(shown, shown.page.locator("a[href$='record.json']").first) == kept


def drawn(shown):
    """Return the charts of a page once each is drawn."""
    charts = shown.page.locator("figure.chart").all()
    for chart in charts:
        chart.scroll_into_view_if_needed()
        chart.locator(".drawing svg, .drawing canvas").first.wait_for()
    return charts


def test_charts_are_drawn_and_have_tables(opened):
    charts = drawn(opened("/runs/eight-ranks"))
    assert len(charts) >= 1
    for chart in charts:
        assert chart.locator("details table").count() == 1


@pytest.mark.parametrize("name", ["list", "run", "compare"])
def test_the_site_is_read_without_scripts(opened, name):
    shown = opened(PAGES[name], java_script_enabled=False)
    assert shown.page.locator("h1").count() == 1
    for chart in shown.page.locator("figure.chart").all():
        chart.locator("summary").click()
        assert chart.locator("table").is_visible()


def test_what_is_wrong_with_an_address_is_told_on_a_page(visit, site):
    shown = visit(site)
    answer = shown.page.goto(f"{site}/?q=nothing%3D1")
    assert answer.status == 400
    assert "nothing" in shown.page.locator("main").inner_text()
    assert shown.barriers() == []
    shown.wrong.clear()  # Chromium calls each answer of 400 an error


@pytest.fixture(scope="module")
def hostile_site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    for name, text in {"markup": ATTACK, "long": LONG}.items():
        for golden in ("sampled", "distilbert"):
            path = folder / f"{name}-{golden}"
            path.mkdir()
            record.write(hostile(f"record_{golden}.json", text=text, run_id=path.name), path)
    with served(folder) as address:
        yield address


def test_hostile_text_is_text_everywhere(hostile_site, visit):
    shown = visit(hostile_site).open("/")
    found = shown.page.evaluate(
        "[...document.querySelectorAll('main a')].map(link => link.getAttribute('href'))"
    )
    runs = sorted({link.partition("/runs/")[2] for link in found if link.startswith("/runs/")})
    assert len(runs) == 4
    pages = ["/", "/references", *(f"/runs/{run}" for run in runs)]
    pages += [f"/compare?run={run}&run={runs[0]}" for run in runs[1:]]
    for address in pages:
        shown.open(address)
        assert shown.attacked() == [], address
        assert shown.overflow() == [], address
    assert shown.wrong == []
    for address in {link for link in found if link.startswith("/cases/")}:
        shown.open(address)
        assert shown.attacked() == [], address
    # A case whose name has thousands of letters has no page.
    shown.wrong = [said for said in shown.wrong if "status of 40" not in said]
    assert visit(hostile_site, width=360).open("/").overflow() == []


@pytest.mark.parametrize("width", [1280, 2560])
def test_no_column_of_the_list_is_hidden_on_a_wide_screen(opened, width):
    box = opened(PAGES["list"], width=width).page.locator("div.scroll:has(table.runs)")
    assert box.evaluate("box => box.scrollWidth - box.clientWidth") == 0


@pytest.mark.parametrize("name", ["list", "case", "run", "compare"])
def test_a_page_looks_as_it_did(opened, tmp_path, name):
    shown = opened(PAGES[name], **HALF)
    drawn(shown)
    check_shot(f"site-{name}", shot(shown), tmp_path)


def test_the_site_of_plain_files_is_read_and_searched(runs, visit, tmp_path):
    database = Database(str(runs))
    Index(database).refresh()
    write_site(database, tmp_path / "public")
    with plain_files(tmp_path / "public") as address:
        shown = visit(address).open("/index.html")
        shown.page.fill("input[name=q]", "two-ranks")
        shown.page.keyboard.press("Enter")
        found = shown.page.locator("table.runs tbody tr:visible th a")
        shown.page.wait_for_function(
            "document.querySelectorAll('table.runs tbody tr:not([hidden])').length === 1"
        )
        assert found.all_inner_texts() == ["two-ranks"]
        heads = json.loads((tmp_path / "public" / "index.json").read_bytes())["heads"]
        columns = shown.page.locator("table.runs thead th")
        keys = columns.evaluate_all("heads => heads.map(head => head.dataset.key)")
        assert columns.all_text_contents() == [heads[key] for key in keys]
        found.click()
        shown.page.wait_for_url("**/runs/two-ranks.html")
        assert shown.page.locator("figure.chart .drawing svg").first.is_visible()
        shown.page.locator("header a[hreflang=zh-Hans]").click()
        shown.page.wait_for_url("**/zh/runs/two-ranks.html")
        assert shown.overflow() == []
        shown.page.wait_for_load_state("networkidle")  # the icon, too, before the host ends
