"""JSON documents: read with a bounded size, parsed strictly, written whole or not at all."""

from __future__ import annotations

from contextlib import contextmanager
from secrets import token_hex
from typing import IO, TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_BYTES = 256 << 20  # the record of a million steps has 27 MB


class Frozen(BaseModel):
    """A document of ours: unknown keys fail, nothing changes once built."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def read_bytes(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file.

    Raises:
        ValueError: more than ``max_bytes``.
        OSError: no such file, or not to be read.
    """
    if path.stat().st_size > max_bytes:
        raise ValueError(f"larger than {max_bytes >> 20} MiB")
    return path.read_bytes()


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of ``path`` at the end of the block, whole or not at all.

    A device or a pipe is written to: it is no file to replace.

    Raises:
        OSError: the disk is full or the folder read-only; ``path`` is as it was.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    staging = path.with_name(f".{path.name}.{token_hex(4)}.tmp")  # two may write it at once
    try:
        with staging.open("xb") as file:
            yield file
        staging.rename(path)
    finally:
        staging.unlink(missing_ok=True)


def parse(content: bytes) -> Any:
    """Return the document that ``content`` holds.

    Raises:
        ValueError: not JSON in UTF-8, nested more than 200 deep, or a number that is not finite.
    """
    return from_json(content, allow_inf_nan=False, cache_strings="none")
