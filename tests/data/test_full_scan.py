"""What a scan finds, and when kept findings and arrays are used."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from trainmark.data.cache import cached_arrays
from trainmark.data.full_scan import Extremes, cached_scan, extremes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

VALUES = np.array([3, -2, 9, 9, -2, 4], np.int32)
FOUND = Extremes(sha256(VALUES.tobytes()).hexdigest(), -2, 1, 9, 2)


@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_extremes_do_not_depend_on_the_blocks(size: int) -> None:
    assert extremes(np.split(VALUES, range(size, 6, size))) == FOUND


def test_comparable_numbers_are_compared_and_given_bytes_digested() -> None:
    found = extremes([VALUES], digest=sha256(b"before"), comparable=np.abs)
    assert found.digest == sha256(b"before" + VALUES.tobytes()).hexdigest()
    assert (found.smallest, found.smallest_at, found.largest, found.largest_at) == (2, 1, 9, 2)


class Scan:
    """Counts how often the data is read."""

    calls = 0

    def __call__(self) -> dict[str, Extremes]:
        self.calls += 1
        return {"values": FOUND}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "values.bin"
    file.write_bytes(VALUES.tobytes())
    return file


def test_a_file_is_scanned_again_only_when_it_changed(tmp_path: Path, data: Path) -> None:
    scan, kept = Scan(), tmp_path / "cache" / "content.json"
    for _ in range(2):
        assert cached_scan(kept, {"values": data}, scan) == {"values": FOUND}
    assert scan.calls == 1
    data.write_bytes(b"more")
    cached_scan(kept, {"values": data}, scan)
    assert scan.calls == 2
    cached_scan(kept, {"values as int64": data}, scan)
    assert scan.calls == 3


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"{", b""), (b'"format": 2', b'"format": 1'), (b'"smallest": -2', b'"smallest": "-2"'),
     (b'"largest"', b'"greatest"'), (b'"found"', b'"lost"')],
)  # fmt: skip
def test_damaged_findings_are_made_again(
    tmp_path: Path, data: Path, old: bytes, new: bytes
) -> None:
    scan, kept = Scan(), tmp_path / "content.json"
    cached_scan(kept, {"values": data}, scan)
    assert old in kept.read_bytes()
    kept.write_bytes(kept.read_bytes().replace(old, new))
    assert cached_scan(kept, {"values": data}, scan) == {"values": FOUND}
    assert scan.calls == 2


def test_a_folder_that_cannot_be_written_is_scanned_each_time(tmp_path: Path, data: Path) -> None:
    scan = Scan()
    for _ in range(2):
        cached_scan(data / "content.json", {"values": data}, scan)
    assert scan.calls == 2


class Build:
    """Counts how often arrays are built."""

    calls = 0

    def __call__(self) -> Mapping[str, NDArray[Any]]:
        self.calls += 1
        return {"values": VALUES, "empty.starts": np.zeros(0, np.int64)}


def same(found: Mapping[str, NDArray[Any]]) -> bool:
    expected = Build()()
    return found.keys() == expected.keys() and all(
        np.array_equal(found[name], expected[name]) and found[name].dtype == expected[name].dtype
        for name in expected
    )


def test_arrays_are_built_once(tmp_path: Path) -> None:
    build, file = Build(), tmp_path / "cache" / "arrays.npz"
    for _ in range(2):
        assert same(cached_arrays(file, build))
    assert build.calls == 1


@pytest.mark.parametrize("place", [0, 40, 150, 200, 300, -30])
def test_damaged_arrays_are_built_again(tmp_path: Path, place: int) -> None:
    build, file = Build(), tmp_path / "arrays.npz"
    cached_arrays(file, build)
    content = bytearray(file.read_bytes())
    content[place] ^= 0x15
    file.write_bytes(content)
    assert same(cached_arrays(file, build))
    file.write_bytes(content[: len(content) // 2])
    assert same(cached_arrays(file, build))
    assert build.calls >= 2


def test_arrays_are_built_each_time_where_none_can_be_kept(tmp_path: Path) -> None:
    build = Build()
    (tmp_path / "file").write_text("in the way")
    for _ in range(2):
        assert same(cached_arrays(tmp_path / "file" / "arrays.npz", build))
    assert build.calls == 2
