"""Lines of JSON into token ids, by a pool of processes and in the order of the corpus.

Owns what is refused in a line, how a worker process works, and the bound on what is held in
memory: a few blocks for each worker, whatever the size of the corpus. Must not know the
indexed form.
"""

from __future__ import annotations

import gzip
import multiprocessing
import os
import signal
import threading
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic_core import SchemaValidator, ValidationError, core_schema

from trainmark.data.prepared import whole_gzip
from trainmark.data.tokenizer import open_corpus_tokenizer
from trainmark.errors import DataError, EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

BLOCK_BYTES = 1 << 19
ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
GZIP_MAGIC = b"\x1f\x8b"
REMEDY = "give --from a file of JSON lines, plain or gzip, or a folder of them"


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines of one source.

    Args:
        path: the source.
        first: number of its first line, from 1.
        lines: the lines with their ends.
    """

    path: Path
    first: int
    lines: list[bytes]


def source_files(raw: Path) -> dict[str, Path]:
    """Return the files of a corpus by name, in the order they are read: sorted by name.

    Args:
        raw: one file of any name, or a folder in which those with a known ending count.

    Raises:
        DataError: nothing is there, or nothing that counts.
    """
    if raw.is_file():
        return {raw.name: raw}
    if not raw.is_dir():
        raise DataError("no such file or folder", where=str(raw), remedy=REMEDY)
    found = {
        file.relative_to(raw).as_posix(): file
        for file in raw.rglob("*")
        if file.is_file() and file.name.lower().endswith(ENDINGS) and file.name[0] != "."
    }
    if not found:
        rule = f"files that end in {', '.join(ENDINGS)} count"
        raise DataError("no file of JSON lines", where=str(raw), rule=rule, remedy=REMEDY)
    return dict(sorted(found.items()))


def read_blocks(files: Iterable[Path]) -> Iterator[Block]:
    """Yield all lines in order.

    A block ends with the line that makes it ``BLOCK_BYTES`` or more, or with its source.

    Raises:
        DataError: a damaged gzip file.
    """
    for path in files:
        first = 1
        with path.open("rb") as raw, whole_gzip(path):
            zipped = raw.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
            stream = gzip.GzipFile(fileobj=raw) if zipped else raw
            while lines := stream.readlines(BLOCK_BYTES):
                yield Block(path, first, lines)
                first += len(lines)


def first_lines(blocks: Iterable[Block], most: int) -> Iterator[Block]:
    """Yield blocks up to ``most`` lines in all, the last one shortened."""
    for block in blocks:
        if most <= 0:
            return
        yield replace(block, lines=block.lines[:most])
        most -= len(block.lines)


HELD_BLOCKS = 4  # for each worker: on their way, at work, or waiting for their turn
SHOWN_CHARACTERS = 80  # of what stands in place of a text


@dataclass(frozen=True, slots=True)
class Encoded:
    """What came of a block of lines.

    Args:
        tokens: ids of all documents, with their end tokens if they have them, in the pair's
            element type.
        sizes: tokens of each document, int32 (documents,).
        empty_texts: texts without a character, which make no document.
    """

    tokens: NDArray[Any]
    sizes: NDArray[np.int32]
    empty_texts: int


@dataclass(frozen=True, slots=True)
class Encoding:
    """How lines become ids.

    Args:
        tokenizer: folder of the tokenizer.
        dtype: element type of the ids.
        text_key: under which key a line has its text.
        ends: whether a token ends every document.
    """

    tokenizer: Path
    dtype: np.dtype[Any]
    text_key: str
    ends: bool = True


def encode(block: Block, how: Encoding) -> Encoded:
    """Encode all lines of a block.

    Raises:
        DataError: the first line that holds no text.
    """
    opened = _open(how.tokenizer, ends=how.ends)
    end = [] if opened.end_id is None else [opened.end_id]
    texts = texts_of(block, how.text_key)
    encoded = opened.library.encode_batch_fast(list(filter(None, texts)), add_special_tokens=False)
    documents = [np.array([*item.ids, *end], how.dtype) for item in encoded]
    sizes = np.array([len(document) for document in documents], np.int32)
    tokens = np.concatenate([np.empty(0, how.dtype), *documents])
    return Encoded(tokens, sizes, texts.count(""))


def texts_of(block: Block, text_key: str) -> list[str]:
    """Return the text of every line; lines of white space only are skipped.

    Raises:
        DataError: a line is no JSON object, or has no text under ``text_key``.
    """
    texts: list[str] = []
    for number, line in enumerate(block.lines, start=block.first):
        content = line.rstrip()
        if not content:
            continue
        try:
            texts.append(_line_type(text_key).validate_json(content)[text_key])
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            what, found = fault["msg"].replace("at line 1 column", "at column"), fault["input"]
            shown = f"its keys are {list(found)}" if isinstance(found, dict) else repr(found)
            raise DataError(
                f"{what}: {shown:.{SHOWN_CHARACTERS}}",
                where=f"{block.path}, line {number}",
                rule=f"a line is one JSON object in UTF-8 with a text under {text_key!r}",
                remedy="mend or remove the line, or name the text's key with text_key=",
            ) from None
    return texts


def encode_in_order(blocks: Iterable[Block], workers: int, how: Encoding) -> Generator[Encoded]:
    """Yield what became of every block, in the order given.

    Raises:
        DataError: a line holds no text; always the first such line of the corpus.
        EnvironmentFault: a worker ended.
    """
    waiting: deque[Future[Encoded]] = deque()
    # Spawned: a forked process must not go on with threads that the library started here.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, spawn, initializer=_start_worker)
    try:
        for block in blocks:
            waiting.append(pool.submit(encode, block, how))
            if len(waiting) == HELD_BLOCKS * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise EnvironmentFault(
            "a worker process was killed, or crashed",
            where=f"one of {workers} workers",
            rule="workers live as long as the call",
            remedy="call again: finished files are kept; where memory ran out, set fewer workers=",
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_open = cache(open_corpus_tokenizer)  # once a worker


@cache
def _line_type(text_key: str) -> SchemaValidator:
    text = core_schema.typed_dict_field(core_schema.str_schema())
    return SchemaValidator(core_schema.typed_dict_schema({text_key: text}))


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that can say what to do
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process a core already
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker as soon as its call is gone, were it killed: nobody else would."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)
