"""A node's files through the log of its job."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmark.errors import EnvironmentFault
from trainmark.launch.node.files import names_of, receive, send

PLAN: Any = SimpleNamespace(nproc=2)
_CONTENT = st.binary(max_size=200) | st.just(b"x" * 300_000)


@settings(max_examples=25, deadline=None)
@given(contents=st.lists(_CONTENT, min_size=3, max_size=3), prefix=st.sampled_from(["", "0: "]))
def test_what_is_sent_is_received(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], prefix: str
) -> None:
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    written = dict(
        zip(("events.node1.jsonl", "events.rank3.jsonl", "log.rank2.txt"), contents, strict=True)
    )
    for name, content in written.items():
        (here / name).write_bytes(content)
    (here / "events.rank0.jsonl").write_bytes(b"another node's")
    stream = io.StringIO()
    stream.write("what the job printed before\n")
    send(here, 1, PLAN, stream)
    lines = [prefix + line for line in stream.getvalue().splitlines()]
    names = receive(lines, there, expected=names_of(1, PLAN))
    kept = {name: content for name, content in written.items() if content}
    assert sorted(names) == sorted(kept)
    assert {path.name: path.read_bytes() for path in there.iterdir()} == kept


def test_a_cut_log_is_told_and_whole_files_are_kept(tmp_path: Any) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    for name in ("events.node0.jsonl", "events.rank0.jsonl"):
        (tmp_path / "here" / name).write_bytes(name.encode() * 10)
    stream = io.StringIO()
    send(tmp_path / "here", 0, PLAN, stream)
    lines = stream.getvalue().splitlines()
    second = next(at for at, line in enumerate(lines) if "events.rank0" in line)
    short = [*lines[: second + 1], lines[-1]]  # its content was cut out
    for given_lines, word in (
        (lines[:-1], "missing"), ([*lines[:second], lines[-1]], "missing"), (short, "rank0"),
    ):  # fmt: skip
        with pytest.raises(EnvironmentFault) as caught:
            receive(given_lines, tmp_path / "there", expected=names_of(0, PLAN))
        assert word in caught.value.what
        assert (tmp_path / "there/events.node0.jsonl").read_bytes() == b"events.node0.jsonl" * 10


def test_only_expected_names_are_written(tmp_path: Any) -> None:
    (tmp_path / "events.node0.jsonl").write_bytes(b"a")
    stream = io.StringIO()
    send(tmp_path, 0, PLAN, stream)
    (tmp_path / "there").mkdir()
    assert receive(stream.getvalue().splitlines(), tmp_path / "there", expected=["plan.json"]) == []
    assert list((tmp_path / "there").iterdir()) == []
