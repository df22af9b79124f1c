"""Turn a corpus of JSON lines into Megatron's indexed tokens, whole or not at all.

Owns the stages and what the manifest says. Reading, encoding and writing go on at once:
``sources`` reads blocks of lines, a pool of processes encodes them (``encoding``), and
``shards`` writes their ids in the order of the corpus. The files are the same for any number
of workers and any number of interruptions.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data import prepared
from trainmark.data.indexed import dtype_for, write_index
from trainmark.errors import DataError, UsageError

from .encoding import Encoding, Position, encode_in_order, read_blocks, source_files
from .tokenizer import CorpusTokenizer, open_tokenizer, tokenizer_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainmark.data.prepared import Unfinished

    from .encoding import Block, Encoded

    Results = Iterator[tuple[Block, Encoded]]
    from collections.abc import Mapping

    from trainmark.data.prepared import Say

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


__all__ = ["prepare"]

FORMAT = 2
PREFIX = "corpus_text_document"
TOKENIZER = "tokenizer"


def prepare(
    raw: Path,
    data: Path,
    say: Say,
    *,
    tokenizer: Path | None = None,
    workers: int | None = None,
    text_key: str = "text",
) -> None:
    """Write ``data``: the indexed pair, the tokenizer's files and a manifest.

    Every document ends with the tokenizer's end-of-document token. Calling again with the
    same sources goes on after the last finished shard.

    Args:
        raw: a file of JSON lines, plain or gzip, or a folder of them.
        say: called with each line of progress.
        tokenizer: folder of the tokenizer; see ``tokenizer.open_tokenizer``.
        workers: processes that encode; none: as many as there are usable cores.
        text_key: under which key a line has its text.

    Raises:
        UsageError: no tokenizer.
        DataError: the corpus or the tokenizer is missing or damaged, or ``data`` is not
            this call's to write.
        EnvironmentFault: no room, no permission, or a worker ended.
    """
    if tokenizer is None:
        raise UsageError(
            "no tokenizer",
            where="--tokenizer",
            rule="gpt_megatron trains on tokens: a corpus needs the tokenizer that makes them",
            remedy="give --tokenizer a folder with tokenizer.json, or vocab.json and merges.txt",
        )
    count = workers or len(os.sched_getaffinity(0))
    files, opened = source_files(raw), open_tokenizer(tokenizer)
    copies = {f"{TOKENIZER}/{name}": file for name, file in tokenizer_files(tokenizer).items()}
    with prepared.writing(
        data, raw, {**files, **copies}, say, case="gpt_megatron", form=FORMAT, text_key=text_key,
        vocab_size=opened.vocab_size,
        end_of_document={"token": opened.end_of_document, "id": opened.end_id},
    ) as unfinished:  # fmt: skip
        if unfinished is None:
            return
        for name, file in copies.items():
            unfinished.file(name, partial(shutil.copyfile, file))
        if any(f"{PREFIX}{end}" not in unfinished.manifest["files"] for end in (".bin", ".idx")):
            _write_corpus(files, opened, unfinished, count, text_key)
        counts = unfinished.manifest["counts"]
        if not counts["documents"]:
            shutil.rmtree(unfinished.folder)
            raise DataError(
                f"no document in the corpus, {counts['empty_texts']} empty texts", where=str(raw),
                rule="a corpus has at least one text that is not empty",
                remedy="name the texts' key with --text-key, or give another file with --from",
            )  # fmt: skip
        say(
            f"{counts['documents']:,} documents, {counts['tokens']:,} tokens, largest id "
            f"{counts['largest_token_id']} of {opened.vocab_size}"
            + (f"; {counts['empty_texts']:,} empty texts left out" if counts["empty_texts"] else "")
        )


def _write_corpus(
    files: Mapping[str, Path],
    opened: CorpusTokenizer,
    unfinished: Unfinished,
    workers: int,
    text_key: str,
) -> None:
    """Encode what no finished shard holds, and join the shards into the pair."""
    dtype, done = dtype_for(opened.vocab_size), finished(unfinished)
    how = Encoding(unfinished.folder / TOKENIZER, dtype, text_key)
    blocks = read_blocks(files, resume_at(done))
    with closing(encode_in_order(blocks, workers, how)) as results:
        total_bytes = sum(file.stat().st_size for file in files.values())
        write_shards(results, unfinished, total_bytes)
    join_shards(unfinished, PREFIX, dtype)
