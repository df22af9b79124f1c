"""Undo the changes of ``make_machine`` to this process after each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.machines import PATCH

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def undo_machine_patches() -> Iterator[None]:
    """After each test, undo the patches by which ``make_machine`` imitates a machine."""
    yield
    PATCH.undo()
