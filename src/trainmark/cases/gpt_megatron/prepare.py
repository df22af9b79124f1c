"""Turn a corpus of JSON lines into Megatron's indexed tokens, whole or not at all.

Owns the steps and what the manifest says. Reading, encoding and writing go on at once:
``prepare_sources`` reads blocks of lines, workers encode them (``prepare_pool``), and
``prepare_shards`` writes their ids in the order of the corpus. The files are the same for
any number of workers and any number of interruptions.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

from trainmark.data import prepared
from trainmark.errors import DataError, UsageError

from .tokenizer import open_tokenizer, tokenizer_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainmark.data.prepared import Say, Unfinished

    from .tokenizer import CorpusTokenizer

FORMAT = 1
PREFIX = "corpus_text_document"
TOKENIZER = "tokenizer"
MAX_WORKERS = 512


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
        say: called with one line for each thing done, kept or found.
        tokenizer: folder of the tokenizer; see ``tokenizer.open_tokenizer``.
        workers: processes that encode; none: as many as there are usable cores.
        text_key: under which key a line has its text.

    Raises:
        UsageError: no tokenizer, or a number of workers that cannot be.
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
    count = len(os.sched_getaffinity(0)) if workers is None else workers
    if not 1 <= count <= MAX_WORKERS:
        raise UsageError(
            f"{count} workers",
            where="--workers",
            rule=f"from 1 to {MAX_WORKERS} processes encode",
            remedy="leave it out for one a core",
        )
    with prepared.alone(data) as folder:
        try:
            _prepare(
                raw.resolve(), folder, say, tokenizer.resolve(), workers=count, text_key=text_key
            )
        except KeyboardInterrupt:
            say("interrupted; call again to go on after the last finished shard")
            raise


def _prepare(
    raw: Path, data: Path, say: Say, tokenizer: Path, *, workers: int, text_key: str
) -> None:
    from .prepare_sources import source_files

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
    fresh = {"shards": [], "documents": 0, "empty_texts": 0, "tokens": 0, "largest_token_id": 0}
    unfinished = prepared.resume(data, made_of=made_of, fresh=fresh, say=say)
    if unfinished is None:
        return
    _copy_tokenizer(tokenizer, unfinished)
    if any(f"{PREFIX}{end}" not in unfinished.files for end in (".bin", ".idx")):
        with unfinished.worth_keeping("shards"):
            _write_corpus(files, opened, unfinished, workers, say)
        prepared.refuse_changed(files, stamps, unfinished)
        _refuse_empty(unfinished, raw)
    _tell(unfinished.manifest, say)
    unfinished.finish()
    say(f"done: {data}")


def _copy_tokenizer(folder: Path, unfinished: Unfinished) -> None:
    for name, file in tokenizer_files(folder).items():
        if f"{TOKENIZER}/{name}" not in unfinished.files:
            unfinished.write(f"{TOKENIZER}/{name}", partial(shutil.copyfile, file))
    unfinished.save()


def _write_corpus(
    files: Mapping[str, Path],
    opened: CorpusTokenizer,
    unfinished: Unfinished,
    workers: int,
    say: Say,
) -> None:
    """Encode what no finished shard holds, and join the shards into the pair."""
    from . import prepare_shards as shards
    from .indexed import dtype_for
    from .prepare_pool import Workers
    from .prepare_sources import BLOCK_BYTES, read_blocks

    dtype = dtype_for(opened.vocab_size)
    kept = shards.sound_shards(unfinished)
    if kept:
        say(f"kept {len(kept)} finished shards: their sha256 fits")
    total_bytes = sum(file.stat().st_size for file in files.values())
    useful = 1 + 4 * total_bytes // BLOCK_BYTES  # gzip makes several blocks of one's bytes
    with Workers(
        min(workers, useful),
        tokenizer=unfinished.partial / TOKENIZER,
        dtype=dtype.str,
        text_key=unfinished.manifest["text_key"],
    ) as pool:
        results = pool.in_order(read_blocks(files, shards.resume_at(kept)))
        progress = shards.Progress(total_bytes, say)
        shards.write_shards(results, unfinished, dtype, progress)
    shards.join_shards(unfinished, PREFIX, dtype)


def _refuse_empty(unfinished: Unfinished, raw: Path) -> None:
    if not unfinished.manifest["documents"]:
        unfinished.discard()
        raise DataError(
            f"no document in the corpus, {unfinished.manifest['empty_texts']} empty texts",
            where=str(raw),
            rule="a corpus has at least one text that is not empty",
            remedy="name the texts' key with --text-key, or give another file with --from",
        )


def _tell(manifest: Mapping[str, Any], say: Say) -> None:
    line = (
        f"{manifest['documents']:,} documents, {manifest['tokens']:,} tokens, "
        f"largest id {manifest['largest_token_id']} of {manifest['vocab_size']}"
    )
    if manifest["empty_texts"]:
        line += f"; {manifest['empty_texts']:,} empty texts left out"
    say(line)
