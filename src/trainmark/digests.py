"""Digests of files."""

from __future__ import annotations

from hashlib import sha256
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import hashlib

_BLOCK_BYTES = 1 << 20


def hash_stream(stream: IO[bytes]) -> hashlib._Hash:
    """Return the SHA-256 of the rest of ``stream``, as an object to which more can be added.

    This does what ``hashlib.file_digest`` does, which Python 3.10 lacks.
    """
    digest = sha256()
    block = stream.read(_BLOCK_BYTES)
    while block:  # an empty block is the end of the stream
        digest.update(block)
        block = stream.read(_BLOCK_BYTES)
    return digest
