"""Read all numbers of a data set once, and keep what was found beside it.

Owns the scan for extreme values and the findings' file, valid for as long as sizes and times
of change of the scanned files stay. Must not know which values are allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import ValidationError

from trainmark.data.cache import replace_file
from trainmark.data.json_documents import Frozen
from trainmark.data.prepared_first import stamps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Extremes:
    """What a vector of whole numbers holds, counted from its start.

    Args:
        digest: sha256 of its bytes.
        smallest_at, largest_at: where each stands first.
    """

    digest: str
    smallest: int
    smallest_at: int
    largest: int
    largest_at: int


class _Findings(Frozen):
    format: Literal[2] = 2
    files: dict[str, tuple[int, int]]
    found: dict[str, Extremes]


def extremes(
    blocks: Iterable[NDArray[Any]],
    *,
    digest: Any = None,
    comparable: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray,
) -> Extremes:
    """Return the extremes of a vector that comes in blocks, none of them empty.

    Args:
        digest: a sha256 to go on with; none: a new one.
        comparable: maps a block to the whole numbers that are compared.
    """
    digest, at = digest or sha256(), 0
    low: tuple[int, int] | None = None
    high: tuple[int, int] | None = None
    for block in blocks:
        digest.update(np.ascontiguousarray(block).data)
        values = comparable(block)
        smallest, largest = int(values.min()), int(values.max())
        if low is None or smallest < low[0]:
            low = smallest, at + int(values.argmin())
        if high is None or largest > high[0]:
            high = largest, at + int(values.argmax())
        at += len(values)
    assert low is not None, "the caller refuses an empty vector"
    assert high is not None
    return Extremes(digest.hexdigest(), *low, *high)


def cached_scan(
    file: Path,
    scanned: Mapping[str, Path],
    scan: Callable[[], Mapping[str, Extremes]],
    *,
    wanted: Iterable[str] = (),
) -> dict[str, Extremes]:
    """Return what ``scan`` finds, from ``file`` where nothing has changed since.

    A large data set takes minutes to read. Where nothing can be kept it is read each time.

    Args:
        scanned: the files that are read, by names that say all that the findings depend on.
        wanted: names of findings; a cache that lacks one is damaged.

    Raises:
        OSError: one of them cannot be read.
    """
    before = stamps(scanned)  # a change while we read is then seen next time
    try:
        kept = _Findings.model_validate_json(file.read_bytes(), strict=True)
        if kept.files == before and kept.found.keys() >= set(wanted):
            return kept.found
    except (OSError, ValidationError):  # absent, damaged, or of another version
        pass
    found = dict(scan())
    content = _Findings(files=before, found=found).model_dump_json(indent=1)
    replace_file(file, lambda stream: stream.write(f"{content}\n".encode()))
    return found
