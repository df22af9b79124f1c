"""Folders that cannot be written, full disks and slow ones are found."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from machines import GIB, machine, only
from trainmark.check.doctor import disk

if TYPE_CHECKING:
    from fakes import FakeClock

MIB = 1 << 20


@pytest.mark.parametrize(
    ("free", "severity"),
    [(GIB, "fine"), (GIB - 1, "spoils"), (8 * MIB, "spoils"), (8 * MIB - 1, "stops")],
)
def test_space_is_compared_with_what_a_run_needs(tmp_path, free, severity):
    subject = machine(tmp_path, free=free)
    assert only(disk.out_folder(subject)).severity == severity


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission_stops_a_run(tmp_path):
    (tmp_path / "runs").mkdir(mode=0o500)
    found = only(disk.out_folder(machine(tmp_path)))
    assert (found.severity, "Permission denied" in found.what) == ("stops", True)


def moved(clock: FakeClock, sizes: list[int], each_ns: int):
    """Return what moves so many bytes in a call, each of which takes a time."""
    left = iter(sizes)

    def move() -> int:
        clock.advance(each_ns)
        return next(left, 0)

    return move


@pytest.mark.parametrize(
    ("sizes", "each_ms", "expected"),
    [
        ([4 * MIB] * 100, 100, 4 * MIB / 0.1),  # ends after 2 s
        ([4 * MIB] * 100, 1, 4 * MIB / 0.001),  # ends after 128 MiB
        ([3, 5], 500, 8 / 1.5),  # ends with the file
        ([], 500, 0.0),
    ],
)
def test_a_rate_is_bytes_over_time(clock, monkeypatch, sizes, each_ms, expected):
    monkeypatch.setattr(disk, "perf_counter", lambda: clock.now_ns / 1e9)
    move = moved(clock, sizes, each_ms * 1_000_000)
    assert disk.rate(move) == pytest.approx(expected)


@pytest.mark.parametrize(("rate", "severity"), [(19e6, "spoils"), (20e6, "fine")])
def test_a_slow_disk_spoils_figures(tmp_path, monkeypatch, rate, severity):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.bin").write_bytes(bytes(4 * MIB))
    (tmp_path / "data" / "meta.json").write_bytes(b"{}")
    monkeypatch.setattr(disk, "rate", lambda move: move() and rate)
    subject = machine(tmp_path, data=tmp_path / "data")
    written, read = only(disk.out_speed(subject)), only(disk.data_speed(subject))
    assert (written.severity, read.severity) == (severity, severity)
    assert f"{rate / 1e6:.0f} MB/s read from train.bin" in read.what


def test_data_is_read_where_it_is_given(tmp_path):
    for check in (disk.data_folder, disk.data_speed):
        assert list(check(machine(tmp_path))) == []
    subject = machine(tmp_path, data=tmp_path / "data")
    missing = only(disk.data_folder(subject))
    assert (missing.severity, str(tmp_path / "data") in missing.what) == ("stops", True)
    subject.data.mkdir()
    assert only(disk.data_folder(subject)).severity == "stops"  # it is empty
    (subject.data / "config.json").write_bytes(b"{}")
    assert only(disk.data_folder(subject)).severity == "fine"
