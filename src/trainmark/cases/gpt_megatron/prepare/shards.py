"""Encoded blocks into finished shards, and shards into one indexed pair.

Owns when a shard is done and what the manifest has of it. A shard is one file: the tokens of
its documents, then their sizes. A call that was stopped loses the one it was at.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.indexed import write_index

from .sources import Position

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainmark.data.prepared import Unfinished

    from .encoding import Encoded
    from .sources import Block

    Results = Iterator[tuple[Block, Encoded]]

SHARD_BYTES = 256 << 20  # of source lines
FOLDER = "shards"
COUNTS = ("documents", "empty_texts", "tokens", "largest_token_id")


def finished(unfinished: Unfinished) -> list[dict[str, Any]]:
    """Return the finished shards; none where a file of one is gone: all are made again."""
    done = unfinished.manifest["done"]
    shards = [done[name] for name in sorted(done)]
    if not all((unfinished.folder / name).is_file() for name in done):
        done.clear()
        shards = []
    return shards


def resume_at(shards: list[dict[str, Any]]) -> Position:
    """Return where in the corpus the next shard begins."""
    return Position(**shards[-1]["end"]) if shards else Position()


def write_shards(results: Results, unfinished: Unfinished, total_bytes: int) -> None:
    """Write ``results`` as shards after those that are finished.

    Args:
        total_bytes: size of all sources on disk.
    """
    (unfinished.folder / FOLDER).mkdir(exist_ok=True)
    for first in results:
        name = f"{FOLDER}/{len(unfinished.manifest['done']):06}"
        place = unfinished.folder / name
        shard = unfinished.stage(name, _write_shard, chain([first], results), place)
        unfinished.say(f"{shard['read_bytes'] / 1e6:,.0f} of {total_bytes / 1e6:,.0f} MB read")


def _write_shard(results: Results, file: Path) -> dict[str, Any]:
    """Write one shard; return its counts and where it ends."""
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
    return {**counts, "end": asdict(block.end), "read_bytes": block.consumed_bytes}


def join_shards(unfinished: Unfinished, name: str, dtype: np.dtype[Any]) -> None:
    """Join all shards into the pair ``name``, count them, remove them."""
    shards = finished(unfinished)
    files = [unfinished.folder / name for name in sorted(unfinished.manifest["done"])]

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
    unfinished.file(f"{name}.bin", join_tokens)
    unfinished.file(f"{name}.idx", lambda place: write_index(place, every, dtype))
    for count in COUNTS:
        values = [0, *(shard[count] for shard in shards)]
        found = max(values) if count == "largest_token_id" else sum(values)
        unfinished.manifest["counts"][count] = found
    unfinished.manifest["done"] = {}
    unfinished.save()
    shutil.rmtree(unfinished.folder / FOLDER, ignore_errors=True)
