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

from trainmark.data import prepared
from trainmark.data.indexed import dtype_for
from trainmark.errors import DataError, UsageError

from . import shards
from .encoding import Encoding, encode_in_order
from .sources import read_blocks, source_files
from .tokenizer import CorpusTokenizer, open_tokenizer, tokenizer_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainmark.data.prepared import Say, Unfinished

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
            where="tokenizer=",
            rule="gpt_megatron trains on tokens: a corpus needs the tokenizer that makes them",
            remedy="add tokenizer=DIR, with tokenizer.json, or vocab.json and merges.txt",
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
                remedy="name the texts' key with text_key=, or give another file with --from",
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
    dtype, done = dtype_for(opened.vocab_size), shards.finished(unfinished)
    how = Encoding(unfinished.folder / TOKENIZER, dtype, text_key)
    blocks = read_blocks(files, shards.resume_at(done))
    with closing(encode_in_order(blocks, workers, how)) as results:
        total_bytes = sum(file.stat().st_size for file in files.values())
        shards.write_shards(results, unfinished, total_bytes)
    shards.join_shards(unfinished, PREFIX, dtype)
