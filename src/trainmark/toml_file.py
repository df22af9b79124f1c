"""Read TOML files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # the same parser, before the standard library had it

if TYPE_CHECKING:
    from pathlib import Path


def read_toml(path: Path) -> dict[str, Any]:
    """Return the document of a TOML file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not UTF-8 or not TOML.
    """
    document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return document
