"""Tokenised splits kept beside the data, so that a file is tokenised once.

Owns what a kept split is named after and when it is used. Must not know questions.
"""

from __future__ import annotations

import zlib
from hashlib import file_digest, sha256
from typing import TYPE_CHECKING, Any

from trainmark.data.cache import replace_file

from .passages import Passages, tokenise
from .record_jsonl import read_passages, readable
from .tokens import open_vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

FOLDER = "tokens"  # of a data folder
FORMAT = 1  # of the kept arrays and of how text becomes tokens
CHECKSUM = "checksum"


def digest_of(*files: Path) -> str:
    """Return a sha256 over the files' contents, in this order."""
    digest = sha256(f"glm_superglue {FORMAT}".encode())
    for file in files:
        with readable(file), file.open("rb") as stream:
            digest.update(file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def kept_file(file: Path, vocabulary: Path, place: Path) -> Path:
    """Return where a split is kept: named after what it and the vocabulary hold."""
    return place / f"{file.stem}-{digest_of(file, vocabulary)[:16]}.safetensors"


def read_split(file: Path, vocabulary: Path, place: Path) -> Passages:
    """Return a split as tokens: from ``place``, or tokenised now and kept there.

    Where nothing can be kept it is tokenised each time.

    Raises:
        DataError: a line or the vocabulary breaks a rule.
    """
    kept = kept_file(file, vocabulary, place)
    found = _load(kept)
    if found is None:
        found = tokenise(read_passages(file), open_vocabulary(vocabulary))
        _save(kept, found)
    return found


def _save(file: Path, passages: Passages) -> None:
    from safetensors.numpy import save

    arrays = passages.arrays()
    content = save(arrays, metadata={CHECKSUM: _checksum(arrays)})
    replace_file(file, lambda stream: stream.write(content))


def _load(file: Path) -> Passages | None:
    """Return a kept split, or none where the file is absent, unreadable or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as kept:
            arrays = {name: kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118
            told = (kept.metadata() or {}).get(CHECKSUM)
    except (OSError, SafetensorError):
        return None
    return Passages.of_arrays(arrays) if told == _checksum(arrays) else None


def _checksum(arrays: dict[str, NDArray[Any]]) -> str:
    found = 0
    for name in sorted(arrays):
        found = zlib.crc32(arrays[name].data, zlib.crc32(name.encode(), found))
    return f"{found:08x}"
