"""Encoded blocks into finished shards, and shards into one indexed pair.

Owns when a shard is done, what the manifest keeps of it, and what is said on the way. A
shard is a sound indexed pair of its own; a call that was stopped loses the one it was at.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.prepared import fingerprint, refuse_full, sound

from .index_layout import bin_file, idx_file
from .indexed import IndexedWriter
from .prepare_sources import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trainmark.data.prepared import Say, Unfinished

    from .prepare_encode import Encoded
    from .prepare_sources import Block

    Results = Iterator[tuple[Block, Encoded]]

SHARD_BYTES = 256 << 20  # of source lines
FOLDER = "shards"
COUNTS = ("documents", "empty_texts", "tokens", "largest_token_id")
SAY_EVERY_S = 5.0


class Progress:
    """Say how far a corpus is, now and then.

    Args:
        total_bytes: size of all sources on disk.
        say: called with a line.
        clock: seconds from any start.
    """

    def __init__(
        self, total_bytes: int, say: Say, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total_bytes = total_bytes
        self._say = say
        self._clock = clock
        self._began = self._said = clock()
        self._before_bytes: int | None = None

    def share(self, consumed_bytes: int) -> float:
        """Return which share of the corpus ``consumed_bytes`` are, above 0, at most 1."""
        return consumed_bytes / self._total_bytes

    def at(self, consumed_bytes: int) -> None:
        """Take note of the bytes read so far; speak when it is time."""
        now = self._clock()
        if self._before_bytes is None:  # what an earlier call did is no work of this one
            self._before_bytes, self._began = consumed_bytes, now
        if now - self._said < SAY_EVERY_S:
            return
        self._said = now
        line = f"{consumed_bytes / 1e6:,.0f} of {self._total_bytes / 1e6:,.0f} MB"
        done_bytes = consumed_bytes - self._before_bytes
        if done_bytes > 0 and now > self._began:
            rate = done_bytes / (now - self._began)
            left_s = (self._total_bytes - consumed_bytes) / rate
            line += f", {rate / 1e6:.1f} MB/s, {_duration(left_s)} left"
        self._say(line)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def sound_shards(unfinished: Unfinished) -> list[dict[str, Any]]:
    """Return the finished shards up to the first that is gone or changed.

    The manifest keeps these only.
    """
    kept = []
    for number, shard in enumerate(unfinished.manifest["shards"]):
        prefix = _prefix(unfinished.partial / FOLDER, number)
        if not all(sound(file, shard[file.suffix]) for file in _pair(prefix)):
            break
        kept.append(shard)
    unfinished.manifest["shards"] = kept
    return kept


def resume_at(shards: list[dict[str, Any]]) -> Position:
    """Return where in the corpus the next shard begins."""
    return Position(**shards[-1]["end"]) if shards else Position()


def write_shards(
    results: Results, unfinished: Unfinished, dtype: np.dtype[Any], progress: Progress
) -> None:
    """Write ``results`` as shards after those that are there; list each when it is done.

    Raises:
        EnvironmentFault: the disk is full, or will be at this rate.
    """
    shards: list[dict[str, Any]] = unfinished.manifest["shards"]
    folder = unfinished.partial / FOLDER
    folder.mkdir(exist_ok=True)
    listed = {file for number in range(len(shards)) for file in _pair(_prefix(folder, number))}
    for file in set(folder.iterdir()) - listed:
        file.unlink()  # of a shard that was not finished
    while (first := next(results, None)) is not None:
        prefix = _prefix(folder, len(shards))
        shard, consumed_bytes = _write_shard(chain([first], results), prefix, dtype, progress)
        shards.append(shard)
        unfinished.save()
        _refuse_full(unfinished.partial, shards, progress.share(consumed_bytes))


def _write_shard(
    results: Results, prefix: Path, dtype: np.dtype[Any], progress: Progress
) -> tuple[dict[str, Any], int]:
    """Write one shard; return its row in the manifest and the bytes read up to its end."""
    counts = dict.fromkeys(COUNTS, 0)
    source_bytes = 0
    with IndexedWriter(prefix, dtype) as writer:
        for block, encoded in results:
            tokens = np.frombuffer(encoded.tokens, dtype)
            sizes = np.frombuffer(encoded.sizes, np.int32)
            writer.add_documents(tokens, sizes)
            counts["documents"] += len(sizes)
            counts["empty_texts"] += encoded.empty_texts
            counts["tokens"] += len(tokens)
            largest = max(counts["largest_token_id"], int(tokens.max(initial=0)))
            counts["largest_token_id"] = largest
            progress.at(block.consumed_bytes)
            source_bytes += block.size_bytes
            if source_bytes >= SHARD_BYTES:
                break
    files = {file.suffix: fingerprint(file) for file in _pair(prefix)}
    return {**counts, **files, "end": asdict(block.end)}, block.consumed_bytes


def join_shards(unfinished: Unfinished, name: str, dtype: np.dtype[Any]) -> None:
    """Join all shards into the pair ``name``, list it with their counts, remove them.

    Raises:
        EnvironmentFault: the disk has no room for it.
    """
    shards = unfinished.manifest["shards"]
    _refuse_full(unfinished.partial, shards, 1.0)
    joined = unfinished.partial / FOLDER / name  # what a kill leaves goes with the shards
    with IndexedWriter(joined, dtype) as writer:
        for number in range(len(shards)):
            writer.merge(_prefix(unfinished.partial / FOLDER, number))
    for file in _pair(joined):
        file.rename(unfinished.partial / file.name)
        unfinished.keep(file.name)
    for count in COUNTS:
        values = [0, *(shard[count] for shard in shards)]
        unfinished.manifest[count] = (max if count == "largest_token_id" else sum)(values)
    unfinished.manifest["shards"] = []
    unfinished.save()
    shutil.rmtree(unfinished.partial / FOLDER, ignore_errors=True)


def _refuse_full(folder: Path, shards: list[dict[str, Any]], done: float) -> None:
    """Refuse to go on where the shards still to come and the joined pair find no room."""
    written = sum(shard[end]["size_bytes"] for shard in shards for end in (".bin", ".idx"))
    needed = int(2 * written / done - written)
    rule = "until they are joined, finished shards take as much room as the result"
    refuse_full(folder, needed, rule=rule)


def _prefix(folder: Path, number: int) -> Path:
    return folder / f"{number:06}"


def _pair(prefix: Path) -> tuple[Path, Path]:
    return bin_file(prefix), idx_file(prefix)
