"""Turn corpora of JSON lines into pairs of Megatron's indexed tokens, whole or not at all.

Owns what is written and what the manifest says. Reading, encoding and writing go on at once:
``lines`` reads blocks of lines and has a pool of processes encode them, and their ids are written
here in the order of the corpus. The files are the same for any number of workers.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data import prepared
from trainmark.data.indexed import dtype_for, write_index
from trainmark.data.tokenizer import corpus_files, open_corpus_tokenizer
from trainmark.errors import DataError, UsageError

from .lines import Encoding, encode_in_order, first_lines, read_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainmark.data.prepared import Say, Unfinished

TOLD_TOKENS = 1 << 26  # between two lines of progress
COUNTS = ("documents", "empty_texts", "tokens", "largest_token_id")
FORMAT = 4
TOKENIZER = "tokenizer"


@dataclass(frozen=True, slots=True)
class Corpus:
    """What becomes one pair.

    Args:
        files: sources by name, in the order they are read; see ``lines.source_files``.
        most: documents that are read of them; none: all.
    """

    files: Mapping[str, Path]
    most: int | None = None


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

    Calling again with the same sources keeps the pairs that an interrupted one finished.

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
    """Encode a corpus into the pair ``name``."""
    blocks = read_blocks(corpus.files.values())
    if corpus.most is not None:  # a line is a document, were its text empty
        blocks = first_lines(blocks, corpus.most)

    def write(place: Path) -> None:
        counts, sizes, told = dict.fromkeys(COUNTS, 0), [np.empty(0, np.int32)], TOLD_TOKENS
        with place.open("wb") as tokens, closing(encode_in_order(blocks, workers, how)) as results:
            for encoded in results:
                tokens.write(encoded.tokens.data)
                sizes.append(encoded.sizes)
                counts["documents"] += len(encoded.sizes)
                counts["empty_texts"] += encoded.empty_texts
                counts["tokens"] += len(encoded.tokens)
                largest = int(encoded.tokens.max(initial=0))
                counts["largest_token_id"] = max(counts["largest_token_id"], largest)
                if counts["tokens"] >= told:
                    told += TOLD_TOKENS
                    unfinished.say(
                        f"{counts['documents']:,} documents, {counts['tokens']:,} tokens"
                    )
        unfinished.manifest["counts"][name] = counts
        every = np.concatenate(sizes)
        unfinished.file(f"{name}.idx", lambda index: write_index(index, every, how.dtype))

    unfinished.file(f"{name}.bin", write)  # a pair with it is finished
