"""Pages of a store: what they show, what they link to, and hostile records as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from store_bodies import document, write
from trainmark.errors import RecordError, UsageError
from trainmark.library.store.database import Database
from trainmark.library.store.index import Index
from trainmark.pages.charts import drawing, intervals
from trainmark.pages.site import cases, reading, rendering, views
from trainmark.pages.site.links import Links
from trainmark.pages.texts import say, t

LIVE, CHINESE = Links(), Links(lang="zh")
HOSTILE = "<script>alert(1)</script>\"'&</title>\u202e{{7*7}}"


class Reader(HTMLParser):
    """Collects elements, their attributes, and text; fails where they are not nested."""

    VOID = ("meta", "link", "input", "br")

    def __init__(self, page):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def found(self, tag, **attrs):
        return [
            given for name, given in self.elements
            if name == tag and all(given.get(key) == value for key, value in attrs.items())
        ]  # fmt: skip


def store(folder, *documents):
    for place, made in documents:
        write(folder / place, made)
    index = Index(Database(str(folder)))
    index.refresh()
    return index.database


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    runs = [
        (f"r{number:03}", document(
            f"run-{number:03}", plan__case=("toy", "gpt")[number % 2],
            started=f"2026-11-01T{number // 60:02}:{number % 60:02}:00+00:00",
            figures={"p_train": 100.0 + number},
        ))
        for number in range(120)
    ]  # fmt: skip
    return store(tmp_path_factory.mktemp("many"), *runs)


def test_the_list_has_the_newest_runs_and_pages(many):
    page = Reader(views.list_page(many, links=LIVE))
    ticks = [found["value"] for found in page.found("input", name="run")]
    assert ticks == [f"run-{number:03}" for number in range(119, 69, -1)]
    assert page.found("a", href="/runs/run-119")
    assert page.found("a", href="/?page=3")
    assert [found["href"] for found in page.found("a", **{"aria-current": "page"})] == ["/", "/"]
    assert page.found("a", href="/?sort=started_utc")
    assert page.found("a", href="/?sort=-p_train")
    last = Reader(views.list_page(many, page=3, links=CHINESE))
    assert [x["value"] for x in last.found("input", name="run")][-1] == "run-000"
    assert last.found("html", lang="zh-Hans")
    with pytest.raises(UsageError, match="no page 4"):
        views.list_page(many, page=4, links=LIVE)


def test_the_list_keeps_filters_in_its_form_and_links(many):
    page = Reader(views.list_page(many, ["case=toy", "p_train>150"], sort="-p_train", links=LIVE))
    assert len(page.found("input", name="run")) == 34
    assert page.found("option", value="toy", selected=None)
    assert page.found("input", name="q", value="'p_train>150'")
    assert page.found("input", name="sort", value="-p_train")
    assert page.found("th", **{"data-key": "p_train", "aria-sort": "descending"})
    assert page.found(
        "a",
        href="/api/runs.csv?filter=kind%3Drecord&filter=case%3Dtoy"
        "&filter=p_train%3E150&sort=-p_train",
    )
    with pytest.raises(UsageError, match="unknown key"):
        views.list_page(many, ["p_cor>1"], links=LIVE)


def test_a_filter_that_nothing_meets_says_so(many):
    page = Reader(views.list_page(many, ["text~nothing"], links=LIVE))
    assert "No run meets all filters." in page.texts
    assert page.found("a", href="/", **{"class": "clear"})


def test_a_run_links_its_launches_data_and_work(tmp_path):
    one, two = (document(f"s-{number}", plan__repeat_index=number) for number in (1, 2))
    opened = store(tmp_path, ("s/r1", one), ("s/r2", two), ("t", document("t")))
    page = Reader(views.run_page(opened, "s-2", links=LIVE, bundled=True))
    addresses = [found["href"] for found in page.found("a")]
    assert [address for address in addresses if "/s-" in address] == [
        "/runs/s-2?lang=en", "/runs/s-2?lang=zh", "/runs/s-1", "/runs/s-2",
        "/api/runs/s-2/record.json", "/api/runs/s-2", "/api/runs/s-2/bundle",
    ]  # fmt: skip
    assert any(re.fullmatch(r"/\?q=work%3D[0-9a-f]{16}", address) for address in addresses)
    alone = views.run_page(opened, "t", links=CHINESE)
    assert "/bundle" not in alone
    assert "launches" not in alone
    with pytest.raises(RecordError, match="no such run"):
        views.run_page(opened, "u", links=LIVE)


def test_hostile_text_of_a_record_is_text(tmp_path):
    made = document(
        HOSTILE, plan__case=HOSTILE, plan__recipe_name=HOSTILE, labels=[HOSTILE],
        plan__device__product_names=[HOSTILE], environment__devices=[{"name": HOSTILE}] * 2,
        case_key=HOSTILE, environment__machine=HOSTILE,
    )  # fmt: skip
    opened = store(tmp_path, ("x", made), ("y", made | {"run_id": HOSTILE + "y"}))
    [[run_id, case], [other, _]] = views.listing(opened, columns=["run_id", "case"]).rows
    pages = [
        views.list_page(opened, [f"text~{HOSTILE}"], links=LIVE),
        views.list_page(opened, links=CHINESE),
        views.run_page(opened, run_id, links=LIVE),
        views.case_page(opened, case, links=LIVE),
        views.compare_page(opened, [run_id, other], allow=["case"], links=LIVE),
        views.error_page(UsageError(HOSTILE, where=HOSTILE, rule=HOSTILE), LIVE),
    ]
    for page in pages:
        found = Reader(page)
        scripts = found.found("script")
        assert all(given.get("src") or given["type"] == "application/json" for given in scripts)
        assert not any(name.startswith("on") or name == "style"
                       for _, given in found.elements for name in given)  # fmt: skip
        assert "\u202e" not in page
        assert "{{7*7}}" in "".join(found.texts)


def test_files_of_the_pages():
    assert "--paper:" in rendering.file("site.css")
    assert ".filters" in rendering.file("site.css")
    assert "localStorage" in rendering.file("site.js")
    with pytest.raises(UsageError, match="no file"):
        rendering.file("../links.py")


def test_a_case_has_its_best_runs_and_steps_over_time(tmp_path):
    runs = [
        (f"{number:02}", document(
            f"run-{number:02}", started=f"2026-11-{number + 1:02}T00:00:00+00:00",
            plan__recipe_name="tiny", trust={"grade": "usable", "reasons": []},
            figures={"p_train": (100.0 if number < 10 else 150.0) + number % 3, "power": 300.0},
            status="failed" if number == 19 else "passed",
            cause={"kind": "error", "message": {"code": "x", "args": {}}} if number == 19 else None,
        ))
        for number in range(20)
    ]  # fmt: skip
    opened = store(tmp_path, *runs)
    case = views.listing(opened, columns=["case"], limit=1).rows[0][0]
    page = Reader(views.case_page(opened, case, links=LIVE))
    assert [found["aria-label"] for found in page.found("a") if "aria-label" in found] == ["run-17"]
    assert any("19 of 20 runs" in line for line in page.texts)
    assert "2026-11-11 +49.5%" in page.texts
    figures = [found["id"] for found in page.found("figure", **{"class": "chart"})]
    assert figures == [f"chart-{name}" for name in ("history", "mem", "power", "mfu")]
    assert page.found("a", href=f"/references/{case}")
    with pytest.raises(RecordError, match="no run of this case"):
        views.case_page(opened, "none", links=LIVE)


def test_series_of_a_case_stand_in_the_order_of_their_names(tmp_path):
    precisions = ("tf32", "bf16", "tf32", "fp32", "tf32", "fp32")  # the commonest sorts last
    runs = [
        (str(number), document(
            f"run-{number}", started=f"2026-11-{number + 1:02}T00:00:00+00:00",
            plan__recipe__precision=precision, figures={"p_train": 100.0},
        ))
        for number, precision in enumerate(precisions)
    ]  # fmt: skip
    (over_time, _) = cases.sections(store(tmp_path, *runs), [*cases.GOOD])
    (chart,) = over_time.blocks
    assert [(row[0], row[1]) for row in chart.table.rows] == [
        ("bf16", "1"), ("fp32", "2"), ("tf32", "3"),
    ]  # fmt: skip


def test_the_axis_of_time_has_24_hours_and_no_english_months():
    for until, expected in (("2026-11-22T16:30:00", "15:00"), ("2027-08-31T00:00:00", "2026-12")):
        runs = [("2026-11-22T13:30:00+00:00", 1.0), (f"{until}+00:00", 2.0)]
        drawn = drawing.svg(intervals.history({"A": runs}, {"A": ()}, "p_train"), "zh")
        labels = re.findall(r">([^<>]+)</text>", drawn)
        assert expected in labels
        assert not any(re.search("[AP]M|Nov|Dec|Jan", label) for label in labels)


def test_a_case_without_quotable_runs_shows_those_that_passed_and_says_so(tmp_path):
    doubtful = {"grade": "do_not_quote", "reasons": []}
    fast = {"p_train": 100.0}
    failed = {"status": "failed", "cause": {"kind": "error", "message": {"code": "x", "args": {}}}}
    opened = store(
        tmp_path,
        ("a", document("run-a", trust=doubtful, figures=fast)),
        ("b", document("run-b", trust=doubtful, figures={"p_train": 200.0}, **failed)),
    )
    case = views.listing(opened, columns=["case"], limit=1).rows[0][0]
    page = Reader(views.case_page(opened, case, links=LIVE))
    assert [found["aria-label"] for found in page.found("a") if "aria-label" in found] == ["run-a"]
    assert page.found("figure", id="chart-history")
    assert "x2" in "".join(page.texts)  # a series' name, not a bare 1
    assert say(t("site.none_quotable"), "en") in page.texts
    write(tmp_path / "c", document("run-c", trust={"grade": "noisy", "reasons": []}, figures=fast))
    Index(opened).refresh()
    page = Reader(views.case_page(opened, case, links=LIVE))
    assert [found["aria-label"] for found in page.found("a") if "aria-label" in found] == ["run-c"]
    assert say(t("site.none_quotable"), "en") not in page.texts


def test_a_run_that_comes_while_its_case_is_read_is_shown(tmp_path, monkeypatch):
    def made(name, recipe):
        good = {"grade": "usable", "reasons": []}
        return document(name, plan__recipe_name=recipe, trust=good, figures={"p_train": 100.0})

    opened = store(tmp_path, ("a", made("run-a", "tiny")))
    counted = views.counts

    def counting(*asked):
        found = counted(*asked)
        write(tmp_path / "b", made("run-b", "full"))
        Index(opened).refresh()
        return found

    case = views.listing(opened, columns=["case"], limit=1).rows[0][0]
    monkeypatch.setattr(views, "counts", counting)
    page = Reader(views.case_page(opened, case, links=LIVE))
    best = [found["aria-label"] for found in page.found("a") if "aria-label" in found]
    assert sorted(best) == ["run-a", "run-b"]


def test_a_run_that_is_removed_while_its_launches_are_asked_for_stands_alone(tmp_path):
    opened = store(tmp_path, ("s/r1", document("s-1", plan__repeat_index=1)))
    run = reading.stored(opened, "s-1")
    (tmp_path / "s" / "r1" / "record.json").unlink()
    Index(opened).refresh()
    assert reading.launches(opened, run) == [run]


def test_runs_side_by_side_are_compared_where_their_work_is_the_same(tmp_path):
    rates = {"a": 100.0, "b": 120.0, "c": 120.0}
    runs = [
        (f"{name}/r{number}", document(
            f"{name}{number}", plan__repeat_index=number, plan__repeat_count=5,
            plan__recipe__micro_batch_size=64 if name == "c" else 96,
            environment__driver="2" if name == "b" else "1",
            figures={"p_train": rate * (1 + number / 1000)},
        ))
        for name, rate in rates.items() for number in range(1, 6)
    ]  # fmt: skip
    opened = store(tmp_path, *runs)
    told = views.compare_page(opened, ["a1", "b3", "c2"], links=LIVE)
    page = Reader(told)
    assert [found["id"] for found in page.found("section")] == [
        "differ-environment", "differ-recipe", "differ-work", "figures",
    ]  # fmt: skip
    assert "1.200 (1.195 – 1.205) faster" in page.texts or "1.200" in told
    grades = [one for one in page.found("p") if one.get("class") in ("good", "warn", "bad")]
    assert [one["class"] for one in grades[:3]] == ["bad", "bad", "bad"]  # of each side's trust
    refusal = "C did other work than A and is not compared with it. What differs: micro_batch_size"
    assert refusal in page.texts
    more = "/compare?run=a1&run=b3&run=c2&allow=micro_batch_size"
    assert page.found("a", href=more)
    assert page.found("a", href="/compare?run=b3&run=a1&run=c2")
    allowed = Reader(
        views.compare_page(opened, ["a1", "b3", "c2"], allow=["micro_batch_size"], links=LIVE)
    )
    assert refusal not in allowed.texts
    assert "Compared although the work differs in: micro_batch_size" in allowed.texts
    apart = Reader(views.compare_page(opened, ["a1", "a2"], links=CHINESE))
    assert "未见差异。" in apart.texts
    for chosen in (["a1"], ["a1", "a1"], [f"{name}{n}" for name in "ab" for n in range(1, 5)]):
        with pytest.raises(UsageError, match="runs"):
            views.compare_page(opened, chosen, links=LIVE)


def test_published_rows_stand_with_what_the_audit_finds():
    cards = Reader(views.references_page(links=LIVE))
    assert cards.found("a", href="/references/dlrm_criteo")
    assert "6 rows" in cards.texts
    assert "error 6" in cards.texts
    page = Reader(views.references_page("dlrm_criteo", links=CHINESE))
    assert len(page.found("a", href="#row-1")) == 2
    assert page.found("tr", id="row-6")
    assert "145088266" in page.texts
    page = Reader(views.references_page("distilbert_sst2", links=LIVE))
    (other,) = (line for line in page.texts if "as many here as in line" in line)
    assert page.found("tr", id="row-" + re.search(r"in line (\d+)", other)[1])
    with pytest.raises(UsageError):
        views.references_page("no_such_case", links=LIVE)
