"""The results site in Chromium, from a server's process: read, filtered, compared, taken away."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from engines.browser import WIDTHS, click_folds, unfold
from engines.site_server import serve_plain_files, wait_for_pages
from support.many_records import DEVICES, REPEATS, write_runs
from support.server_process import Server
from trainmark.errors import UsageError
from trainmark.pages.site.writing import write_site
from trainmark.results.store.index import Index
from trainmark.results.store.query import list_runs

CJK = re.compile(r"[\u4e00-\u9fff]")
PAGES = {  # of runs that ``write_runs`` makes
    "list": "/",
    "case": "/cases/distilbert_sst2.html",
    "run": "/runs/eight-ranks.html",
    "failed": "/runs/failed.html",
    "compare": "/compare?run=bert-0-tf32-1&run=bert-1-tf32-1&run=bert-2-bf16-1",
    "compared": "/compare?run=two-ranks&run=eight-ranks&allow=ran_world",
}
nightly = pytest.mark.nightly


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with made-up runs.

    ``REPEATS`` runs for each of ``DEVICES`` in each precision, a failed one, and runs of two and of
    eight ranks.

    There are three devices, and four runs of each in bf16 and in TF32.
    """
    folder = tmp_path_factory.mktemp("store") / "runs"
    folder.mkdir()
    write_runs(folder)
    return folder


@pytest.fixture(scope="module")
def site(runs):
    """Return the address of a server of the runs, whose pages are written."""
    server = Server(runs.parent)
    try:
        wait_for_pages(server.address)
        yield server.address.rstrip("/")
    finally:
        server.kill()


@pytest.fixture
def open_page(site, visit):
    """Return a function that opens a page of the site; ``window``: as ``visit`` takes them."""

    def open_address(address, **window):
        return visit(site, **window).open(address)

    return open_address


def find_visible_rows(window):
    """Return a locator of the rows that the list of runs shows."""
    return window.page.locator("table.runs tbody tr:visible")


def wait_for_rows(window, count):
    """Wait until the list shows so many runs."""
    counts = f"document.querySelectorAll('table.runs tbody tr:not([hidden])').length === {count}"
    window.page.wait_for_function(counts)


@pytest.mark.parametrize(
    ("lang", "dark"),
    [
        ("en", False),
        pytest.param("en", True, marks=nightly),
        pytest.param("zh", False, marks=nightly),
        ("zh", True),
    ],
)
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_accessibility_violation(open_page, name, dark, lang):
    """No page of the site, light or dark, hinders people with disabilities.

    ``PAGES`` has the address of each kind of page: the list of runs, a case, a run, a failed run
    and two comparisons. Pages in Chinese have addresses below /zh; ``CJK`` finds a Chinese
    character. ``nightly`` marks tests that are run at night only.
    """
    window = open_page(PAGES[name] if lang == "en" else f"/{lang}{PAGES[name]}", dark=dark)
    assert window.list_barriers() == []
    assert window.page.locator("html").get_attribute("lang").startswith(lang)
    if lang == "zh":
        assert CJK.search(window.page.locator("main").inner_text())


@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_every_width(open_page, name):
    # ``PAGES`` has the address of one page of each kind. ``WIDTHS`` are 360 to 2560 pixels, from a
    # phone to a large screen. ``list_overflowing_elements`` returns what reaches beyond the right
    # edge of the page.
    window = open_page(PAGES[name])
    for width in WIDTHS:
        window.page.set_viewport_size({"width": width, "height": 900})
        assert window.list_overflowing_elements() == [], width


def test_filters_are_part_of_the_address_and_can_be_cleared(site, open_page):
    """Filters chosen on the page become a query of its address, which filters it again.

    ``DEVICES[1]`` is an H100; of each device there are ``REPEATS`` runs, 4, in each precision.
    ``find_visible_rows`` finds the rows of the list that are shown.
    """
    window = open_page("/")
    num_all_runs = find_visible_rows(window).count()
    window.page.select_option("select[name=precision]", "bf16")
    window.page.select_option("select[name=device]", DEVICES[1])
    window.page.wait_for_url("**device=*")
    query = parse_qs(urlsplit(window.page.url).query)
    assert (query["precision"], query["device"]) == (["bf16"], [DEVICES[1]])
    # Each device has as many runs in each precision.
    assert find_visible_rows(window).count() == REPEATS < num_all_runs
    other_window = open_page(window.page.url)  # what somebody else sees who gets the address
    wait_for_rows(other_window, REPEATS)
    assert (
        find_visible_rows(other_window).all_inner_texts()
        == find_visible_rows(window).all_inner_texts()
    )
    window.page.locator("a.clear").click()
    window.page.wait_for_url(site + "/index.html")
    assert find_visible_rows(window).count() == num_all_runs


@pytest.mark.parametrize(
    "condition",
    [
        "=2026",
        "!=2026-11-12",
        "<=2026-11-12",
        ">2026-11-12T07",
        "=2026-11-12T08:00Z",
        "=2026-11-12T08:00:01",
        "=2026-11-12T16:00+08:00",
        "<2026-11-12T15:59+08:00",
        "<2026-11-12T16:01+08:00",
        "<=2026-11-12T16:00+08:00",
        ">2026-11-12T03:30-04:30",
        ">=2026-11-12T03:30-04:30",
        "~11-12",
        # Not dates.
        "=2026-11-1",
        "!=2026-02-30",
        "<2026-13",
        "<2026-11-12T24",
        ">=2026-11-12T08:00+24:00",
        ">=2026-11Z",
        "!=soon",
    ],
)
def test_start_times_are_filtered_as_on_the_command_line(open_page, runs, condition):
    """``list_runs`` is the list that ``trainmark results`` prints; a text that is no date fails it.

    The made-up runs started at 08:00 UTC on several days of November 2026.
    """
    database = Index(str(runs))
    database.refresh()
    word = f"started_utc{condition}"
    window = open_page("/")
    window.page.locator("input[name=q]").fill(word)
    window.page.keyboard.press("Enter")
    num_shown, why = find_visible_rows(window).count(), window.page.locator(".why")
    try:
        assert num_shown == list_runs(database, [word]).total
    except UsageError:
        assert num_shown == 0
        assert "started_utc must be compared with a date" in why.inner_text()
    else:
        assert "must be compared with a date" not in why.text_content()


def test_filter_without_matches_explains_why(open_page):
    window = open_page("/")
    search, why = window.page.locator("input[name=q]"), window.page.locator(".why")

    def filter_rows(text):
        """Type a filter; return how many runs the list then shows."""
        search.fill(text)
        window.page.keyboard.press("Enter")
        return find_visible_rows(window).count()

    num_all_runs = find_visible_rows(window).count()
    assert 0 < filter_rows("p_core>1000") < num_all_runs
    assert why.is_hidden()
    assert filter_rows("device~H100 precision=bf16") == REPEATS  # of this device, in this precision
    # A date stands for its whole day: one run of each device in each of two precisions.
    assert filter_rows("started_utc=2026-11-12") == 2 * len(DEVICES)
    assert filter_rows("started_utc>2026-11-11 started_utc<=2026-11-12") == 2 * len(DEVICES)
    # Filters that match nothing: values out of range, a column that does not exist, a text where a
    # number is needed, a value that no run has.
    assert filter_rows("p_core>5000000") == 0
    # p_core is a run's throughput. In ``write_runs`` it is 400 + 1 for the first run of the first
    # device in TF32; 2,048 is that of the run of eight ranks, 8,192 samples in 4 s.
    # The slowest and the fastest of the made-up runs.
    assert "p_core is between 401 and 2,048 samples/s" in why.inner_text()
    assert filter_rows("p_corr>5000") == 0
    assert "has no column p_corr" in why.inner_text()
    assert filter_rows("p_core>fast") == 0
    assert "compared with a number in samples/s" in why.inner_text()
    assert filter_rows("precision=fp64") == 0
    assert "values of precision in this list: bf16, fp32, tf32" in why.inner_text()
    assert filter_rows("") == num_all_runs
    assert why.is_hidden()


def test_report_header_is_distinct_from_the_site_header(open_page):
    # ``PAGES["run"]`` is the page of a run: the site's head, "header.top", above the report, whose
    # own head is ".title-row". ``style`` returns background, width of the line below, and display
    # of an element.
    window = open_page(PAGES["run"])
    style = """name => (({backgroundColor, borderBottomWidth, display}) =>
        [backgroundColor, borderBottomWidth, display])(
            getComputedStyle(document.querySelector(name)))"""
    # The report's head has no background and no line; the site's head has a line below it.
    title = window.page.evaluate(style, ".title-row")
    assert title == ["rgba(0, 0, 0, 0)", "0px", "block"]
    assert window.page.evaluate(style, "header.top")[1] == "1px"


def test_missing_page_is_shown_in_the_language_of_its_address(site, visit):
    for path, heading in (("/runs/gone.html", "Page not found"), ("/zh/a/b", "页面不存在")):
        window = visit(site)
        with window.expecting_errors():  # the browser reports the answer 404
            window.open(path)
        assert window.page.locator("h1").inner_text() == heading
        # The page has its style: without one a browser has a margin of 8 pixels.
        assert window.page.evaluate("getComputedStyle(document.body).margin") == "0px"
        window.page.locator("main p a").click()
        window.page.wait_for_url("**/index.html")


def test_selected_runs_are_compared_side_by_side(open_page):
    # "/" is the list of runs, each row with a box to select it. The button is enabled by two boxes.
    # The address of the comparison has the names of both runs. Its page begins with a table with a
    # row for each, which has the letter by which the page names it.
    window = open_page("/")
    button = window.page.locator(".compare button")
    assert button.is_disabled()
    for index in range(2):
        find_visible_rows(window).nth(index).locator("input").check()
    button.click()
    window.page.wait_for_url("**/compare?*")
    compared_runs = parse_qs(urlsplit(window.page.url).query)["run"]
    assert len(compared_runs) == 2
    assert window.page.locator("h1").inner_text() == "Side by side"
    rows = window.page.locator("main table").first.locator("tbody tr").all()
    cells = [row.locator("th, td").all_inner_texts()[:2] for row in rows]
    assert cells == [["A", compared_runs[0]], ["B", compared_runs[1]]]


def test_language_and_theme_are_switched_and_kept(open_page):
    # The page of a run, in English and with the light theme. ``color`` returns its background;
    # ``CJK`` finds a Chinese character. The theme is kept on the next page, and the language on the
    # one after it.
    window = open_page("/runs/two-ranks.html")
    color = "getComputedStyle(document.body).backgroundColor"
    light = window.page.evaluate(color)
    window.page.locator("label[for=theme-dark]").click()
    dark = window.page.evaluate(color)
    window.page.locator("header a[hreflang=zh-Hans]").click()
    window.page.wait_for_url("**/zh/runs/two-ranks.html")
    assert window.page.evaluate(color) == dark != light
    assert window.page.locator("html").get_attribute("lang") == "zh-Hans"
    assert CJK.search(window.page.locator("h1").first.inner_text())
    window.page.locator("header a.brand").click()  # to the list of all runs
    assert window.page.locator("html").get_attribute("lang") == "zh-Hans"


def test_runs_of_other_work_are_compared_by_a_link_that_names_the_differences(open_page):
    """Runs of 2 and of 8 ranks are compared only if the reader follows a link that says so.

    The link adds "allow=ran_world" to the address: the number of ranks may differ.
    """
    window = open_page("/compare?run=two-ranks&run=eight-ranks", width=360)
    window.page.get_by_role(
        "link", name="Compare despite these differences: nodes x devices"
    ).click()
    window.page.wait_for_url("**&allow=ran_world")
    # The charts of the figures' ratios and of the losses of both sides, on a phone (360 px).
    for name in ("ratios", "sides-loss"):
        chart = window.page.locator(f"#chart-{name}")
        chart.scroll_into_view_if_needed()  # it is drawn when it is seen
        chart.locator(".drawing svg").wait_for()


@pytest.mark.parametrize("name", ["case", "compared"])
def test_charts_are_not_cropped_on_a_phone(open_page, name):
    # ``PAGES`` has the address of a page of each kind, here those of a case and of a comparison. A
    # phone has 360 pixels.
    window = open_page(PAGES[name], width=360)
    window.page.locator(".drawing svg").first.wait_for()
    # Texts that reach beyond the right edge of their chart, or were shortened.
    cut = """[...document.querySelectorAll(".drawing svg")].flatMap(svg => [...svg.querySelectorAll(
        "text")].filter(x => x.getBoundingClientRect().right > svg.getBoundingClientRect().right + 1
        || x.textContent.endsWith("…")).map(x => x.textContent))"""
    assert window.page.evaluate(cut) == []


@pytest.mark.parametrize("name", ["list", "run", "compared"])
def test_site_is_readable_without_scripts(open_page, name):
    # ``PAGES`` has the address of a page of each kind. Without scripts charts are images, each with
    # its values in a folded table. ``click_folds`` opens the folded sections around them.
    window = open_page(PAGES[name], java_script_enabled=False)
    assert window.page.locator("h1").count() == 1
    click_folds(window)
    charts = window.page.locator("figure.chart:has(summary)").all()
    assert bool(charts) == (name != "list")  # the list of runs has no chart
    for chart in charts:
        chart.locator("summary").click()
        assert chart.locator("table").is_visible()


def test_static_site_is_readable_and_searchable(runs, visit, tmp_path):
    # ``runs`` is a folder with 27 made-up runs, one of them "two-ranks". ``write_site`` writes the
    # pages as files, which a plain web host serves here, without the program.
    database = Index(str(runs))
    database.refresh()
    write_site(database, tmp_path / "public")
    with serve_plain_files(tmp_path / "public") as address:
        window = visit(address).open("/index.html")
        window.page.fill("input[name=q]", "two-ranks")
        window.page.keyboard.press("Enter")
        wait_for_rows(window, count=1)
        links = window.page.locator("table.runs tbody tr:visible th a")
        assert links.get_attribute("href") == "runs/two-ranks.html"
        links.click()
        window.page.wait_for_url("**/runs/two-ranks.html")
        unfold(window)
        assert window.page.locator("figure.chart .drawing svg").first.is_visible()
        window.page.locator("header a[hreflang=zh-Hans]").click()
        window.page.wait_for_url("**/zh/runs/two-ranks.html")
        assert window.list_overflowing_elements() == []
        window.page.close()  # otherwise the icon might be requested after the host has ended
