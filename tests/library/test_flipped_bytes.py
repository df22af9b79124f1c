"""Flip one bit of each byte: a bundle never verifies with it, and never ends with a traceback."""

from __future__ import annotations

import json
import zipfile
from random import Random
from typing import TYPE_CHECKING

import pytest

from trainmark.errors import TrainmarkError
from trainmark.library import bundle
from trainmark.record import building, evidence, record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

STRIDE = 41  # of compressed data, all of which one digest covers


def exit_code(path: Path) -> int:
    """Return what ``trainmark verify`` would end with; any other exception fails the test."""
    try:
        return bundle.verify(path).exit_code
    except TrainmarkError as error:
        return error.exit_code


def passed_with(path: Path, content: bytes, places: Iterable[int]) -> list[int]:
    """Return the places whose flipped bit was not found."""
    missed = []
    with path.open("r+b") as file:
        for place in places:
            file.seek(place)
            file.write(bytes([content[place] ^ 1 << place % 8]))
            file.flush()
            if exit_code(path) not in (1, 2):
                missed.append(place)
            file.seek(place)
            file.write(content[place : place + 1])
            file.flush()
    return missed


def test_one_flipped_bit_anywhere_is_found(packed: Path) -> None:
    content = packed.read_bytes()
    with zipfile.ZipFile(packed) as archive:
        entries, directory = archive.infolist(), archive.start_dir
    data = {place for entry in entries
            for place in range(entry.header_offset + 30 + len(entry.filename),
                               entry.header_offset + 30 + len(entry.filename) + entry.compress_size)
            if entry.filename != "manifest.json"}  # fmt: skip
    headers = [place for place in range(directory) if place not in data]
    assert exit_code(packed) == 0
    assert passed_with(packed, content, sorted(data)[::STRIDE]) == []
    assert passed_with(packed, content, headers) == []
    assert passed_with(packed, content, range(directory, len(content))) == []
    assert exit_code(packed) == 0


def test_bytes_put_in_taken_out_and_overwritten_are_found(packed: Path) -> None:
    random, content = Random(7), packed.read_bytes()
    pieces = (
        b"\xff" * 4,
        bytes(4),
        b"\xff\xff",
        b"PK\5\6",
        b"PK\6\6",
        b"PK\6\7",
        b"PK\1\2",
        b"\1\0",
    )
    for number in range(400):
        altered = bytearray(content)
        low = (len(content) - 22, len(content) - 1_500, 0)[number % 3]
        place, piece = random.randrange(low, len(content)), random.choice(pieces)
        end = place + (0, len(piece), random.choice((1, 4, 22, 46)))[number // 3 % 3]
        altered[place:end] = b"" if number % 5 == 0 else piece
        if altered != content:
            packed.write_bytes(altered)
            assert exit_code(packed) in (1, 2), (number, place)


@pytest.mark.parametrize("cut", [1, 21, 22, 23, 2_000])
def test_a_file_that_is_cut_off_or_goes_on_is_no_bundle(packed: Path, cut: int) -> None:
    content = packed.read_bytes()
    for other in (content[:-cut], content[cut:], content + b"x" * cut, b"x" * cut + content):
        packed.write_bytes(other)
        assert exit_code(packed) == 2


def test_a_flipped_byte_in_any_file_of_a_run_directory_is_found(run_dir: Path) -> None:
    assert exit_code(run_dir) == exit_code(run_dir / "record.json") == 0
    named = [entry.name for entry in record.read(run_dir).evidence]
    assert named == ["events.launcher.jsonl", "events.rank0.jsonl", "plan.json"]
    for name in named:
        path = run_dir / name
        content = path.read_bytes()
        for place in range(0, len(content), 97):
            altered = bytearray(content)
            altered[place] ^= 4
            path.write_bytes(altered)
            assert exit_code(run_dir) == 1, (name, place)
        path.write_bytes(content)
    document = json.loads((run_dir / "record.json").read_bytes())
    document["figures"]["p_train"]["value"] *= 10
    (run_dir / "record.json").write_text(json.dumps(document))
    assert exit_code(run_dir) == 1


def test_figures_of_a_bundle_that_was_packed_with_wrong_ones_are_contradicted(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads((run_dir / "record.json").read_bytes())
    document["figures"]["p_train"]["value"] *= 10
    (run_dir / "record.json").write_text(json.dumps(document))
    path = tmp_path / "forged.trainmark.zip"
    with pytest.raises(bundle.BundleError, match=r"figures\.p_train\.value"):
        bundle.pack([[run_dir]], path)
    assert not path.exists()
    monkeypatch.setattr("trainmark.library.bundle.packing.verify", lambda *_: [])
    bundle.pack([[run_dir]], path)
    found = bundle.verify(path)
    assert found.exit_code == 1
    check = next(check for check in found.checks if check.state == "broken")
    assert (check.name, check.place) == ("record", "1-toy")
    assert check.said[0].args["field"] == "figures.p_train.value"


def test_a_record_whose_evidence_is_not_there_is_not_verified(run_dir: Path) -> None:
    for entry in evidence.evidence(run_dir):
        (run_dir / entry.name).unlink()
    found = bundle.verify(run_dir)
    assert (found.exit_code, found.checks[0].state) == (2, "unverifiable")
    assert [said.code for said in found.checks[0].said] == ["evidence_absent"]


def test_an_error_that_the_audit_finds_contradicts_a_record_that_is_computed_rightly(
    run_dir: Path, tmp_path: Path
) -> None:
    """Who writes the events writes any figures: rules are what is left."""
    (run_dir / "record.json").unlink()
    plan = json.loads((run_dir / "plan.json").read_text())
    plan["data"]["train_samples"] = 64  # 16 steps of 64 samples are 16 passes over them
    (run_dir / "plan.json").write_text(json.dumps(plan))
    record.write(building.build(run_dir), run_dir)
    path = tmp_path / "x.trainmark.zip"
    bundle.pack([[run_dir]], path)
    for found in (bundle.verify(path), bundle.verify(run_dir)):
        states = {check.name: check.state for check in found.checks}
        assert (states["record"], states["audit"], found.exit_code) == ("held", "broken", 1)


def test_a_record_of_a_run_that_failed_is_as_true_as_any(run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "record.json").unlink()
    path = run_dir / "events.rank0.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:8]))
    record.write(building.build(run_dir), run_dir)
    assert record.read(run_dir).status == "failed"
    bundle.pack([[run_dir]], tmp_path / "failed.trainmark.zip")
    assert exit_code(tmp_path / "failed.trainmark.zip") == 0
