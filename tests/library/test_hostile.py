"""Archives that somebody made to do harm: refused with what and where, or shown harmless."""

from __future__ import annotations

import json
import resource
import struct
import tempfile
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from library.forging import STORED, Item, built, forged, manifest
from trainmark.errors import TrainmarkError
from trainmark.library import bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MB = 1 << 20
LINK, DEVICE, FOLDER = 0o120777 << 16, 0o020666 << 16, 0o040755 << 16


@pytest.fixture
def items(packed: Path) -> list[Item]:
    """Return the files of a sound bundle."""
    with zipfile.ZipFile(packed) as archive:
        return [Item(name, archive.read(name)) for name in archive.namelist() if "/" in name]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "forged.trainmark.zip"


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check after each test that temporary files are gone, and no other were written."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield
    assert list(place.iterdir()) == []
    assert {item.name for item in tmp_path.iterdir()} <= {
        "temporary", "run", "run.trainmark.zip", "forged.trainmark.zip",
    }  # fmt: skip


def refusal(path: Path) -> str:
    """Return why a bundle is refused."""
    with pytest.raises(TrainmarkError) as refused:
        bundle.verify(path)
    assert refused.value.exit_code == 2
    assert str(refused.value).startswith(str(path))
    return str(refused.value)


def test_what_is_forged_without_a_fault_verifies(items: list[Item], path: Path) -> None:
    assert bundle.verify(forged(path, items)).exit_code == 0


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd", "../climbs.txt", "1-toy/../../climbs.txt", "1-toy/..", "1-toy//x.txt",
        "C:/x.txt", "1-toy\\x.txt", "1-toy/a\x1b[2Jb.txt", "1-toy/a\nb.txt", "1-toy/.hidden.txt",
        "1-toy/-rf.txt", "1-toy/x.txt/", "1-toy/x.txt ", "x.txt", "1-toy/r1/r2/x.txt", "",
        "1-toy/evil.exe", "1-toy/index/../x.txt", "1-toy/" + "x" * 200 + ".txt", "aux/x.txt",
        "1-toy/é.txt", "1-toy/\0.txt", "1-toy/LOG.rank0.txt", "1-toy/log.rank0.txt/x.txt",
        "1-toy/log.rank0.txt", "manifest.json", "manifest.json.sig",
    ],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_or_is_there_already_is_refused(
    name: str, items: list[Item], path: Path
) -> None:
    said = refusal(forged(path, [Item(name, b"x"), *items]))
    assert "\x1b" not in said
    assert "\0" not in said
    assert "\n" not in said.replace("\n  way out", "")


@pytest.mark.parametrize(
    "fault",
    [
        {"told": {"external": LINK}}, {"told": {"external": DEVICE}},
        {"told": {"external": FOLDER}}, {"method": STORED}, {"told": {"flags": 1}},
        {"told": {"flags": 8}}, {"told": {"flags": 0x800}},
        {"local": {"flags": 1}}, {"told": {"version": 45}}, {"told": {"method": 12}},
        {"told": {"method": 99}}, {"told": {"system": 0}}, {"told": {"disk": 1}},
        {"told": {"time": 1}}, {"local": {"crc": 7}}, {"local": {"size": 7}},
        {"central": {"crc": 7}}, {"central": {"size": 7}}, {"central": {"packed": 7}},
        {"told": {"offset": 0}}, {"told": {"offset": 2**32 - 1}},
        {"told": {"size": 2**32 - 1, "packed": 2**32 - 1}},
        {"extra": struct.pack("<2H2Q", 1, 16, 2**60, 2**60)}, {"extra": b"\1\0\xff\xff"},
        {"comment": b"hidden"}, {"after": b"hidden"},
    ],
)  # fmt: skip
def test_an_entry_of_another_form_is_refused_with_its_place(
    fault: dict[str, Any], items: list[Item], path: Path
) -> None:
    bad = Item("1-toy/log.rank1.txt", b"x" * 50, **fault)
    said = refusal(forged(path, [items[0], bad, *items[1:]]))
    assert "entry" in said or "byte" in said or "not a bundle" in said or "manifest" in said


@pytest.mark.parametrize(
    "how",
    [
        {"before": b"#!/bin/sh\n"}, {"between": b"hidden"}, {"comment": b"hidden"}, {"count": 0},
        {"count": 65_535}, {"length": 2**32 - 1}, {"start": 0}, {"start": 2**32 - 1},
        {"between": struct.pack("<4sLQL", b"PK\6\7", 0, 2**62, 1)},
        {"between": struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 2**40, 2**40, 2**40, 0)
         + struct.pack("<4sLQL", b"PK\6\7", 0, 10, 1)},
    ],
)  # fmt: skip
def test_an_archive_of_another_form_is_refused(
    how: dict[str, Any], items: list[Item], path: Path
) -> None:
    refusal(forged(path, items, **how))


@pytest.mark.parametrize("content", [b"", b"P", b"PK\5\6" + bytes(18), bytes(100), b"{}" * 50])
def test_a_file_that_is_no_archive_is_refused(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    refusal(path)


def test_a_bomb_is_refused_before_it_is_unpacked(items: list[Item], path: Path) -> None:
    forged(path, [*items, Item("1-toy/log.rank1.txt", bytes(70 * MB))])
    assert path.stat().st_size < MB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "would become 73,4" in refusal(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 << 10


def test_an_entry_that_holds_more_than_it_tells_is_not_read_further(
    items: list[Item], path: Path
) -> None:
    whole = Item("1-toy/log.rank1.txt", bytes(40 * MB))
    lying = Item(whole.name, bytes(1_000), data=whole.packed())
    assert bundle.verify(forged(path, [*items, lying])).exit_code == 1


def test_a_name_that_others_read_as_longer_hides_no_content(items: list[Item], path: Path) -> None:
    worker = zlib.compressobj(0, zlib.DEFLATED, -15)
    stream = worker.compress(b"x" * 50) + worker.flush(zlib.Z_SYNC_FLUSH) + worker.flush()
    assert stream[0] == 0  # so that the last byte of the name can be the first of the stream
    bad = Item(b"1-toy/notes.txt\0", b"x" * 50, data=stream[1:] + b"\0")
    text = manifest([*items, bad]).replace(b"\\u0000", b"")
    assert "header" in refusal(forged(path, [*items, bad], text))


def test_a_checksum_that_is_not_the_contents_is_found(items: list[Item], path: Path) -> None:
    bad = Item("1-toy/log.rank1.txt", b"x" * 50, told={"crc": 7})
    assert bundle.verify(forged(path, [*items, bad])).exit_code == 1


def test_compressed_data_behind_the_end_is_no_place_to_hide(items: list[Item], path: Path) -> None:
    first = Item("1-toy/log.rank1.txt", b"x" * 50)
    hiding = Item(first.name, first.content, data=first.packed() + b"hidden")
    assert bundle.verify(forged(path, [*items, hiding])).exit_code == 1


def test_thousands_of_entries_are_refused_unread(items: list[Item], path: Path) -> None:
    many = [Item(f"1-toy/{n}.txt", b"") for n in range(20_001)]
    assert "20,000 entries" in refusal(forged(path, [*items, *many]))


class _Disk(NamedTuple):
    free: int = 1_000


def test_what_does_not_fit_on_the_disk_is_refused(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: _Disk())
    with pytest.raises(TrainmarkError, match="do not fit"):
        bundle.verify(packed)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"null", b"[" * 100_000, b'{"a":' * 5_000, b"\xff\xfe",
        b'{"schema_version": NaN}', b'{"schema_version": 1e999}',
        b'{"packed_bytes": ' + b"9" * 100_000 + b"}",
        b'{"schema_version": 1, "schema_version": 1}', b'{"schema_version": 2}',
    ],
)  # fmt: skip
def test_a_manifest_that_is_none_is_refused(text: bytes, items: list[Item], path: Path) -> None:
    assert "manifest.json" in refusal(forged(path, items, text))


@pytest.mark.parametrize(
    "other",
    [
        {"files": []}, {"packed_bytes": -1}, {"packed_bytes": 2**70},
        {"suite": {"name": "other", "version": "1"}}, {"more": 1}, {"packed_bytes": "1"},
    ],
)  # fmt: skip
def test_a_manifest_of_another_form_is_refused(
    other: dict[str, Any], items: list[Item], path: Path
) -> None:
    assert "manifest.json" in refusal(forged(path, items, manifest(items, **other)))


def test_a_manifest_that_is_too_large_or_compressed_is_not_read(
    items: list[Item], path: Path
) -> None:
    assert "at most" in refusal(forged(path, items, bytes(17 * MB)))
    path.write_bytes(built([*items, Item("manifest.json", manifest(items))]))
    assert "header" in refusal(path)
    path.write_bytes(built(items))
    assert "manifest.json" in refusal(path)


DEEP = b'{"a":' * 100_000
RECORDS = {
    "deep": DEEP,
    "not closed": b"[" * 1_000_000,
    "NaN": b'{"schema_version": NaN}',
    "infinite": b'{"schema_version": -Infinity}',
    "huge": b'{"schema_version": ' + b"9" * 1_000_000 + b"}",
    "no text": b"\xff" * 100,
    "twice": b'{"status": "passed", "status": "failed"}',
    "list": b"[]",
    "empty": b"",
}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_that_is_none_is_refused(kind: str, items: list[Item], path: Path) -> None:
    others = [item for item in items if item.name != "1-toy/record.json"]
    bad = Item("1-toy/record.json", RECORDS[kind])
    assert "record" in refusal(forged(path, [bad, *others]))


def _with(items: list[Item], name: str, change: Callable[[bytes], bytes]) -> list[Item]:
    """Return ``items`` with one changed, whose digest the record tells."""
    import hashlib

    content = {str(item.name): item.content for item in items}
    content[name] = change(content[name])
    record = json.loads(content["1-toy/record.json"])
    for entry in record["evidence"]:
        told = content[f"1-toy/{entry['name']}"]
        entry |= {"bytes": len(told), "sha256": hashlib.sha256(told).hexdigest()}
    content["1-toy/record.json"] = json.dumps(record).encode()
    return [Item(key, value) for key, value in content.items()]


EVENTS = {
    "deep": DEEP + b"\n",
    "huge": b'{"event":"window","t_ns":' + b"9" * 5_000 + b"}\n",
    "NaN": b'{"event":"span","t_ns":NaN}\n',
    "control": b'{"event":"\\u001b[2J","t_ns":1}\n',
    "other": b'{"event":"window"}\n[]\n"x"\n1\n\n',
    "binary": bytes(range(256)) * 10,
}


@pytest.mark.parametrize("name", ["events.rank0.jsonl", "events.launcher.jsonl"])
@pytest.mark.parametrize("kind", EVENTS)
def test_lines_that_no_run_writes_contradict_the_record(
    kind: str, name: str, items: list[Item], path: Path
) -> None:
    changed = _with(items, f"1-toy/{name}", lambda content: content + EVENTS[kind])
    assert bundle.verify(forged(path, changed)).exit_code == 1


WORDS = (
    "<script>alert(1)</script>", "$(reboot)", "../../x", "\x1b]0;x\x07", "\u202e", "{0.__class__}",
)  # fmt: skip
NUMBERS = (0, -1, 1, 2**63 - 1, 2**63, -(2**70), 1e308, 1e-308, 0.1)
VALUES: tuple[Any, ...] = (None, True, [], {}, [[]], {"a": 1}, *NUMBERS, *WORDS)


def _places(document: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in pairs:
        yield (*place, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*place, key))


def _set(document: Any, place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        document = document[key]
    document[place[-1]] = value


@pytest.mark.parametrize("name", ["events.rank0.jsonl", "events.launcher.jsonl", "plan.json"])
def test_any_value_in_any_place_of_the_evidence_ends_without_a_traceback(
    name: str, run_dir: Path
) -> None:
    file = run_dir / name
    lines = [file.read_text()] if name == "plan.json" else file.read_text().splitlines()
    documents = [json.loads(line) for line in lines]
    whole = json.dumps(documents)
    places = [place for place in _places(documents) if len(place) > 1]
    assert len(places) > 12
    for number, place in enumerate(places):
        for value in (VALUES[number % len(VALUES)], VALUES[(7 * number + 3) % len(VALUES)]):
            anew = json.loads(whole)
            _set(anew, place, value)
            if anew != documents:
                file.write_text("".join(json.dumps(item) + "\n" for item in anew))
                assert bundle.verify(run_dir).exit_code == 1, (place, value)


def test_a_plan_of_a_trillion_ranks_is_not_computed(items: list[Item], path: Path) -> None:
    def more(content: bytes) -> bytes:
        return content.replace(b'"nnodes": 1', b'"nnodes": 1000000000000')

    found = bundle.verify(forged(path, _with(items, "1-toy/plan.json", more)))
    (check,) = [check for check in found.checks if check.state == "broken"]
    assert check.said[0].args == {
        "field": "ranks", "fields": 1, "recorded": 1, "recomputed": 10**12,
    }  # fmt: skip


@pytest.mark.parametrize("place", ["1-toy/page.html", "1-toy/page.zh.md", "1-toy/index/x_speed"])
def test_a_page_that_is_not_that_of_the_record_is_contradicted(
    place: str, items: list[Item], path: Path
) -> None:
    content = {str(item.name): item.content for item in items}
    content[place] = content.get(place, b"") + b"<script>alert(1)</script>"
    found = bundle.verify(forged(path, [Item(*pair) for pair in content.items()]))
    assert found.exit_code == 1
    assert (found.checks[-1].name, found.checks[-1].said[0].args["file"]) == ("pages", place)


@pytest.mark.parametrize("place", ["1-toy/r1", "1-toy/index", "1-toy/r1/index", "2-x"])
def test_a_record_in_an_odd_place_is_one_that_its_evidence_must_prove(
    place: str, items: list[Item], path: Path
) -> None:
    content = {str(item.name): item.content for item in items}
    more = [Item(f"{place}/record.json", content["1-toy/record.json"])]
    for order in ([*more, *items], [*items, *more]):
        found = bundle.verify(forged(path, order))
        assert found.exit_code == 2
        assert {check.place: check.state for check in found.checks if check.name == "record"} == {
            "1-toy": "held", place: "unverifiable",
        }  # fmt: skip
    for name in ("plan.json", "events.launcher.jsonl", "events.rank0.jsonl"):
        more.append(Item(f"{place}/{name}", content[f"1-toy/{name}"]))
    for order in ([*more, *items], [*items, *more]):
        try:
            code = bundle.verify(forged(path, order)).exit_code
        except TrainmarkError as error:
            code = error.exit_code
        assert code in (1, 2)  # it is a copy, and has no pages


def test_a_page_of_another_version_is_not_compared(items: list[Item], path: Path) -> None:
    suite = {"name": "trainmark", "version": "9.9.9"}
    found = bundle.verify(forged(path, items, manifest(items, suite=suite)))
    assert (found.exit_code, found.checks[-1].state) == (0, "noted")


def test_text_of_a_bundle_is_printed_escaped(
    items: list[Item], path: Path, trainmark_ends: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    named = [Item("1-toy/\x1b[2J.txt", b"x"), *items]
    assert trainmark_ends("verify", str(forged(path, named))) == 2
    assert "\x1b" not in capsys.readouterr().err
    path.unlink()
    path.mkdir()
    assert trainmark_ends("verify", str(path)) == 2
    path.rmdir()
    assert trainmark_ends("verify", str(path)) == 2
    assert trainmark_ends("verify", "/dev/zero") == 2
