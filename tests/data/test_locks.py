"""Lock files: held once, given back, and never held by two."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Any

import pytest

from trainmark.data import locks
from trainmark.errors import EnvironmentFault

if TYPE_CHECKING:
    from pathlib import Path

REFUSAL = EnvironmentFault("busy")


def test_a_lock_is_held_once_and_leaves_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with locks.held(lock, REFUSAL):
        with pytest.raises(EnvironmentFault, match="busy"), locks.held(lock, REFUSAL):
            raise AssertionError("entered twice")
        assert lock.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_file_left_by_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text("")
    with locks.held(lock, REFUSAL):
        assert lock.exists()
    assert not lock.exists()


def test_a_file_removed_before_it_was_locked_is_not_taken_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock"
    locked: list[int] = []
    flock = fcntl.flock

    def late(file: Any, how: int) -> None:
        flock(file, how)
        locked.append(os.fstat(file.fileno()).st_ino)
        if len(locked) == 1:
            lock.unlink()  # its holder ends between our open and our flock

    monkeypatch.setattr(fcntl, "flock", late)
    with locks.held(lock, REFUSAL):
        assert len(locked) == 2
        assert lock.stat().st_ino == locked[1]


def test_a_folder_that_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locks.held(tmp_path / "no" / "lock", REFUSAL):
        raise AssertionError("held")
