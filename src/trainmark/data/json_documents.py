"""JSON documents that somebody else may have written or edited: what is read of them at all.

Regular files of a bounded size, UTF-8, nesting of a bounded depth, every key once, every
number a finite one of 64 bits. Knows nothing of what documents mean.
"""

from __future__ import annotations

import json
import math
import os
from contextlib import contextmanager
from secrets import token_hex
from typing import IO, TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json, to_json

from trainmark.data.regular_file import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# 18 digits before the point and two in the exponent are neither beyond 64 bits nor infinite.
_LONG, _FAR = b"9" * 19, b"e999"
_NINES = bytes(c if c in b".e:" else 57 if c in b"0123456789" else 32 for c in range(256))
MAX_BYTES = 256 << 20  # the record of a million steps has 27 MB


class Frozen(BaseModel):
    """A document of ours: unknown keys fail, nothing changes once built."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def read_bytes(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file, or of one that a link leads to.

    Raises:
        ValueError: a folder, pipe or device, or more than ``max_bytes``.
        OSError: no such file, or not to be read.
    """
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"larger than {max_bytes >> 20} MiB")
    return content


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
            file.flush()
            os.fsync(file.fileno())
        staging.rename(path)
    finally:
        staging.unlink(missing_ok=True)


def parse(content: bytes) -> Any:
    """Return the document that ``content`` holds.

    Raises:
        ValueError: not JSON in UTF-8, nested more than 200 deep, a key given twice in one
            object, or a number that is not finite or beyond 64 bits.
    """
    # Bounds the depth for the next, which looks at each key and number, ten times as long.
    document = from_json(content, allow_inf_nan=False, cache_strings="none")
    if _ordinary(content, document):
        return document
    return json.loads(
        content.decode("utf-8"),
        object_pairs_hook=_each_once,
        parse_float=_finite,
        parse_int=_in_64_bits,
    )


def long_numbers(content: bytes) -> bool:
    """Tell whether a number of ``content`` may be beyond 64 bits."""
    return _LONG in content.translate(_NINES)


def _ordinary(content: bytes, document: Any) -> bool:
    """Tell, where that is quick, that every key is given once and every number within the bounds.

    A key given twice is once in ``document``, so that it has fewer colons than ``content``.
    """
    shape, anew = _shape(content), _shape(to_json(document))
    long = b" " + _LONG in shape or b":" + _LONG in shape or _FAR in shape or not anew
    return not long and shape.count(b":") == anew.count(b":")


def _shape(content: bytes) -> bytes:
    """Return what is outside of strings with 9 for each digit; nothing if a string has quotes."""
    if b'\\"' in content:
        return b""
    return b" ".join([b"", *content.split(b'"')[::2]]).lower().translate(_NINES, b"+-")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {max(names, key=names.count)!r} is given twice")
    return found


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is beyond the range of numbers")
    return value


def _in_64_bits(number: str) -> int:
    if len(number) > 20:
        raise ValueError(f"{number[:20]}... is beyond 64 bits")
    value = int(number)
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"{number} is beyond 64 bits")
    return value
