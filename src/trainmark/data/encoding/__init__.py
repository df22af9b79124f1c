"""Turn corpora of JSON lines into pairs of Megatron's indexed tokens, whole or not at all.

Owns the stages and what the manifest says. Reading, encoding and writing go on at once:
``lines`` reads blocks of lines and has a pool of processes encode them, and their ids are written
here in the order of the corpus. The files are the same for any number of workers and any number
of interruptions.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data import prepared
from trainmark.data.indexed import dtype_for, write_index
from trainmark.data.tokenizer import corpus_files, open_corpus_tokenizer
from trainmark.errors import DataError, UsageError

from .lines import Encoding, Position, encode_in_order, first_lines, read_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trainmark.data.prepared import Say, Unfinished

    from .lines import Block, Encoded

    Results = Iterator[tuple[Block, Encoded]]

SHARD_BYTES = 256 << 20  # of source lines
FOLDER = "shards"
COUNTS = ("documents", "empty_texts", "tokens", "largest_token_id")


@dataclass(frozen=True, slots=True)
class Corpus:
    """What becomes one pair.

    Args:
        files: sources by name, in the order they are read; see ``lines.source_files``.
        most: documents that are read of them; none: all.
    """

    files: Mapping[str, Path]
    most: int | None = None


def finished(unfinished: Unfinished, pair: str) -> dict[str, Any]:
    """Return the finished shards of a pair; none where a file is gone: all are made again."""
    done = unfinished.manifest["done"]
    shards = {name: done[name] for name in sorted(done) if name.startswith(f"{FOLDER}/{pair}/")}
    if all((unfinished.folder / name).is_file() for name in shards):
        return shards
    for name in shards:
        del done[name]
    return {}


def write_shards(results: Results, unfinished: Unfinished, pair: str, total_bytes: int) -> None:
    """Write ``results`` as shards of ``pair`` after those that are finished.

    Args:
        total_bytes: size of all sources on disk.
    """
    (unfinished.folder / FOLDER / pair).mkdir(parents=True, exist_ok=True)
    for first in results:
        name = f"{FOLDER}/{pair}/{len(unfinished.manifest['done']):06}"
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
    shards = finished(unfinished, name)

    def join_tokens(place: Path) -> None:
        with place.open("wb") as joined:
            for file, shard in shards.items():
                with (unfinished.folder / file).open("rb") as stream:
                    shutil.copyfileobj(stream, joined)
                joined.seek(joined.tell() - 4 * shard["documents"])  # over the sizes
            joined.truncate()

    sizes = [
        np.fromfile(unfinished.folder / file, "<i4", offset=shard["tokens"] * dtype.itemsize)
        for file, shard in shards.items()
    ]
    every = np.concatenate([np.empty(0, np.int32), *sizes])
    unfinished.file(f"{name}.bin", join_tokens)
    unfinished.file(f"{name}.idx", lambda place: write_index(place, every, dtype))
    counts = unfinished.manifest["counts"][name] = {}
    for count in COUNTS:
        values = [0, *(shard[count] for shard in shards.values())]
        counts[count] = max(values) if count == "largest_token_id" else sum(values)
    for file in shards:
        del unfinished.manifest["done"][file]
    unfinished.save()
    shutil.rmtree(unfinished.folder / FOLDER / name, ignore_errors=True)


FORMAT = 3
TOKENIZER = "tokenizer"


def write_pairs(
    raw: Path,
    data: Path,
    say: Say,
    *,
    case: str,
    pairs: Mapping[str, Corpus],
    tokenizer: Path | None,
    workers: int | None = None,
    text_key: str = "text",
    ends: bool = True,
    **options: Any,
) -> None:
    """Write ``data``: the indexed pairs by their names, the tokenizer's files and a manifest.

    Calling again with the same sources goes on after the last finished shard.

    Args:
        raw: where the sources lie.
        say: called with each line of progress.
        tokenizer: folder of the tokenizer; see ``data.tokenizer``.
        workers: processes that encode; none: as many as there are usable cores.
        text_key: under which key a line has its text.
        ends: whether the tokenizer's end-of-document token ends every document.
        options: what the manifest says besides; see ``prepared.writing``.

    Raises:
        UsageError: no tokenizer.
        DataError: a corpus or the tokenizer is missing or damaged, or ``data`` is not
            this call's to write.
        EnvironmentFault: no room, no permission, or a worker ended.
    """
    if tokenizer is None:
        raise UsageError(
            "no tokenizer",
            where="--tokenizer",
            rule=f"{case} trains on tokens: a corpus needs the tokenizer that makes them",
            remedy="give --tokenizer a folder with tokenizer.json, or vocab.json and merges.txt",
        )
    count = workers or len(os.sched_getaffinity(0))
    opened = open_corpus_tokenizer(tokenizer, ends=ends)
    files = {name: file for corpus in pairs.values() for name, file in corpus.files.items()}
    copies = {f"{TOKENIZER}/{name}": file for name, file in corpus_files(tokenizer).items()}
    with prepared.writing(
        data, raw, {**files, **copies}, say, case=case, form=FORMAT, text_key=text_key,
        vocab_size=opened.vocab_size,
        end_of_document={"token": opened.end_of_document, "id": opened.end_id}, **options,
    ) as unfinished:  # fmt: skip
        if unfinished is None:
            return
        for name, file in copies.items():
            unfinished.file(name, partial(shutil.copyfile, file))
        how = Encoding(
            unfinished.folder / TOKENIZER, dtype_for(opened.vocab_size), text_key, ends=ends
        )
        for name, corpus in pairs.items():
            there = (f"{name}{end}" in unfinished.manifest["files"] for end in (".bin", ".idx"))
            if name not in unfinished.manifest["counts"] or not all(there):
                _write_corpus(name, corpus, how, unfinished, count)
            counts = unfinished.manifest["counts"][name]
            if not counts["documents"]:
                shutil.rmtree(unfinished.folder)
                raise DataError(
                    f"no document in the corpus, {counts['empty_texts']} empty texts",
                    where=str(raw),
                    rule="a corpus has at least one text that is not empty",
                    remedy="name the texts' key with --text-key, or give another file with --from",
                )
            empty = f"; {counts['empty_texts']:,} empty texts left out"
            say(
                f"{counts['documents']:,} documents, {counts['tokens']:,} tokens, largest id "
                f"{counts['largest_token_id']} of {opened.vocab_size}"
                + (empty if counts["empty_texts"] else "")
            )


def _write_corpus(
    name: str, corpus: Corpus, how: Encoding, unfinished: Unfinished, workers: int
) -> None:
    """Encode what no finished shard holds, and join the shards into the pair."""
    done = list(finished(unfinished, name).values())
    start = Position(**done[-1]["end"]) if done else Position()
    blocks = read_blocks(corpus.files, start)
    if corpus.most is not None:  # a line is a document, were its text empty
        read = sum(shard["documents"] + shard["empty_texts"] for shard in done)
        blocks = first_lines(blocks, corpus.most - read)
    with closing(encode_in_order(blocks, workers, how)) as results:
        total_bytes = sum(file.stat().st_size for file in corpus.files.values())
        write_shards(results, unfinished, name, total_bytes)
    join_shards(unfinished, name, how.dtype)
