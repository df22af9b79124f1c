"""Event files: only whole lines are read, wherever a file ends."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING

import pytest

from support.fakes import FakeClock, make_window
from trainmark.errors import RecordError
from trainmark.events.schema import (
    MAX_LINE_BYTES,
    EventFile,
    EventTail,
    EventWriter,
    iterate_events,
    name_rank_file,
    read_event,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_file_truncated_at_any_byte_yields_exactly_its_complete_lines(tmp_path: Path) -> None:
    # ``name_rank_file(0)`` is the name of rank 0's file. The clock goes on only by ``advance``, by
    # 7 ns before each event, whose ``t_ns`` is the time at which it is written.
    path, clock = tmp_path / name_rank_file(0), FakeClock()
    writer = EventWriter(path, clock)
    expected = []
    for name in ("init", "", "über\n{}"):  # also empty, not ASCII, with what could end a line
        clock.advance(7)
        writer.emit("span", name=name, start_ns=1, end_ns=2)
        expected.append(
            {"event": "span", "t_ns": clock(), "start_ns": 1, "end_ns": 2, "name": name}
        )
    writer.close()
    # The file cut to each length: a line without its end is no event yet, and no fault either.
    content = path.read_bytes()
    for length in range(len(content), -1, -1):
        os.truncate(path, length)
        file = EventFile(path)
        assert list(file) == expected[: content[:length].count(b"\n")]
        assert file.malformed_lines == 0


def test_malformed_lines_are_counted_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = [
        b'{"event":"a","t_ns":1}',
        b"",
        b"not json",
        b"[1,2]",
        b'"event"',
        b'{"no":"event"}',
        b"\xff\xfe",
        b'{"event":"b","t_ns":2}',
        b'{"event":"c"',  # incomplete and last, which is no fault
    ]
    path.write_bytes(b"\n".join(lines))
    file = EventFile(path)
    for _ in range(2):  # reading again starts anew
        assert [item["event"] for item in file] == ["a", "b"]
        assert file.malformed_lines == 6  # all but a, b and c


@pytest.mark.parametrize("begin", [b"", b'{"event":"c"'])
def test_sparse_hole_in_a_file_is_one_malformed_line_not_held_in_memory(
    tmp_path: Path, begin: bytes
) -> None:
    # ``begin`` is what a line has before the hole: nothing, or the start of an event. A line of 1
    # TiB would not fit into memory; that the file can be read shows that it is not held.
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event":"a","t_ns":1}\n' + begin)
    os.truncate(path, 1 << 40)  # longer: a TiB of zeros that uses no space
    file = EventFile(path)
    assert [item["event"] for item in file] == ["a"]
    assert file.malformed_lines == 1


def test_hole_in_a_file_is_an_error_where_every_line_must_be_an_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventWriter(path, FakeClock()).emit("end")
    # ``MAX_LINE_BYTES``, 64 MiB, is the longest line that is read: the zeros have twice as many.
    os.truncate(path, path.stat().st_size + 2 * MAX_LINE_BYTES)  # zeros, as a crash leaves them
    events = iterate_events(path)  # pairs of a line's number, from 1, and its event
    number, event = next(events)
    assert (number, event["event"]) == (1, "end")
    with pytest.raises(RecordError, match="not an event") as caught:
        next(events)
    assert caught.value.where == f"{path}:2"


@pytest.mark.parametrize(
    "ranks",
    [
        "",
        "0,",
        "0-",
        "all",
        "0-3\n",
        "0-99999999999",
        "0-999999999",  # more ranks than any run has
        ",".join(["0"] * 100_000),  # a longer text than that of any machine
    ],
)
def test_invalid_list_of_hanging_ranks_is_not_an_event(tmp_path: Path, ranks: str) -> None:
    """A damaged list is refused before it is expanded, which could fill the memory."""
    path = tmp_path / "events.jsonl"
    writer = EventWriter(path, FakeClock())
    group = {"ranks": "0-3,8", "state": "silent", "call": None, "where": "?"}
    writer.emit("stop", reason="timeout", hang=[group])
    valid_line = path.read_text()
    assert [number for number, _ in iterate_events(path)] == [1]
    path.write_text(valid_line.replace('"0-3,8"', json.dumps(ranks)))
    with pytest.raises(RecordError, match="not an event"):
        list(iterate_events(path))


def test_line_torn_by_a_full_disk_does_not_lose_later_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    writer = EventWriter(path, FakeClock())
    writer.emit("end")
    real_write = os.write
    room = 9  # bytes that still fit on the disk: a part of the next line

    def write_until_disk_is_full(fd: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real_write(fd, data[:room])
        room -= written
        return written

    monkeypatch.setattr(os, "write", write_until_disk_is_full)
    for _ in range(2):  # first a part of the line is written, then nothing
        with pytest.raises(OSError, match="No space left"):
            writer.emit("finished")
    monkeypatch.undo()  # the disk has room again
    writer.emit("synced", unix_ns=1)
    writer.close()
    file = EventFile(path)
    assert [item["event"] for item in file] == ["end", "synced"]
    assert file.malformed_lines == 1  # the torn line, which the next event did not continue


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"event":"span","t_ns":1,"name":"init","start_ns":2,"end_ns":1}', "before start_ns"),
        (b'{"event":"synced","t_ns":1}', "required field `unix_ns`"),
        (b'{"event":"synced","t_ns":1,"unix_ns":"1"}', "Expected `int`, got `str`"),
        (b'{"event":"unknown","t_ns":1}', "Invalid value 'unknown'"),
    ],
)
def test_line_that_is_not_an_event_is_refused(line: bytes, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        read_event(line)


def test_a_window_has_an_entry_for_each_step() -> None:
    # A window of 9 ns with two steps; ``make_window`` has as many waits (0) and losses (1.0).
    window_event = make_window(0, 9, step_ns=[4, 5], samples=[1, 1])
    assert read_event(json.dumps(window_event).encode()).step_ns == [4, 5]
    # Each change alone breaks the event: reading it is then refused.
    # One entry for two steps, none, and a negative time.
    for change in ({"wait_ns": [0]}, {"loss": []}, {"step_ns": [4, -5]}):
        with pytest.raises(ValueError, match=r"must have the same length|>= 0"):
            read_event(json.dumps(window_event | change).encode())


def test_tail_returns_each_event_once_for_any_partial_reads(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    content = b"".join(
        b'{"event":"synced","t_ns":%d,"unix_ns":0}\n' % time_ns for time_ns in range(5)
    )
    # The second one reads at most 7 bytes at a time, less than a line.
    tail, tail_in_chunks = EventTail(path), EventTail(path, chunk_bytes=7)
    assert tail.read_new() == []  # there is no file yet
    assert tail.is_unread  # nothing was read so far
    times_read, times_read_in_chunks = [], []  # in ns: each event has its own
    # The file grows byte by byte; an event is returned when its line is whole.
    for end in range(len(content) + 1):
        path.write_bytes(content[:end])
        times_read += [event.t_ns for event in tail.read_new()]
        assert times_read == list(range(content[:end].count(b"\n")))
    for _ in range(len(content) // 7 + 1):  # as many reads of 7 bytes as the file needs
        times_read_in_chunks += [event.t_ns for event in tail_in_chunks.read_new()]
    assert times_read_in_chunks == times_read == [0, 1, 2, 3, 4]


def test_tail_skips_sparse_holes_and_lines_that_are_not_events(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    good = b'{"event":"end","t_ns":3}\n'
    path.write_bytes(b'not json\n{"event":"unknown","t_ns":1}\n' + good)
    tail = EventTail(path)
    assert [event.t_ns for event in tail.read_new()] == [3]
    # ``MAX_LINE_BYTES``, 64 MiB, is the longest line that is read: the hole has twice as many.
    os.truncate(path, path.stat().st_size + 2 * MAX_LINE_BYTES)  # a hole of zeros
    with path.open("ab") as file:
        file.write(b"\n" + good)
    # A call reads at most 64 MiB: two for the hole, one for what follows, one that finds nothing.
    events = [event for _ in range(4) for event in tail.read_new()]
    assert [event.t_ns for event in events] == [3]
