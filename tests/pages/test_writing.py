"""The site as plain files: every link leads somewhere; written whole; only changes made anew."""

from __future__ import annotations

import json
import signal
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from store_bodies import document, write
from trainmark.cli.app import main
from trainmark.errors import UsageError
from trainmark.library.store.database import Database
from trainmark.library.store.index import Index
from trainmark.pages.site import views, writing


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr(views, "ROWS", 5)
    folder = tmp_path / "runs"
    for number in range(6):
        made = document(
            f"run\x1b-{number}" if number == 5 else f"run-{number}",
            plan__case="toy" if number % 2 else "a/../b\x1b",
        )
        write(folder / f"{number}", made)
    for number in (1, 2):
        write(folder / "s" / f"r{number}", document(f"s-{number}", plan__repeat_index=number))
    index = Index(Database(str(folder)))
    index.refresh()
    return index


class Addresses(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, _, attrs):
        self.found += [value for name, value in attrs if name in ("href", "src", "data-index")]


def test_every_link_of_every_page_leads_to_a_file(runs, tmp_path):
    site = tmp_path / "www" / "public"
    assert writing.write_site(runs.database, site) == (8, 8)
    pages = sorted(site.rglob("*.html"))
    assert len(pages) == 2 * (2 + 8 + 3 + 1 + 4)
    for page in pages:
        for address in Addresses(page.read_text(encoding="utf-8")).found:
            parts = urlsplit(address)
            if parts.scheme:
                assert parts.scheme == "https"
            elif parts.path:
                assert (page.parent / unquote(parts.path)).is_file(), (page, address)
    assert json.loads((site / "runs" / "s-1.json").read_bytes())["run_id"] == "s-1"
    assert json.loads((site / "runs.json").read_bytes())["total"] == 8
    assert (site / "runs.csv").read_text(encoding="utf-8").count("\n") == 9
    for name in ("runs.csv", "runs.json"):
        assert str(tmp_path) not in (site / name).read_text(encoding="utf-8")
    index = json.loads((site / "zh" / "index.json").read_bytes())
    assert len(index["rows"]) == len(index["values"]) == 8
    assert (site / "zh" / index["rows"][0]["run_address"]).is_file()
    assert not list(site.parent.glob(".site-*"))


def test_the_index_has_the_units_of_its_own_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(views, "ROWS", 1)
    for day, mem in ((1, 30 * 2**30), (2, 300 * 2**20)):
        started = f"2026-11-0{day}T08:00:00+00:00"
        made = document(f"run-{day}", started=started, figures={"mem": float(mem)})
        write(tmp_path / "runs" / str(day), made)
    database = Database(str(tmp_path / "runs"))
    Index(database).refresh()
    writing.write_site(database, tmp_path / "public")
    index = json.loads((tmp_path / "public" / "index.json").read_bytes())
    assert "MiB" in (tmp_path / "public" / "index.html").read_text(encoding="utf-8")
    assert index["heads"]["mem"].endswith("GiB")
    assert [row["mem"] for row in index["rows"]] == ["0.2930", "30.0"]


def test_only_pages_that_change_are_made_again(runs, tmp_path):
    site = tmp_path / "public"
    writing.write_site(runs.database, site)
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    assert writing.write_site(runs.database, site) == (8, 0)
    assert {path: path.read_bytes() for path in site.rglob("*") if path.is_file()} == before
    (runs.database.folder / "0" / "plan.json").write_text("{}")  # evidence it did not have
    write(runs.database.folder / "s" / "r3", document("s-3", plan__repeat_index=3))
    runs.refresh()
    assert writing.write_site(runs.database, site) == (9, 4)
    assert "s-3.html" in (site / "runs" / "s-1.html").read_text(encoding="utf-8")


def test_a_link_to_a_site_stays_and_what_it_leads_to_is_replaced(runs, tmp_path):
    site, link = tmp_path / "www" / "public", tmp_path / "public"
    writing.write_site(runs.database, site)
    link.symlink_to(site)
    write(runs.database.folder / "new", document("new"))
    runs.refresh()
    writing.write_site(runs.database, link)
    assert link.is_symlink()
    assert (site / "runs" / "new.html").is_file()


def test_a_folder_that_is_no_site_is_left_alone(runs, tmp_path):
    for name in ("files", "file"):
        place = tmp_path / name
        if name == "file":
            place.write_text("x")
        else:
            place.mkdir()
            (place / "mine.txt").write_text("x")
        with pytest.raises(UsageError, match="not a site"):
            writing.write_site(runs.database, place)
    assert (tmp_path / "files" / "mine.txt").read_text() == "x"
    (tmp_path / "empty").mkdir()
    assert writing.write_site(runs.database, tmp_path / "empty")[0] == 8


def test_a_site_that_cannot_be_written_leaves_the_old_one(runs, tmp_path, monkeypatch):
    site = tmp_path / "public"
    writing.write_site(runs.database, site)
    before = (site / "index.html").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "_write_runs", full)
    with pytest.raises(OSError, match="No space"):
        writing.write_site(runs.database, site)
    assert (site / "index.html").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["public", "runs"]


def test_a_site_that_cannot_be_put_in_its_place_leaves_the_old_one(runs, tmp_path, monkeypatch):
    site, rename = tmp_path / "public", Path.rename
    writing.write_site(runs.database, site)
    before = (site / "index.html").read_bytes()

    def refused(path, target):
        if path.name == "new":
            raise PermissionError(13, "Permission denied")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(PermissionError):
        writing.write_site(runs.database, site)
    assert (site / "index.html").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["public", "runs"]


def test_a_record_that_is_gone_has_a_page_that_says_so(runs, tmp_path):
    (runs.database.folder / "3" / "record.json").unlink()
    writing.write_site(runs.database, tmp_path / "public")
    page = Path(tmp_path / "public" / "runs" / "run-3.html").read_text(encoding="utf-8")
    assert "no record there" in page


def test_the_command_writes_and_refuses(tmp_path, monkeypatch, capsys):
    write(tmp_path / "runs" / "a", document("a"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").write_text("")
    for output, code, said in (("public", 0, "1 runs, 1 of them"), ("mine", 2, "not a site")):
        words = ["trainmark", "site", str(tmp_path / "runs"), "-o", str(tmp_path / output)]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        assert (ended.value.code, said in capsys.readouterr().err) == (code, True)


def test_sigterm_leaves_the_site_as_it_was_and_nothing_half_written(tmp_path, monkeypatch):
    write(tmp_path / "runs" / "a", document("a"))
    site = tmp_path / "www" / "public"
    words = ["trainmark", "site", str(tmp_path / "runs"), "-o", str(site)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        main()
    before = {path: path.read_bytes() for path in site.rglob("*.*")}
    write(tmp_path / "runs" / "b", document("b"))
    monkeypatch.setattr(writing, "_write_pages", lambda *_: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 128 + signal.SIGTERM
    assert [path.name for path in site.parent.iterdir()] == ["public"]
    assert {path: path.read_bytes() for path in site.rglob("*.*")} == before
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
