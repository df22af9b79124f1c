"""Turn corpora of JSON lines into pairs of Megatron's indexed tokens, whole or not at all.

Owns which files are a corpus, what is refused in a line, what is written and what the manifest
says. Blocks of lines are encoded by worker processes, or by the tokenizers' own threads where a
corpus is small; a corpus may have any size. A call that was stopped goes on after the last block
that was saved.
"""

from __future__ import annotations

import gzip
import os
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import islice
from multiprocessing import get_context, parent_process
from signal import SIG_IGN, SIGINT, signal
from threading import Thread
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic_core import SchemaValidator, ValidationError, core_schema

from trainmark.data import prepared
from trainmark.data.indexed import dtype_for, write_index
from trainmark.data.text import BYTE_ORDER_MARK, MAX_LINE_BYTES
from trainmark.data.tokenizer import corpus_files, open_corpus_tokenizer
from trainmark.errors import DataError, EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

    from trainmark.data.prepared import Say, Unfinished
    from trainmark.data.tokenizer import CorpusTokenizer

SAVE_EVERY_TOKENS = 1 << 26
COUNTS = ("documents", "empty_texts", "tokens", "largest_token_id")
FORMAT = 4
TOKENIZER = "tokenizer"
BLOCK_BYTES = 1 << 21
WORKER_BYTES = 1 << 25  # of a corpus, for which another worker is started
ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
GZIP_MAGIC = b"\x1f\x8b"
FIX = "give --from a file of JSON lines, plain or gzip, or a folder of them"
SHOWN_CHARACTERS = 80  # of what stands in place of a text


def write_pairs(
    raw: Path,
    data: Path,
    say: Say,
    *,
    case: str,
    pairs: Mapping[str, Mapping[str, Path]],
    tokenizer: Path,
    most: Mapping[str, int] | None = None,
    text_key: str = "text",
    ends: bool = True,
    workers: int | None = None,
    **options: Any,
) -> None:
    """Write ``data``: the indexed pairs by their names, the tokenizer's files and a manifest.

    Args:
        raw: where the sources lie.
        say: called with each line; see ``prepared.writing``.
        pairs: the sources of each by name, in the order they are read; see ``source_files``.
        tokenizer: folder of the tokenizer; see ``data.tokenizer``.
        most: lines that are read of a pair's sources at most; others are read whole.
        text_key: under which key a line has its text.
        ends: whether the tokenizer's end-of-document token ends every document.
        workers: processes at most; none: as many as there are usable cores. The bytes that are
            written do not depend on it.
        options: what the manifest says besides; see ``prepared.writing``.

    Raises:
        DataError: a corpus or the tokenizer is missing or damaged, or ``data`` is not
            this call's to write.
        EnvironmentFault: no room or no permission, or a worker ended.
    """
    encoder = BlockEncoder(tokenizer, text_key, ends=ends)
    how = encoder.how
    files = {
        name: file for files_of_split in pairs.values() for name, file in files_of_split.items()
    }
    copies = {f"{TOKENIZER}/{name}": file for name, file in corpus_files(tokenizer).items()}
    with prepared.writing(
        data,
        raw,
        {**files, **copies},
        say,
        case=case,
        form=FORMAT,
        text_key=text_key,
        vocab_size=how.vocab_size,
        end_of_document={"token": how.end_of_document, "id": how.end_id},
        **options,
    ) as unfinished:
        if unfinished is None:
            return
        for name, file in copies.items():
            unfinished.copy(name, file)
        for name, files_of_split in pairs.items():
            writer = _PairWriter(name, [*files_of_split.values()], encoder, unfinished)
            counts = writer.write(_num_workers(workers, writer.total_bytes), (most or {}).get(name))
            if not counts["documents"]:
                raise DataError(
                    f"no document in the corpus, {counts['empty_texts']} empty texts",
                    where=str(raw),
                    rule="a corpus has at least one text that is not empty",
                    fix="name the texts' key with text_key=, or give another file with --from",
                )
            unfinished.report(
                f"{counts['documents']:,} documents, {counts['tokens']:,} tokens, largest id "
                f"{counts['largest_token_id']} of {how.vocab_size}"
            )


def _num_workers(workers: int | None, total_bytes: int) -> int:
    """Return how many processes encode a corpus of so many bytes; 1: the caller's own."""
    max_workers = len(os.sched_getaffinity(0)) if workers is None else workers
    return min(max_workers, 1 + total_bytes // WORKER_BYTES)


class Place(NamedTuple):
    """How far a corpus has been read.

    Args:
        file: number of the file among the sources.
        line: lines read of that file.
        lines: lines read of all files.
        read_bytes: bytes read of all files, as they lie on disk.
    """

    file: int = 0
    line: int = 0
    lines: int = 0
    read_bytes: int = 0


BEGIN = Place()


class Block(NamedTuple):
    """Neighbouring lines of a file.

    Args:
        first: number of the first line in ``path``, from 1.
        after: where the corpus goes on.
    """

    lines: list[bytes]
    path: Path
    first: int
    after: Place


class Encoded(NamedTuple):
    """The documents of a block: their tokens one after another, their sizes, and what is not one.

    Args:
        tokens: (sum of sizes,).
        sizes: tokens of each document, int32 (documents,).
    """

    tokens: NDArray[Any]
    sizes: NDArray[np.int32]
    empty_texts: int


class BlockEncoder:
    """Turns blocks of lines into tokens.

    Args:
        tokenizer: its folder.
    """

    def __init__(self, tokenizer: Path, text_key: str, *, ends: bool) -> None:
        self.arguments = (tokenizer, text_key, ends)
        self.how: CorpusTokenizer = open_corpus_tokenizer(tokenizer, ends=ends)
        self.text_key = text_key
        self.dtype = dtype_for(self.how.vocab_size)

    def encode(self, block: Block) -> Encoded:
        """Return the documents of a block.

        Raises:
            DataError: the first line that holds no text.
        """
        texts = texts_of(block.lines, self.text_key, block.path, block.first)
        encoded = self.how.library.encode_batch_fast(
            [text for text in texts if text], add_special_tokens=False
        )
        end = [] if self.how.end_id is None else [self.how.end_id]
        documents = [np.array([*item.ids, *end], self.dtype) for item in encoded]
        return Encoded(
            np.concatenate([np.empty(0, self.dtype), *documents]),
            np.array([len(document) for document in documents], np.int32),
            texts.count(""),
        )


_worker_encoder: BlockEncoder | None = None  # of a worker process


def _begin_worker(tokenizer: Path, text_key: str, ends: bool) -> None:
    global _worker_encoder  # noqa: PLW0603 - the pool hands its workers no other place
    signal(SIGINT, SIG_IGN)  # the parent ends its workers
    Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a worker is one thread
    _worker_encoder = BlockEncoder(tokenizer, text_key, ends=ends)


def _end_with_parent() -> None:
    """End this process if its parent was killed, which cannot end its workers then."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode_in_worker(block: Block) -> Encoded:
    assert _worker_encoder is not None
    return _worker_encoder.encode(block)


def encode_blocks(
    blocks: Iterable[Block], encoder: BlockEncoder, workers: int
) -> Iterator[tuple[Block, Encoded]]:
    """Yield blocks with their documents, in order.

    Args:
        workers: processes; 1: none is started.

    Raises:
        DataError: as ``BlockEncoder.encode``.
        EnvironmentFault: a worker ended.
    """
    if workers == 1:
        for block in blocks:
            yield block, encoder.encode(block)
        return
    pool = ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=_begin_worker, initargs=encoder.arguments
    )
    pending: deque[tuple[Block, Future[Encoded]]] = deque()
    try:
        for block in blocks:
            pending.append((block, pool.submit(_encode_in_worker, block)))
            if len(pending) == 2 * workers:
                first, encoded = pending.popleft()
                yield first, encoded.result()
        for block, encoded in pending:
            yield block, encoded.result()
    except BrokenProcessPool:
        raise EnvironmentFault(
            "a worker process ended before its work was done",
            rule="each holds the tokenizer and some blocks of lines in memory",
            fix="give workers= a smaller number",
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


class _PairWriter:
    """Writes a pair, and goes on where an earlier call was stopped.

    Args:
        name: of the pair.
        files: its sources in order.
    """

    def __init__(
        self, name: str, files: Sequence[Path], encoder: BlockEncoder, unfinished: Unfinished
    ) -> None:
        self.name, self.files, self.encoder, self.unfinished = name, files, encoder, unfinished
        self.total_bytes = sum(file.stat().st_size for file in files)
        self.tokens_file = unfinished.folder / f"{name}.bin"
        self.sizes_file = unfinished.work / f"{name}.sizes"
        self.place, self.counts = BEGIN, dict.fromkeys(COUNTS, 0)
        kept = unfinished.state["stages"].get(name)
        if kept is not None and self._on_disk(kept["counts"]):
            self.place, self.counts = Place(*kept["place"]), kept["counts"]
        else:
            unfinished.state["files"].pop(f"{name}.bin", None)

    def _on_disk(self, counts: dict[str, int]) -> bool:
        """Return whether the files hold at least what was saved."""
        files = (self.tokens_file, self.sizes_file)
        return all(file.is_file() for file in files) and (
            self.tokens_file.stat().st_size >= counts["tokens"] * self.encoder.dtype.itemsize
            and self.sizes_file.stat().st_size >= counts["documents"] * 4
        )

    def write(self, workers: int, most: int | None) -> dict[str, int]:
        """Write both files of the pair; return what was counted."""
        report, counts = self.unfinished.report, self.counts
        report.begin(f"tokenising {self.name}", self.total_bytes, self.place.read_bytes)
        saved_tokens = counts["tokens"]
        with (
            _append(self.tokens_file, counts["tokens"] * self.encoder.dtype.itemsize) as tokens,
            _append(self.sizes_file, counts["documents"] * 4) as sizes,
        ):
            blocks = read_blocks(self.files, self.place, most)
            for block, encoded in encode_blocks(blocks, self.encoder, workers):
                tokens.write(encoded.tokens.data)
                sizes.write(encoded.sizes.data)
                counts["documents"] += len(encoded.sizes)
                counts["empty_texts"] += encoded.empty_texts
                counts["tokens"] += len(encoded.tokens)
                largest = int(encoded.tokens.max(initial=0))
                counts["largest_token_id"] = max(counts["largest_token_id"], largest)
                report.advance(block.after.read_bytes - self.place.read_bytes)
                self.place = block.after
                if counts["tokens"] - saved_tokens >= SAVE_EVERY_TOKENS:
                    saved_tokens = counts["tokens"]
                    self._save(tokens, sizes)
            self._save(tokens, sizes)
        self.unfinished.manifest["counts"][self.name] = counts
        documents = np.fromfile(self.sizes_file, np.int32)
        self.unfinished.file(
            f"{self.name}.idx", partial(write_index, sizes=documents, dtype=self.encoder.dtype)
        )
        return counts

    def _save(self, *streams: IO[bytes]) -> None:
        """Note how far the pair is, after its bytes are on disk."""
        for stream in streams:
            stream.flush()
            os.fsync(stream.fileno())
        kept = {"place": list(self.place), "counts": dict(self.counts)}
        self.unfinished.state["stages"][self.name] = kept
        self.unfinished.save()


@contextmanager
def _append(file: Path, size: int) -> Iterator[IO[bytes]]:
    """Open a file to write after its first ``size`` bytes; what stands there is removed."""
    with file.open("r+b" if file.exists() else "wb") as stream:
        stream.truncate(size)
        stream.seek(size)
        yield stream


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
        raise DataError("no such file or folder", where=str(raw), fix=FIX)
    candidates = {
        file.relative_to(raw).as_posix(): file
        for file in raw.rglob("*")
        if file.is_file() and file.name.lower().endswith(ENDINGS) and file.name[0] != "."
    }
    if not candidates:
        rule = f"files that end in {', '.join(ENDINGS)} count"
        raise DataError("no file of JSON lines", where=str(raw), rule=rule, fix=FIX)
    return dict(sorted(candidates.items()))


def _read_lines(stream: Any) -> list[bytes]:
    """Return the next lines with their ends, some 2 MiB; empty: there are no more.

    A line is cut after ``MAX_LINE_BYTES``, so that a hole in a file is not held in memory.
    """
    block = stream.read(BLOCK_BYTES)
    if block and not block.endswith(b"\n"):
        block += stream.readline(MAX_LINE_BYTES)
    lines = block.split(b"\n")
    last = lines.pop()
    ended = [line + b"\n" for line in lines]
    return [*ended, last] if last else ended


def read_blocks(
    files: Sequence[Path], begin: Place = BEGIN, most: int | None = None
) -> Iterator[Block]:
    """Yield all lines of files in order, some 2 MiB at a time.

    Args:
        begin: lines before it are left out.
        most: lines to read at most, those before ``begin`` counted.

    Raises:
        DataError: a damaged gzip file.
    """
    before, lines_read = 0, begin.lines
    for number, path in enumerate(files):
        if number >= begin.file:
            first = 1 + (begin.line if number == begin.file else 0)
            with path.open("rb") as raw, prepared.whole_gzip(path):
                zipped = raw.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
                stream: Any = gzip.GzipFile(fileobj=raw) if zipped else raw
                for _ in islice(stream, first - 1):
                    pass
                while lines := _read_lines(stream):
                    if most is not None:
                        lines = lines[: most - lines_read]
                    if not lines:
                        return
                    if first == 1:
                        lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
                    lines_read += len(lines)
                    line = first - 1 + len(lines)
                    after = Place(number, line, lines_read, before + raw.tell())
                    yield Block(lines, path, first, after)
                    first += len(lines)
        before += path.stat().st_size


def _fault_of_line(error: ValidationError, text_key: str) -> str:
    """Return what is wrong with a line, in a few words."""
    fault = error.errors(include_url=False)[0]
    value = f"{fault['input']!r:.{SHOWN_CHARACTERS}}"
    if fault["type"] == "json_invalid":
        reason = str(fault["ctx"]["error"]).replace("at line 1 column", "at column")
        return f"not JSON, {reason}: {value}"
    if fault["type"] == "missing":
        return f"no {text_key!r}; its keys: {', '.join(fault['input']):.{SHOWN_CHARACTERS}}"
    if fault["loc"]:
        return f"{text_key!r} is {value}, not a text"
    return f"not a JSON object: {value}"


def texts_of(lines: Sequence[bytes], text_key: str, path: Path, first: int = 1) -> list[str]:
    """Return the text of every line, the ``first`` of which has that number in ``path``.

    Lines of white space only are skipped.

    Raises:
        DataError: a line is no JSON object, or has no text under ``text_key``.
    """
    text = core_schema.typed_dict_field(core_schema.str_schema())
    of_line = SchemaValidator(core_schema.typed_dict_schema({text_key: text}))
    texts: list[str] = []
    for number, line in enumerate(lines, start=first):
        content = line.rstrip()
        if not content:
            continue
        try:
            texts.append(of_line.validate_json(content)[text_key])
        except ValidationError as error:
            raise DataError(
                _fault_of_line(error, text_key),
                where=f"{path}, line {number}",
                rule=f"a line is one JSON object in UTF-8 with a text under {text_key!r}",
                fix="mend or remove the line, or name the text's key with text_key=",
            ) from None
    return texts
