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
from functools import partial
from typing import TYPE_CHECKING

from trainmark.data import prepared_first as prepared
from trainmark.errors import DataError, UsageError

from ..data.indexed import dtype_for
from . import shards
from .encoding import Encoding, encode_in_order
from .sources import read_blocks, source_files
from .tokenizer import CorpusTokenizer, open_tokenizer, tokenizer_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainmark.data.prepared_first import Say, Unfinished

__all__ = ["prepare"]

FORMAT = 1
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
    with prepared.alone(data, say) as folder:
        _prepare(
            raw.resolve(),
            folder,
            say,
            tokenizer=tokenizer.resolve(),
            workers=count,
            text_key=text_key,
        )


def _prepare(
    raw: Path, data: Path, say: Say, *, tokenizer: Path, workers: int, text_key: str
) -> None:
    for place in (raw, tokenizer):
        prepared.refuse_inside(data, place)
    files = source_files(raw)
    opened = open_tokenizer(tokenizer)
    stamps = prepared.stamps(files)
    size_bytes = sum(size for size, _ in stamps.values())
    say(f"{len(files):,} files, {size_bytes / 1e6:,.1f} MB: taking their sha256")
    made_of = {
        "format": FORMAT,
        "case": "gpt_megatron",
        "sources": prepared.fingerprints(files),
        "tokenizer": prepared.fingerprints(tokenizer_files(tokenizer)),
        "text_key": text_key,
        "vocab_size": opened.vocab_size,
        "end_of_document": {"token": opened.end_of_document, "id": opened.end_id},
    }
    fresh = {"shards": [], **dict.fromkeys(shards.COUNTS, 0)}
    unfinished = prepared.resume(data, made_of=made_of, fresh=fresh, say=say)
    if unfinished is None:
        return
    for name, file in tokenizer_files(tokenizer).items():
        if f"{TOKENIZER}/{name}" not in unfinished.files:
            unfinished.write(f"{TOKENIZER}/{name}", partial(shutil.copyfile, file))
    unfinished.save()
    if any(f"{PREFIX}{end}" not in unfinished.files for end in (".bin", ".idx")):
        with unfinished.worth_keeping("shards"):
            _write_corpus(files, opened, unfinished, workers, say)
        prepared.refuse_changed(files, stamps, unfinished)
    manifest = unfinished.manifest
    empty_texts = manifest["empty_texts"]
    if not manifest["documents"]:
        unfinished.discard()
        raise DataError(
            f"no document in the corpus, {empty_texts} empty texts",
            where=str(raw),
            rule="a corpus has at least one text that is not empty",
            remedy="name the texts' key with --text-key, or give another file with --from",
        )
    say(
        f"{manifest['documents']:,} documents, {manifest['tokens']:,} tokens, "
        f"largest id {manifest['largest_token_id']} of {manifest['vocab_size']}"
        + (f"; {empty_texts:,} empty texts left out" if empty_texts else "")
    )
    unfinished.finish(say)


def _write_corpus(
    files: Mapping[str, Path],
    opened: CorpusTokenizer,
    unfinished: Unfinished,
    workers: int,
    say: Say,
) -> None:
    """Encode what no finished shard holds, and join the shards into the pair."""
    dtype = dtype_for(opened.vocab_size)
    kept = shards.sound_shards(unfinished)
    if kept:
        say(f"kept {len(kept)} finished shards: their sha256 fits")
    total_bytes = sum(file.stat().st_size for file in files.values())
    how = Encoding(unfinished.partial / TOKENIZER, dtype, unfinished.manifest["text_key"])
    blocks = read_blocks(files, shards.resume_at(kept))
    with closing(encode_in_order(blocks, workers, how)) as results:
        told = shards.tell_progress(results, total_bytes, say)
        shards.write_shards(told, unfinished, total_bytes)
    shards.join_shards(unfinished, PREFIX, dtype)
