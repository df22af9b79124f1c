"""Encoded blocks into finished shards, and shards into one indexed pair.

Owns when a shard is done, what the manifest keeps of it, and what is said on the way. A shard
is one file: the tokens of its documents, then their sizes. A call that was stopped loses the
one it was at.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.prepared_first import refuse_full

from ..data.indexed import write_index
from .sources import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trainmark.data.prepared_first import Say, Unfinished

    from .encoding import Encoded
    from .sources import Block

    Results = Iterator[tuple[Block, Encoded]]

SHARD_BYTES = 256 << 20  # of source lines
FOLDER = "shards"
SAY_EVERY_S = 5.0
COUNTS = ("documents", "empty_texts", "tokens", "largest_token_id")
SAY_EVERY_S = 5.0


def sound_shards(unfinished: Unfinished) -> list[dict[str, Any]]:
    """Return the finished shards up to the first that is gone or changed.

    The manifest keeps these only.
    """
    shards = unfinished.manifest["shards"]
    sound = takewhile(lambda item: _name(item[0]) in unfinished.files, enumerate(shards))
    unfinished.manifest["shards"] = kept = [shard for _, shard in sound]
    return kept


def resume_at(shards: list[dict[str, Any]]) -> Position:
    """Return where in the corpus the next shard begins."""
    return Position(**shards[-1]["end"]) if shards else Position()


def tell_progress(
    results: Results, total_bytes: int, say: Say, clock: Callable[[], float] = time.monotonic
) -> Results:
    """Pass ``results`` on and say now and then how far they are.

    Args:
        total_bytes: size of all sources on disk.
        clock: seconds from any start.
    """
    began: tuple[float, int] | None = None  # with the first block: an earlier call's are not ours
    for block, encoded in results:
        yield block, encoded
        now_s, done_bytes = clock(), block.consumed_bytes
        if began is None:
            began, said_s = (now_s, done_bytes), now_s
        if now_s - said_s < SAY_EVERY_S:
            continue
        began_s, before_bytes = began
        said_s = now_s
        line = f"{done_bytes / 1e6:,.0f} of {total_bytes / 1e6:,.0f} MB"
        if done_bytes > before_bytes:
            rate = (done_bytes - before_bytes) / (now_s - began_s)
            left = timedelta(seconds=round((total_bytes - done_bytes) / rate))
            line += f", {rate / 1e6:.1f} MB/s, {left} left"
        say(line)


def write_shards(results: Results, unfinished: Unfinished, total_bytes: int) -> None:
    """Write ``results`` as shards after those that are there; list each when it is done.

    Raises:
        EnvironmentFault: the disk is full, or will be at this rate.
    """
    shards: list[dict[str, Any]] = unfinished.manifest["shards"]
    for first in results:
        write = partial(_write_shard, chain([first], results))
        shard, done_bytes = unfinished.write(_name(len(shards)), write)
        shards.append(shard)
        unfinished.save()
        _refuse_full(unfinished, done_bytes / total_bytes)


def _write_shard(results: Results, file: Path) -> tuple[dict[str, Any], int]:
    """Write one shard; return its row in the manifest and the bytes read up to its end."""
    counts = dict.fromkeys(COUNTS, 0)
    sizes = [np.empty(0, np.int32)]
    source_bytes = 0
    with file.open("wb") as stream:
        for block, encoded in results:
            stream.write(encoded.tokens.data)
            sizes.append(encoded.sizes)
            counts["documents"] += len(encoded.sizes)
            counts["empty_texts"] += encoded.empty_texts
            counts["tokens"] += len(encoded.tokens)
            largest = int(encoded.tokens.max(initial=0))
            counts["largest_token_id"] = max(counts["largest_token_id"], largest)
            source_bytes += block.end.offset_bytes - block.start.offset_bytes
            if source_bytes >= SHARD_BYTES:
                break
        stream.write(np.concatenate(sizes).data)
    return {**counts, "end": asdict(block.end)}, block.consumed_bytes


def join_shards(unfinished: Unfinished, name: str, dtype: np.dtype[Any]) -> None:
    """Join all shards into the pair ``name``, list it with their counts, remove them.

    Raises:
        EnvironmentFault: the disk has no room for it.
    """
    shards = unfinished.manifest["shards"]
    _refuse_full(unfinished, 1.0)
    files = [unfinished.partial / _name(number) for number in range(len(shards))]

    def join_tokens(place: Path) -> None:
        with place.open("wb") as joined:
            for file, shard in zip(files, shards, strict=True):
                with file.open("rb") as stream:
                    shutil.copyfileobj(stream, joined)
                joined.seek(joined.tell() - 4 * shard["documents"])  # over the sizes
            joined.truncate()

    sizes = [
        np.fromfile(file, "<i4", offset=shard["tokens"] * dtype.itemsize)
        for file, shard in zip(files, shards, strict=True)
    ]
    every = np.concatenate([np.empty(0, np.int32), *sizes])
    unfinished.write(f"{name}.bin", join_tokens)
    unfinished.write(f"{name}.idx", lambda place: write_index(place, every, dtype))
    for count in COUNTS:
        values = [0, *(shard[count] for shard in shards)]
        unfinished.manifest[count] = (max if count == "largest_token_id" else sum)(values)
    unfinished.manifest["shards"] = []
    for file in [file for file in unfinished.files if file.startswith(f"{FOLDER}/")]:
        del unfinished.files[file]
    unfinished.save()
    shutil.rmtree(unfinished.partial / FOLDER, ignore_errors=True)


def _refuse_full(unfinished: Unfinished, done: float) -> None:
    """Refuse to go on where the shards still to come and the joined pair find no room."""
    shards = range(len(unfinished.manifest["shards"]))
    written = sum(unfinished.files[_name(number)]["size_bytes"] for number in shards)
    needed = int(2 * written / done - written)
    rule = "until they are joined, finished shards take as much room as the result"
    refuse_full(unfinished.partial, needed, rule=rule)


def _name(number: int) -> str:
    return f"{FOLDER}/{number:06}"
