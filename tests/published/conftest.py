"""What reads a file as ``trainmark import`` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trainmark.published.importers import files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def import_text(tmp_path: Path) -> Callable[..., files.Imported]:
    """Return a function that writes a file and imports it.

    Its arguments are the file's content and its name, which tells how it is read. It returns the
    rows of results and the places that could not be read.
    """

    def read(content: str | bytes, name: str = "rank0.out.log") -> files.Imported:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return files.read_files([path])

    return read
