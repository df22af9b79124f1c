"""The site of a store: links, contents of pages, and hostile records as text."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from support.document_texts import Reader
from support.store_bodies import make_document, write_record_file
from trainmark.errors import UsageError
from trainmark.pages import rendering
from trainmark.pages.site import lists, rows, views, writing
from trainmark.pages.site.launches import PAGE_COLUMNS, get_speed
from trainmark.pages.site.views import Links, make_safe_file_name
from trainmark.results.store.index import Index
from trainmark.results.store.query import list_runs

HOSTILE = "<script>alert(1)</script>\"'&</title>\u202e{{7*7}}"
FAILED = {"status": "failed", "cause": {"kind": "error", "message": {"code": "x", "args": {}}}}


def make_index(folder, *documents):
    """Write records below ``folder`` and return their index.

    Args:
        documents: pairs of the path below ``folder`` and the record as a mapping.
    """
    for path, record_document in documents:
        write_record_file(folder / path, record_document)
    index = Index(str(folder))
    index.refresh()
    return index


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Return an index of 6 runs of 2 cases, some with hostile names, and a run of 2 launches.

    The run of two launches, ``s-1`` and ``s-2``, is of a third case and began on another day.
    ``make_document`` changes the golden record of DistilBERT: ``plan__case`` is the key ``case`` of
    its ``plan``. So the third case and the other day are those of the golden record.
    """
    monkeypatch.setattr(lists, "MAX_ROWS", 5)  # rows of a list, so that some are left out
    documents = [
        (
            str(number),
            make_document(
                f"run\x1b-{number}" if number == 5 else f"run-{number}",
                plan__case="toy" if number % 2 else "a/../b\x1b",
                figures={"p_train": 100.0 + number},
                started=f"2026-11-01T00:0{number}:00+00:00",
            ),
        )
        for number in range(6)
    ]
    documents += [
        (f"s/r{number}", make_document(f"s-{number}", plan__repeat_index=number))
        for number in (1, 2)
    ]
    return make_index(tmp_path / "runs", *documents)


def read_page(path):
    """Return the parser of a page's file: ``texts`` are its texts, others give its attributes."""
    return Reader(path.read_text(encoding="utf-8"))


def test_every_link_of_every_page_leads_to_a_file(runs, tmp_path):
    site = tmp_path / "www" / "public"
    # 8 launches: of 6 single runs and of a run with two; and pages written for them.
    assert writing.write_site(runs, site) == (8, 8)
    pages = sorted(site.rglob("*.html"))
    # In two languages: the list, 8 launches, 3 cases, and the machines.
    assert len(pages) == 2 * (1 + 8 + 3 + 1)
    for page in pages:
        reader = read_page(page)
        for address in [
            *reader.list_values("a", "href"),
            *reader.list_values("link", "href"),
            *reader.list_values("script", "src"),
        ]:
            parts = urlsplit(address)
            if parts.scheme:  # another site
                assert parts.scheme == "https"
            elif parts.path:
                assert (page.parent / unquote(parts.path)).is_file(), (page, address)
    assert json.loads((site / "runs" / "s-1.json").read_bytes())["run_id"] == "s-1"
    assert json.loads((site / "runs.json").read_bytes())["total"] == 8
    for file in (site / "runs.json", site / "runs" / "s-1.json"):
        # Paths of the machine are not published.
        assert str(tmp_path) not in file.read_text(encoding="utf-8")


def test_list_has_one_row_per_run_with_the_newest_first(runs, tmp_path):
    writing.write_site(runs, tmp_path / "site")
    first = read_page(tmp_path / "site" / "index.html")
    assert "Runs shown: 5 of 7" in first.texts  # the fixture sets 5 rows a page
    start_times = [x for x in first.texts if x.startswith("2026-11-01 00:")]
    assert start_times == sorted(start_times, reverse=True)
    # Of the single runs; the fifth row is the run of two launches, which began on another day.
    assert len(start_times) == 4
    assert first.list_values("input", "type").count("checkbox") == 0
    # Only a server can compare, so only its pages have boxes to choose runs.
    writing.write_site(runs, tmp_path / "served", served=True)
    served = Reader(gzip.decompress((tmp_path / "served/zh/index.html.gz").read_bytes()).decode())
    assert served.list_values("input", "type").count("checkbox") == 5
    assert served.list_values("form", "action") == ["compare"]


def test_launches_of_a_run_share_one_row_with_mean_and_range(tmp_path):
    documents = [
        (
            f"s/r{number}",
            make_document(f"s-{number}", plan__repeat_index=number, figures={"p_train": rate}),
        )
        for number, rate in enumerate((100.0, 130.0, 110.0), start=1)
    ]
    database = make_index(tmp_path / "runs", *documents)
    writing.write_site(database, tmp_path / "site")
    page = read_page(tmp_path / "site" / "index.html")
    # Three launches of a run. The geometric mean, and no confidence interval of so few launches.
    # The cube root of 100 x 130 x 110 is 112.7.
    assert {"112.7 samples/s ", "100.0 – 130.0 (range), 3 launches"} <= set(page.texts)
    assert not any(str(tmp_path) in text for text in page.texts)


def test_contradicted_launch_is_in_no_mean_of_a_list(tmp_path, monkeypatch):
    # The index checks each record; here, the check finds that launch 2 contradicts its evidence.
    monkeypatch.setattr(
        "trainmark.results.store.index.check_record",
        lambda record, *_, **__: record.model_copy(
            update={"verification": "contradicted" if record.run_id == "s-2" else "verified"}
        ),
    )
    documents = [
        (
            f"s/r{number}",
            make_document(f"s-{number}", plan__repeat_index=number, figures={"p_train": rate}),
        )
        for number, rate in enumerate((100.0, 1000.0, 121.0), start=1)
    ]
    all_runs = views.list_all_runs(make_index(tmp_path / "runs", *documents), PAGE_COLUMNS)
    page = Reader(lists.build_machines_page(all_runs, Links("machines.html")))
    # One run with three launches. The geometric mean of 100 and 121, without the 1000 of launch 2.
    assert any("110.0 samples/s" in text for text in page.texts)
    assert get_speed(all_runs[0]) == pytest.approx(110.0)
    assert len(all_runs[0]) == 3


def test_list_shows_a_quality_of_zero(tmp_path):
    database = make_index(tmp_path / "runs", ("r", make_document("r", quality__value=0.0)))
    writing.write_site(database, tmp_path / "site")
    texts = read_page(tmp_path / "site" / "index.html").texts
    # The value 0 must be shown with its metric, such as "0.0 acc", and not be left out as missing.
    assert any(re.fullmatch(r"0(\.0*)? \w+", text.strip()) for text in texts), texts


def test_badge_of_a_run_shows_its_status_and_trust():
    entry = {"status": "passed", "trust": "noisy", "trust_reasons": "trust_few_launches"}
    # Few launches are a reason of doubt, until there are five. The last part is the badge's tone.
    # ``_choose_badge`` takes the launches of a run, here as many equal ones as ``launches``. A
    # launch has its fields in the index; "imported" is the status of a row that others published.
    tones = [rows._choose_badge([entry] * launches)[2] for launches in (1, 5)]
    assert rows._choose_badge([entry | {"status": "imported"}])[2] == "plain"
    assert [*tones, rows._choose_badge([entry | {"trust": "do_not_quote"}])[2]] == [
        "warn",
        "good",
        "doubt",
    ]


def test_only_changed_runs_are_rebuilt_and_deleted_runs_removed(runs, tmp_path):
    # The index ``runs`` has the runs 0 to 5, each in a folder of this number and called ``run-0``
    # and so on, and a run of two launches, ``s-1`` and ``s-2``, in the folder ``s``.
    site = tmp_path / "site"
    writing.write_site(runs, site)
    page = site / "runs" / "run-1.html"
    before = page.stat().st_mtime_ns
    # A third launch of a run is new, another run is deleted.
    write_record_file(tmp_path / "runs" / "s" / "r3", make_document("s-3", plan__repeat_index=3))
    (tmp_path / "runs" / "0" / "record.json").unlink()
    runs.refresh()
    # 8 launches; 3 are drawn anew: the new one and the two of its run, which name it.
    assert writing.write_site(runs, site) == (8, 3)
    assert page.stat().st_mtime_ns == before
    assert not (site / "runs" / "run-0.html").exists()
    assert not (site / "zh" / "runs" / "run-0.html").exists()
    assert "launch 3" in read_page(site / "runs" / "s-1.html").texts


def test_folder_without_a_site_is_not_overwritten(runs, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("mine")
    # Neither a folder with other files nor a file is a site that was written before. ``runs`` is an
    # index of some runs, of which any could be written.
    for folder in (tmp_path / "mine", tmp_path / "mine" / "a.txt"):
        with pytest.raises(UsageError, match="contains no site"):
            writing.write_site(runs, folder)
    # Nothing was changed.
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["a.txt"]
    assert (tmp_path / "mine" / "a.txt").read_text() == "mine"


def test_unreadable_record_has_a_page_with_the_error(runs, tmp_path):
    # The index ``runs`` already has run 1 in the folder of this name; its record is now damaged.
    (tmp_path / "runs" / "1" / "record.json").write_text("{}", encoding="utf-8")
    writing.write_site(runs, tmp_path / "site")
    assert "This request cannot be answered" in read_page(tmp_path / "site/runs/run-1.html").texts


@pytest.mark.parametrize("served", [False, True])
def test_hostile_text_of_a_record_stays_text(tmp_path, served):
    # ``HOSTILE`` has a script, quotes, the end of a title, a character that reverses the direction
    # of writing (U+202E) and ``{{7*7}}``, of which a template engine would make 49.
    # ``make_document`` puts it into these fields of the golden record, and makes it the run's id.
    hostile_document = make_document(
        HOSTILE,
        plan__case=HOSTILE,
        plan__about__title={"en": HOSTILE, "zh": HOSTILE},
        plan__recipe_name=HOSTILE,
        plan__device__product_names=[HOSTILE, HOSTILE],
        environment__devices=[{"name": HOSTILE}],
        environment__driver=HOSTILE,
    )
    database = make_index(tmp_path / "runs", ("a", hostile_document))
    writing.write_site(database, tmp_path / "site", served=served)
    # The pages of a server are compressed.
    pages = sorted((tmp_path / "site").rglob("*.html.gz" if served else "*.html"))
    # In two languages: the list, the machines, the case and the run.
    assert len(pages) == 2 * 4
    for page in pages:
        data = page.read_bytes()
        text = (gzip.decompress(data) if served else data).decode()
        assert "<script>alert" not in text
        assert "\u202e" not in text
        # Each place that shows the text shows its template too, which so was not evaluated.
        assert text.count("{{7*7}}") == text.count("alert(1)") > 0


def test_case_page_shows_speed_by_machine_and_changes_with_commits(tmp_path, monkeypatch):
    # These records have no evidence, and one without may not be quoted.
    monkeypatch.setattr(
        "trainmark.results.store.index.check_record", lambda record, *_, **__: record
    )
    runs = [
        (
            f"{device}{number:02}",
            make_document(
                f"run-{device.lower()}-{number:02}",
                started=f"2026-11-{number + 1:02}T00:00:00+00:00",
                trust={"grade": "usable", "reasons": []},
                environment__devices=[{"name": device}] * 8,
                plan__device__product_names=[device] * 8,
                environment__commit="old" if number < 10 else "new",
                figures={"p_train": (100.0 if number < 10 else 150.0) + number % 3},
                **(FAILED if number == 19 else {}),
            ),
        )
        for device in ("H100", "H200")
        for number in range(20)
    ]
    database = make_index(tmp_path, *runs)
    # Two machines with 20 nightly runs each: from the eleventh (number 10) on, half as fast again;
    # the last failed (``FAILED``: its status and a cause). The ten before the change have 100, 101
    # or 102 samples/s, the nine after it 150, 151 or 152.
    case = runs[0][1]["plan"]["case"]
    page = Reader(
        lists.build_case_page(
            views.list_all_runs(database, PAGE_COLUMNS), case, Links("cases/x.html")
        )
    )
    assert "../runs/run-h100-17.html" in page.list_values("a", "href")
    assert page.texts.count("122.1") == 2  # geometric mean of a machine's 19 passed launches
    positions = [page.texts.index(x) for x in ("machine", "precision", "ranks", "speed, samples/s")]
    assert positions == sorted(positions)  # columns in this order
    assert "case" not in page.texts  # the column would have one value only
    assert page.texts.count("H100") > 19  # rows of the history name what differs: the device
    # The text of a confidence interval, with the number of launches that passed.
    assert any(text.endswith("(95%), 19 launches") for text in page.texts)
    words = [text for text in page.texts if text.strip()]
    # The median is 101 samples/s before the change and 151 after it, 49.5% more. In the row of the
    # change are also the night and the commit.
    change = words.index("+49.5%")
    night, commit = words[change - 3], words[change + 1]
    assert (night, commit) == ("2026-11-11 00:00", "new")
    assert page.list_values("figure", "id") == ["chart-history"]
    assert {"H100", "H200"} <= set(page.texts)


def test_all_machines_are_listed_with_time_to_target_and_speed(tmp_path):
    runs = [
        (
            device + case,
            make_document(
                f"{device.lower()}-{case}",
                plan__case=case,
                environment__devices=[{"name": device}] * 8,
                plan__device__product_names=[device] * 8,
                quality__reached=case == "a",
                figures={"p_train": 100.0, "e2e_time": 90.0, "power": 50.0},
            ),
        )
        for device, case in (("H100", "a"), ("H100", "b"), ("H200", "a"))
    ]
    all_runs = views.list_all_runs(make_index(tmp_path, *runs), PAGE_COLUMNS)
    page = Reader(lists.build_machines_page(all_runs, Links("machines.html")))
    # Case a reached its target on both machines, case b did not. So of a, the time to the target
    # (``e2e_time``) is listed with the speed, of b only the speed. These records have no evidence,
    # so none may be quoted.
    assert page.texts.count("90.0 s · 100.0 samples/s [not to be quoted]") == 2
    assert "100.0 samples/s [not to be quoted]" in page.texts
    assert {"cases/a.html", "cases/b.html", "runs/h100-a.html"} <= set(
        page.list_values("a", "href")
    )
    bars = Reader(lists.build_case_page(all_runs, "a", Links("cases/a.html")))
    # The case's own page compares machines by speed, power and their quotient.
    assert "100.0 samples/s · 50 W · 2.000 samples/s/W" in bars.texts
    assert "1 launch" in bars.texts


def test_quotable_run_hides_no_other_machine(tmp_path, monkeypatch):
    # These records have no evidence, and one without may not be quoted.
    monkeypatch.setattr(
        "trainmark.results.store.index.check_record", lambda record, *_, **__: record
    )
    runs = [
        (
            device,
            make_document(
                device.lower(),
                environment__devices=[{"name": device}] * 8,
                plan__device__product_names=[device] * 8,
                trust={"grade": grade, "reasons": []},
                figures={"p_train": 1180.6},
            ),
        )
        for device, grade in (("H100", "usable"), ("A100", "do_not_quote"))
    ]
    # ``list_all_runs`` returns the rows of all runs; the page links to the run shown for a machine.
    # 1180.6 is shown as 1,181.
    all_runs = views.list_all_runs(make_index(tmp_path, *runs), PAGE_COLUMNS)
    page = Reader(lists.build_machines_page(all_runs, Links("machines.html")))
    # The A100's run may not be quoted, but is the only one of that machine.
    assert {"runs/h100.html", "runs/a100.html"} <= set(page.list_values("a", "href"))
    assert any("1,181 samples/s" in text for text in page.texts)


def test_a_case_without_quotable_runs_shows_those_that_passed(tmp_path):
    doubtful = {"grade": "do_not_quote", "reasons": []}
    # Run b, the faster one, failed: ``FAILED`` is such a status and a cause. Both runs are of the
    # golden record's case, which is read below from the first launch of the first run.
    database = make_index(
        tmp_path,
        ("a", make_document("run-a", trust=doubtful, figures={"p_train": 100.0})),
        ("b", make_document("run-b", trust=doubtful, figures={"p_train": 200.0}, **FAILED)),
    )
    all_runs = views.list_all_runs(database, PAGE_COLUMNS)
    page = Reader(lists.build_case_page(all_runs, all_runs[0][0]["case"], Links("cases/x.html")))
    assert "../runs/run-a.html" in page.list_values("a", "href")
    assert "../runs/run-b.html" not in page.list_values("a", "href")
    assert "not to be quoted" in page.texts


@pytest.fixture
def three_runs(tmp_path, monkeypatch):
    """Return an index of the runs a, b and c of five launches each, such as ``a1`` to ``a5``.

    b is 1.2 times as fast as a, on another driver; c has another batch size, so it is other work.
    The launches of a run differ by a thousandth each, as real ones never are quite equal.
    Of the throughputs only p_train is known: the others would be equal in all runs, as each is a
    copy of the golden record.
    """
    # These records have no evidence that could be checked.
    monkeypatch.setattr("trainmark.pages.site.views.check_record", lambda record, *_, **__: record)
    rates = {"a": 100.0, "b": 120.0, "c": 120.0}
    runs = [
        (
            f"{side}/r{number}",
            make_document(
                f"{side}{number}",
                plan__repeat_index=number,
                plan__repeat_count=5,
                plan__recipe__micro_batch_size=64 if side == "c" else 96,
                environment__driver="2" if side == "b" else "1",
                figures={"p_train": rate * (1 + number / 1000), "p_whole": None, "p_core": None},
            ),
        )
        for side, rate in rates.items()
        for number in range(1, 6)
    ]
    return make_index(tmp_path, *runs)


def test_selected_runs_of_the_same_work_are_compared(three_runs):
    # One launch chooses its run; A, B, C are the sides in this order. Of the fixture, b is 1.2
    # times as fast as a, and c has another batch size.
    page = Reader(views.build_comparison_page(three_runs, ["a1", "b3", "c2"]))
    assert page.list_values("section", "id") == ["charts", "over-B", "over-C"]
    assert "1.200" in page.texts
    assert any(
        line.startswith("B is faster: p_train is 1.200 times that of A") for line in page.texts
    )
    refusal = (
        "The workload of C differs from that of A, so the two are not compared. "
        "Differences: micro_batch_size"
    )
    assert refusal in page.texts
    # The first two links compare the same runs with the difference allowed, and in Chinese.
    addresses = page.list_values("a", "href")
    assert "compare?run=a1&run=b3&run=c2&allow=micro_batch_size" in addresses
    assert "zh/compare?run=a1&run=b3&run=c2" in addresses
    assert "runs/b3.html" in addresses


def test_other_work_is_compared_if_its_difference_is_allowed(three_runs):
    # a1 and c2 are launches of the runs a and c of the fixture, which have the batch sizes 96 and
    # 64; c is 1.2 times as fast, hence the verdict.
    allowed = Reader(
        views.build_comparison_page(three_runs, ["a1", "c2"], allow=["micro_batch_size"])
    )
    assert "Allowed differences between the workloads:" in allowed.texts
    assert {"chart-ratios", "chart-sides-loss"} <= set(allowed.list_values("figure", "id"))
    assert "✓ faster" in allowed.texts


def test_comparison_takes_two_to_six_different_runs(tmp_path, monkeypatch):
    # These records have no evidence that could be checked.
    monkeypatch.setattr("trainmark.pages.site.views.check_record", lambda record, *_, **__: record)
    # Seven runs of one launch each.
    index = make_index(tmp_path, *((run_id, make_document(run_id)) for run_id in "abcdefg"))
    # Two and six runs have a page, with a section over each run but the first.
    for chosen, letters in (("ab", "B"), ("abcdef", "BCDEF")):
        page = Reader(views.build_comparison_page(index, list(chosen)))
        sections = [name for name in page.list_values("section", "id") if name.startswith("over-")]
        assert sections == [f"over-{letter}" for letter in letters]
    # One run, the same one twice, and seven.
    for chosen in ("a", "aa", "abcdefg"):
        with pytest.raises(UsageError, match=r"runs? cannot be compared"):
            views.build_comparison_page(index, list(chosen))


def test_runs_with_different_numbers_of_ranks_show_scaling(tmp_path, monkeypatch):
    # These records have no evidence that could be checked.
    monkeypatch.setattr("trainmark.pages.site.views.check_record", lambda record, *_, **__: record)
    runs = [
        (
            f"{side}/r{number}",
            make_document(
                f"{side}{number}",
                plan__repeat_index=number,
                plan__repeat_count=2,
                plan__nproc=nproc,
                figures={"final_result": 100.0 * nproc + number},
            ),
        )
        for side, nproc in (("a", 2), ("b", 4))
        for number in (1, 2)
    ]
    page = Reader(views.build_comparison_page(make_index(tmp_path, *runs), ["a1", "b1"]))
    assert {"1x2", "1x4"} <= set(page.texts)
    # On 2 ranks 201 and 202 samples/s, on 4 ranks 401 and 402. Twice as many ranks should be twice
    # as fast: 401.5 / (2 x 201.5) = 99.6%, from 401 / (2 x 202) to 402 / (2 x 201).
    assert {"100.0%", "99.6% (99.3% – 100.0%)"} <= set(page.texts)


def test_addresses_are_relative_and_names_are_safe():
    # ``Links`` makes the addresses of a page, here of run a in Chinese, whose pages are below
    # ``zh``.
    links = Links("runs/a.html", "zh")
    assert (links.file, links.own_address) == ("zh/runs/a.html", "../runs/a.html")
    assert links.get_record_address("b") == "../../runs/b.json"
    assert links.translations == [("en", "../../runs/a.html"), ("zh", "../../zh/runs/a.html")]
    assert make_safe_file_name("20261123T120000Z-toy-1") == "20261123T120000Z-toy-1"
    # Different ids have different names, also where a file system ignores case.
    assert (
        len(
            {
                make_safe_file_name("A"),
                make_safe_file_name("a"),
                make_safe_file_name("../a"),
                make_safe_file_name("a/b"),
            }
        )
        == 4
    )
    # An id that is no safe name becomes a hash.
    assert re.fullmatch("[0-9a-f]{24}", make_safe_file_name("../../etc"))


@pytest.fixture
def index_with_rows(tmp_path):
    """Return an index of the user's own run ``a`` of toy and of ``imported/rows.csv``.

    The file has the published rows of two machines, one of them of toy: 5,000 samples/s on eight
    A100 (1x8: on one node), and 70 of the model GNMT on eight H100.
    """
    runs = tmp_path / "runs"
    database = make_index(
        runs, ("a", make_document("a", plan__case="toy", figures={"p_train": 100.0}))
    )
    (runs / "imported").mkdir()
    table = "configuration,model,precision,p_train\nA100 1x8,toy,fp32,5000\nH100 1x8,GNMT,fp16,70\n"
    (runs / "imported" / "rows.csv").write_text(table)
    database.refresh()
    return database


def test_published_rows_are_listed_without_a_page(index_with_rows, tmp_path):
    # Rows that the fixture imported have the status "imported". Each is named by its file and line,
    # such as line 2 of rows.csv, the one of toy.
    listing = list_runs(
        index_with_rows, ["status=imported"], columns=["case", "device", "world", "p_train"]
    )
    assert sorted(listing.rows) == [["GNMT", "H100", 8, 70.0], ["toy", "A100", 8, 5000.0]]
    writing.write_site(index_with_rows, tmp_path / "site")
    rows = read_page(tmp_path / "site" / "index.html")
    assert "imported/rows.csv:2" in " ".join(rows.texts)
    assert not [x for x in rows.list_values("a", "href") if "rows.csv" in x]
    case = " ".join(read_page(tmp_path / "site" / "cases" / "toy.html").texts)
    assert "5,000" in case
    assert "imported/rows.csv:2" in case
    assert len([*(tmp_path / "site" / "runs").iterdir()]) == 2  # page and record of run a


def test_published_row_without_the_figure_of_speed_has_a_dash_and_not_zero(
    index_with_rows, tmp_path
):
    # Speeds are compared by ``p_train``. This row of another machine gives only ``p_whole``, 4,000
    # samples/s with the evaluations. It is added to the rows of the index, beside rows.csv.
    table = "configuration,model,precision,p_whole\nB200 1x8,toy,fp32,4000\n"
    (tmp_path / "runs" / "imported" / "other.csv").write_text(table)
    index_with_rows.refresh()
    writing.write_site(index_with_rows, tmp_path / "site")
    case_page = (tmp_path / "site" / "cases" / "toy.html").read_text()
    row = next(text for text in re.findall("<tr>.*?</tr>", case_page) if "B200" in text)
    assert ">–</td>" in row
    assert ">0</td>" not in row


def test_published_rows_disappear_with_their_file(index_with_rows, tmp_path):
    # The fixture's rows.csv has two rows; such rows have the status "imported".
    assert list_runs(index_with_rows, ["status=imported"]).total == 2
    (tmp_path / "runs" / "imported" / "rows.csv").unlink()
    index_with_rows.refresh()
    assert list_runs(index_with_rows, ["status=imported"]).total == 0


def list_single_class_rules(sheet):
    """Return the classes that a style sheet styles by their name alone: ``.top { … }``."""
    text = re.sub(r"/\*.*?\*/", "", sheet, flags=re.DOTALL)
    selectors = [
        selector.strip() for part in re.findall(r"([^{}]+)\{", text) for selector in part.split(",")
    ]
    return {selector[1:] for selector in selectors if re.fullmatch(r"\.[\w-]+", selector)}


def test_site_style_sheet_uses_no_class_of_the_report():
    """Pages of the site contain blocks of the report, which such a rule would change.

    That is a rule of the site for a class alone (``.bar { … }``), whose name the report uses too.
    """
    templates = ("body.html.j2", "head.html.j2", "blocks.html.j2")
    markup = "".join(rendering.read_shipped_file(name) for name in templates)
    classes_in_use = {
        word
        for class_names in re.findall(r'class="([^"{}]*)', markup)
        for word in class_names.split()
    }
    # The search found the classes.
    assert {"title-row", "bar", "columns", "badge"} <= classes_in_use
    site = (Path(lists.__file__).with_name("static") / "site.css").read_text(encoding="utf-8")
    assert not list_single_class_rules(site) & classes_in_use


def test_run_is_named_by_the_end_of_its_id():
    ids = ("20261128T095901Z-toy-25b06f-r1", "20261128T095901Z-my_case-25b06f", "eight-ranks")
    # ``_RUN_ID`` matches ids as we make them: time, case, six letters or digits, and perhaps the
    # repeat. Lists show the six alone. Of an id that is not ours, nothing can be left out.
    matches = [rows._RUN_ID.fullmatch(run_id) for run_id in ids]
    assert [match[1] if match else None for match in matches] == ["25b06f", "25b06f", None]


def make_three_batch_sizes(tmp_path):
    """Return an index of three runs of toy with batch sizes of 8, 16 and 64, and of another case.

    Larger batches are faster, and were run later. Their ids end with ``abcde0`` to ``abcde2``, as
    ids that the program makes. The run of 64 has open rules: its user changed what closed rules
    fix. The run of the other case, ``b``, is the golden record without an MFU.
    """
    documents = [
        (
            str(size),
            make_document(
                f"20261101T00000{number}Z-toy-abcde{number}",
                plan__case="toy",
                plan__recipe__micro_batch_size=size,
                figures={"p_train": rate, "p_core": rate},
                plan__rules="open" if size == 64 else "closed",
                started=f"2026-11-01T00:00:0{number}+00:00",
            ),
        )
        for number, (size, rate) in enumerate([(8, 334.0), (16, 606.0), (64, 1422.0)])
    ]
    return make_index(
        tmp_path, *documents, ("b", make_document("b", plan__case="other", figures={"MFU": None}))
    )


def test_lists_show_the_settings_in_which_rows_differ(tmp_path):
    # Three runs of toy with batch sizes (bs) of 8, 16 and 64, the last and newest under open rules,
    # and a single run "b" of another case. The recipe of all is standard-1x8.
    database = make_three_batch_sizes(tmp_path / "runs")
    writing.write_site(database, tmp_path / "site")
    page = read_page(tmp_path / "site" / "index.html")
    assert "settings that differ" in page.texts
    assert [text for text in page.texts if text.startswith("bs=")] == ["bs=64", "bs=16", "bs=8"]
    assert page.texts.count("standard-1x8, open rules") == 1
    assert {"abcde0", "b"} <= set(page.texts)  # of a run id of ours the end, else the whole
    case = read_page(tmp_path / "site" / "cases" / "toy.html")
    assert [text for text in case.texts if text.startswith("bs=")] == ["bs=64", "bs=16", "bs=8"]
    assert any(text.endswith(" · bs=64") for text in case.texts)  # a series of the history
    other = read_page(tmp_path / "site" / "cases" / "other.html")
    # A single run differs in nothing, and has no MFU.
    assert not {"settings that differ", "share of peak"} & set(other.texts)


def test_rows_of_the_list_have_what_the_filter_compares(tmp_path):
    writing.write_site(make_three_batch_sizes(tmp_path / "runs"), tmp_path / "site")
    page = read_page(tmp_path / "site" / "index.html")
    values = [json.loads(text) for text in page.list_values("tr", "data-values")]
    # Figures by name, recipe fields by both of their names. The newest run, of bs=64, is first.
    first = next(row for row in values if row["case"] == "toy")
    assert (first["p_core"], first["bs"], first["micro_batch_size"]) == (1422.0, 64, 64)
    # The status is the badge of the row: of a run that passed, its trust. It is the lowest grade,
    # because these records lack their evidence, the events of a run.
    assert (first["case"], first["status"], first["rules"]) == ("toy", "do_not_quote", "open")
    units = json.loads(page.list_values("form", "data-units")[0])
    assert (units["p_core"], units["e2e_time"], units["mem"]) == ("samples/s", "s", "bytes")
