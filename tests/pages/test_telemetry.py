"""What was read of devices and host: on pages and the terminal, only where there is something."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.cells import cell_len

from fakes import check_golden, rank_events
from telemetry_files import TIMES_S, busy, cards, devices, end, host, readings, sampled_run, start
from trainmark.pages.document import Grid, Paragraph
from trainmark.pages.page import compose, markdown_page
from trainmark.pages.telemetry import blocks, sections
from trainmark.pages.terminal import Screen, run_table
from trainmark.record import building
from trainmark.record.record import Record
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence

GOLDEN = Path(__file__).parents[1] / "golden"
HOSTILE = "<b>|x\x1b[31m"


def sampled() -> Record:
    text = (GOLDEN / "record_sampled.json").read_text(encoding="utf-8")
    return Record.model_validate_json(text)


def built(tmp_path: Path, lines: Sequence[dict[str, Any]], **more: Any) -> Record:
    return building.build(sampled_run(tmp_path / "run", lines, **more))


def rows(record: Record) -> tuple[tuple[str, ...], ...]:
    _, grid = blocks(record, "en")
    assert isinstance(grid, Grid)
    return grid.table.rows


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_of_a_sampled_run_is_golden(lang: str) -> None:
    check_golden(f"page.sampled.{lang}.md", markdown_page([sampled()], lang))


def test_a_row_a_device_and_one_of_the_host() -> None:
    device = ("90.0/90.0", "400/400", "57.8/59.6", "1407/1200", "0%", "1.450 kJ", "5")
    assert list(rows(sampled())) == [
        ("0", "10.0/10.0", *device),
        ("1", "11.0/11.0", *device),
        ("host", "16.0/16.0", "25.0/25.0", "/", "/", "/", "/", "/", "5"),
    ]


def test_what_is_not_known_has_the_usual_mark(tmp_path: Path) -> None:
    lines = [devices(t_s, {"index": 0}, busy(t_s, 1, energy_j=None)) for t_s in TIMES_S]
    found = rows(built(tmp_path, [start(0, 1), *lines, end()]))
    assert found[0] == ("0", *["/"] * 7, "5")
    assert found[1][6:] == ("22% power_cap", "/", "5")


def test_the_host_has_its_own_power_and_energy(tmp_path: Path) -> None:
    told = {"cpu_percent": 50.0, "node_power_w": 300.0}
    lines = [host(t_s, package_energy_j=40 * t_s, **told) for t_s in TIMES_S]
    found = rows(built(tmp_path, [start(monitor=None), *lines, end()]))
    assert found == (("host", "/", "50.0/50.0", "300/300", "/", "/", "/", "145.0 J", "5"),)


def test_a_run_that_trained_nothing_shows_the_whole_run(tmp_path: Path) -> None:
    ranks = [events[:6] for events in cards()]
    found = blocks(built(tmp_path, [start(0, 1), *readings(0, 1), end()], ranks=ranks), "en")
    caption, grid = found
    assert isinstance(caption, Paragraph)
    assert caption.text.startswith("The whole run, 12.0 s, a reading every 1 s")
    assert isinstance(grid, Grid)
    assert [row[-1] for row in grid.table.rows] == ["11", "11"]


@pytest.mark.parametrize(
    "lines", [None, [], [start(monitor=None), end()], [start(0, 1), end(monitor=9)]]
)
def test_nothing_is_shown_where_nothing_was_read(
    tmp_path: Path, lines: list[dict[str, Any]] | None
) -> None:
    record = building.build(sampled_run(tmp_path / "run", lines))
    assert blocks(record, "en") == []
    assert sections([record], "zh") == []


def test_the_terminal_leaves_out_what_nothing_here_can_read(tmp_path: Path) -> None:
    names = ("utilization", "power", "temperature", "energy_per_sample")
    lines = [start(monitor=None), *(host(t_s, cpu_percent=5.0) for t_s in TIMES_S), end()]
    for number, samples in enumerate([None, lines]):
        run_dir = sampled_run(tmp_path / str(number), samples, ranks=[rank_events()])
        record = building.build(run_dir)
        text = run_table(record, screen=Screen())
        assert not [name for name in names if re.search(rf"^{name} ", text, re.MULTILINE)]
        assert all(name in markdown_page([record]) for name in names)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_terminal_shows_the_tables_within_its_width(lang: str) -> None:
    text = run_table(sampled(), screen=Screen(), lang=lang)
    lines = text.splitlines()
    assert max(cell_len(line) for line in lines) <= 80
    row = next(line for line in lines if line.split()[:2] == ["1", "11.0/11.0"])
    assert row.split()[-3:] == ["1.450", "kJ", "5"]
    plain = run_table(sampled(), screen=Screen(unicode=False), lang="en")
    assert "temp. C" in plain


def test_several_records_are_told_apart() -> None:
    other = sampled().model_copy(update={"run_id": "b"})
    page = compose([sampled(), other])
    headings = [found.heading for found in page.sections if found.anchor.startswith("telemetry")]
    assert headings == [
        "Devices and host in the training [1]", "Devices and host in the training [2]",
    ]  # fmt: skip


@pytest.mark.parametrize(("lang", "word"), [("en", "estimated"), ("zh", "估算")])
def test_an_estimate_is_called_one_on_page_and_terminal(
    tmp_path: Path, lang: str, word: str
) -> None:
    times = [0.125 * number for number in range(97)]
    lines = [start(0, 1), *readings(0, 1, times_s=times, energy_j=None), end()]
    record = built(tmp_path, lines)
    for text in (markdown_page([record], lang), run_table(record, screen=Screen(), lang=lang)):
        for line in re.findall(r"^.*4\.000.*kJ.*$", text, re.MULTILINE):
            assert "estimated_energy_to_target" in line
            assert word in line
        assert "estimated_energy_per_sample" in text


def test_names_from_the_file_are_shown_as_text(tmp_path: Path) -> None:
    odd = readings(0, 1, name=HOSTILE, throttle_reasons=[HOSTILE])
    record = built(tmp_path, [start(0, 1, monitor=HOSTILE), *odd, end()])
    page = markdown_page([record])
    assert "<b>" not in page
    assert "\x1b" not in page + run_table(record, screen=Screen())
    assert record.findings[0] == message(
        "throttled_while_measured",
        devices=2, of=2, rank=0, share=1.0, reasons=f"{HOSTILE} 100%",
    )  # fmt: skip
