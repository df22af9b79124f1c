"""Turn corpora of JSON lines into pairs of Megatron's indexed token files.

This module finds the files of a corpus, checks its lines, and writes the pairs and the manifest.
Worker processes encode blocks of lines; a small corpus is encoded by the tokenizer's threads in
this process. A corpus may have any size. A call that was interrupted resumes after the last block
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
from multiprocessing import get_context, parent_process
from signal import SIG_IGN, SIGINT, signal
from threading import Thread
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic_core import SchemaValidator, ValidationError, core_schema

from trainmark.affinity import count_allowed_cores
from trainmark.data import prepared
from trainmark.data.indexed import choose_dtype, write_index
from trainmark.data.text import BYTE_ORDER_MARK, MAX_LINE_BYTES
from trainmark.data.tokenizer import find_corpus_files, open_corpus_tokenizer
from trainmark.errors import DataError, EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

    from trainmark.data.prepared import PartialFolder, Say
    from trainmark.data.tokenizer import CorpusTokenizer

SAVE_EVERY_TOKENS = 1 << 26  # after so many tokens, an interrupted call can resume
COUNT_NAMES = ("documents", "empty_texts", "tokens", "largest_token_id")
FORMAT_VERSION = 4
TOKENIZER_FOLDER = "tokenizer"
BLOCK_BYTES = 1 << 21
WORKER_BYTES = 1 << 25  # one worker for this many bytes of a corpus
ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
GZIP_MAGIC = b"\x1f\x8b"
FIX = "set --from to a file of JSON lines, plain or gzip, or to a folder of such files"
SHOWN_CHARACTERS = 80  # of a wrong value, in an error


def write_pairs(
    raw: Path,
    data: Path,
    say: Say,
    *,
    case: str,
    pairs: Mapping[str, Mapping[str, Path]],
    tokenizer: Path,
    max_lines: Mapping[str, int] | None = None,
    text_key: str = "text",
    ends: bool = True,
    workers: int | None = None,
    **options: Any,
) -> None:
    """Write ``data``: the indexed pairs, the tokenizer's files and a manifest.

    A pair is a ``.bin`` with the token ids of all documents and a ``.idx`` with their lengths.

    Args:
        raw: folder of the sources, or the only source file.
        data: a missing or empty folder. If it was prepared from the same files with the same
            options, it stays as it is.
        say: called with each line; a ``Reporter`` also receives the progress.
        case: name of the case, for the manifest.
        pairs: maps the name of each pair, its files' name without ending, to its source files by
            name, in the order in which they are read.
        tokenizer: folder of the tokenizer.
        max_lines: maximum number of lines to read for a pair, by its name; other pairs are read
            completely. It must be a constant of the case, because the manifest does not have it:
            data of another maximum would count as prepared. No option of the user sets it.
        text_key: the key of the text in a line.
        ends: whether the tokenizer's end-of-document token ends every document.
        workers: maximum number of processes; None: one for each usable core. The written bytes do
            not depend on it.
        options: further entries of the manifest, on which ``data`` depends.

    Raises:
        DataError: a corpus or the tokenizer is missing or damaged, or ``data`` has any other
            content.
        EnvironmentFault: a file cannot be written, or a worker ended.
    """
    encoder = BlockEncoder(tokenizer, text_key, ends=ends)
    corpus_tokenizer = encoder.tokenizer
    sources: dict[str, Path] = {}
    for files_of_pair in pairs.values():
        sources |= files_of_pair
    # The tokenizer's files, by the paths of their copies in ``data``.
    copies = {
        f"{TOKENIZER_FOLDER}/{name}": file for name, file in find_corpus_files(tokenizer).items()
    }
    with prepared.write_data_folder(
        data,
        raw,
        {**sources, **copies},
        say,
        case=case,
        format_version=FORMAT_VERSION,
        text_key=text_key,
        vocab_size=corpus_tokenizer.vocab_size,
        end_of_document={
            "token": corpus_tokenizer.end_of_document,
            "id": corpus_tokenizer.end_id,
        },
        **options,
    ) as partial_folder:
        if partial_folder is None:  # ``data`` is complete already
            return
        for name, file in copies.items():
            partial_folder.copy_file(name, file)
        max_lines_by_pair = {} if max_lines is None else max_lines
        for name, files_of_pair in pairs.items():
            writer = _PairWriter(name, list(files_of_pair.values()), encoder, partial_folder)
            _write_pair(writer, raw, workers=workers, max_lines=max_lines_by_pair.get(name))


def _write_pair(
    writer: _PairWriter, raw: Path, *, workers: int | None, max_lines: int | None
) -> None:
    """Write a pair, refuse it if it has no document, and report what it has.

    Args:
        raw: the file or folder with the texts, for an error.
        workers: maximum number of processes; None: one for each usable core.
        max_lines: maximum number of lines to read; None: all.
    """
    counts = writer.write(_choose_num_workers(workers, writer.total_bytes), max_lines)
    _refuse_empty_corpus(counts, raw)
    writer.partial_folder.report(
        f"{counts['documents']:,} documents, {counts['tokens']:,} tokens, largest id "
        f"{counts['largest_token_id']} of {writer.encoder.tokenizer.vocab_size}"
    )


def _refuse_empty_corpus(counts: Mapping[str, int], raw: Path) -> None:
    """Raise DataError if a corpus has no document.

    Args:
        counts: the numbers of documents, tokens and empty texts that were read, by name.
        raw: the file or folder with its texts.
    """
    if not counts["documents"]:
        raise DataError(
            f"the corpus contains no documents (empty texts: {counts['empty_texts']})",
            where=str(raw),
            rule="a corpus must contain at least one text that is not empty",
            fix="set text_key= to the JSON key of the text, or choose another file with --from",
        )


def _choose_num_workers(workers: int | None, total_bytes: int) -> int:
    """Return how many processes encode a corpus of ``total_bytes``; 1: only this process.

    Args:
        workers: maximum number of processes; None: one for each usable core.
    """
    max_workers = count_allowed_cores() if workers is None else workers
    # A worker takes time to start: each further one needs another ``WORKER_BYTES``.
    return min(max_workers, 1 + total_bytes // WORKER_BYTES)


class CorpusPosition(NamedTuple):
    """A position in a corpus: what has been read up to it.

    Args:
        file_index: index of the current file among the sources.
        file_lines: number of lines read from that file.
        total_lines: number of lines read from all files.
        bytes_read: number of bytes read from all files, as stored on disk.
    """

    file_index: int = 0
    file_lines: int = 0
    total_lines: int = 0
    bytes_read: int = 0


CORPUS_BEGIN = CorpusPosition()  # the start of a corpus


class Block(NamedTuple):
    """Consecutive lines of a file.

    Args:
        lines: the lines with their line ends.
        path: the file.
        first_line_number: number of the first line in ``path``, from 1.
        after: position of the corpus after these lines.
    """

    lines: list[bytes]
    path: Path
    first_line_number: int
    after: CorpusPosition


class EncodedBlock(NamedTuple):
    """The documents of a block.

    Args:
        tokens: token ids of all documents, concatenated (sum of sizes,).
        sizes: number of tokens of each document, int32 (documents,).
        empty_texts: number of lines with an empty text, which become no document.
    """

    tokens: NDArray[Any]
    sizes: NDArray[np.int32]
    empty_texts: int


class BlockEncoder:
    """Turns blocks of lines into tokens.

    Args:
        tokenizer: folder of the tokenizer.
        text_key: the key of the text in a line.
        ends: whether the end-of-document token ends every document.
    """

    def __init__(self, tokenizer: Path, text_key: str, *, ends: bool) -> None:
        # ``tokenizer`` is the tokenizer's folder; ``ends``: whether a token ends each document.
        # ``_begin_worker`` makes an equal encoder of these arguments in each worker process.
        self.worker_arguments = (tokenizer, text_key, ends)
        self.tokenizer: CorpusTokenizer = open_corpus_tokenizer(tokenizer, ends=ends)
        self.text_key = text_key  # the key of the text in a line
        self.dtype = choose_dtype(self.tokenizer.vocab_size)

    def encode(self, block: Block) -> EncodedBlock:
        """Return the tokens of the texts in a block, which holds consecutive lines of a file.

        Raises:
            DataError: a line has no text; the error names the first one.
        """
        texts = parse_texts(block.lines, self.text_key, block.path, block.first_line_number)
        # A text becomes a document; an empty one does not, but ``empty_texts`` below counts it.
        encodings = self.tokenizer.library.encode_batch_fast(
            [text for text in texts if text], add_special_tokens=False
        )
        end_ids = [] if self.tokenizer.end_id is None else [self.tokenizer.end_id]
        documents = [np.array([*encoding.ids, *end_ids], self.dtype) for encoding in encodings]
        no_tokens = np.empty(0, self.dtype)  # for a block without documents
        return EncodedBlock(
            tokens=np.concatenate([no_tokens, *documents]),
            sizes=np.array([len(document) for document in documents], np.int32),
            empty_texts=texts.count(""),
        )


_worker_encoder: BlockEncoder | None = None  # set in each worker process


def _begin_worker(tokenizer: Path, text_key: str, ends: bool) -> None:
    """Prepare a worker process: make its encoder.

    Args:
        tokenizer: folder of the tokenizer.
        text_key: the key of the text in a line.
        ends: whether the end-of-document token ends every document.
    """
    global _worker_encoder  # noqa: PLW0603 - a pool has no other place for a worker's state
    signal(SIGINT, SIG_IGN)  # on Ctrl-C the parent ends its workers
    Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each worker uses one thread
    _worker_encoder = BlockEncoder(tokenizer, text_key, ends=ends)


def _end_with_parent() -> None:
    """Wait for the end of the parent, then end this process; runs in a thread of each worker.

    A killed parent cannot end its workers itself.
    """
    parent = parent_process()
    assert parent is not None, "a worker is a child of the process that made the pool"
    parent.join()
    os._exit(1)  # ends the process; ``sys.exit`` would only end this thread


def _encode_in_worker(block: Block) -> EncodedBlock:
    """Encode a block of lines in a process in which ``_begin_worker`` has set the encoder."""
    assert _worker_encoder is not None
    return _worker_encoder.encode(block)


def encode_blocks(
    blocks: Iterable[Block], encoder: BlockEncoder, workers: int
) -> Iterator[tuple[Block, EncodedBlock]]:
    """Yield each block with its documents' tokens, in order.

    Args:
        blocks: consecutive lines of the corpus.
        encoder: encodes if there is one worker; else each worker makes an equal one.
        workers: number of processes; 1: encode in this process.

    Raises:
        DataError: a line has no text.
        EnvironmentFault: a worker ended before its work was done.
    """
    if workers == 1:
        for block in blocks:
            yield block, encoder.encode(block)
        return
    pool = ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=_begin_worker, initargs=encoder.worker_arguments
    )
    pending: deque[tuple[Block, Future[EncodedBlock]]] = deque()
    try:
        for block in blocks:
            pending.append((block, pool.submit(_encode_in_worker, block)))
            # Not more than one block in work and one waiting for each worker, to limit the memory.
            if len(pending) == 2 * workers:
                oldest_block, future = pending.popleft()
                yield oldest_block, future.result()
        for block, future in pending:
            yield block, future.result()
    except BrokenProcessPool:
        raise EnvironmentFault(
            "a worker process died before it finished",
            rule=(
                "all workers must fit into memory; each worker loads the tokenizer and several "
                "blocks of lines"
            ),
            fix="set workers= to a smaller number",
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


class _PairWriter:
    """Writes a pair: a ``.bin`` with the tokens of documents and a ``.idx``, its index.

    It continues where an earlier call was interrupted.

    Args:
        name: of the pair.
        files: its source files, in order.
        encoder: turns blocks of lines into tokens.
        partial_folder: the data folder that is being written.

    Attributes:
        tokens_file: the ``.bin``.
        sizes_file: a temporary file with the number of tokens of each document, for the index.
        position: place in the source files; the lines before it are written.
        counts: numbers of the documents, tokens and empty texts before it, and the largest id.
    """

    def __init__(
        self, name: str, files: Sequence[Path], encoder: BlockEncoder, partial_folder: PartialFolder
    ) -> None:
        self.name = name  # of both files of the pair, without their endings
        self.files = files  # the source files, in the order of reading
        self.encoder = encoder  # turns blocks of lines into tokens
        self.partial_folder = partial_folder  # the data folder until it is finished
        self.total_bytes = sum(file.stat().st_size for file in files)
        self.tokens_file = partial_folder.folder / f"{name}.bin"
        # Number of tokens of each document; the index is made of them at the end.
        self.sizes_file = partial_folder.work / f"{name}.sizes"
        self.position = CORPUS_BEGIN  # in the source files: the lines before it are written
        self.counts = dict.fromkeys(COUNT_NAMES, 0)  # of the documents and tokens that are written
        # What an earlier, interrupted call saved last for this pair; None: nothing.
        saved = partial_folder.state["stages"].get(name)
        if saved is not None and self._has_saved_bytes(saved["counts"]):
            self.position = CorpusPosition(*saved["place"])
            self.counts = saved["counts"]
        else:
            # The tokens are written anew. ``state["files"]`` has the size and sha256 of finished
            # files by name. Drop those of an earlier ``.bin``: when the folder is finished, only
            # files without a sha256 are hashed, so the manifest would have the earlier sha256.
            partial_folder.state["files"].pop(f"{name}.bin", None)

    def _has_saved_bytes(self, counts: dict[str, int]) -> bool:
        """Return whether the files on disk have at least the tokens and documents of ``counts``.

        The files are that of the tokens and that of the documents' sizes. They may have more, which
        an interrupted call wrote after its last save; ``write`` removes it.
        """
        if not self.tokens_file.is_file() or not self.sizes_file.is_file():
            return False
        has_tokens = self.tokens_file.stat().st_size >= self._count_token_bytes(counts)
        has_sizes = self.sizes_file.stat().st_size >= self._count_size_bytes(counts)
        return has_tokens and has_sizes

    def _count_token_bytes(self, counts: Mapping[str, int]) -> int:
        """Return the bytes of all tokens in ``tokens_file``."""
        return counts["tokens"] * self.encoder.dtype.itemsize

    def _count_size_bytes(self, counts: Mapping[str, int]) -> int:
        """Return the bytes of the sizes of all documents in ``sizes_file``, int32 each."""
        return counts["documents"] * 4

    def write(self, workers: int, max_lines: int | None) -> dict[str, int]:
        """Write both files of the pair, the tokens and their index; return its counts.

        Args:
            workers: number of processes that encode; 1: only this process.
            max_lines: maximum number of lines to read, with those of earlier calls; None: all.
        """
        report = self.partial_folder.report
        counts = self.counts  # the same dict, which ``_save`` stores
        report.begin(f"tokenising {self.name}", self.total_bytes, done=self.position.bytes_read)
        saved_tokens = counts["tokens"]  # at the last save
        # ``_open_to_append`` cuts off what an earlier call wrote after its last save. It is encoded
        # again.
        with (
            _open_to_append(self.tokens_file, self._count_token_bytes(counts)) as tokens_stream,
            _open_to_append(self.sizes_file, self._count_size_bytes(counts)) as sizes_stream,
        ):
            blocks = read_blocks(self.files, self.position, max_lines)
            for block, encoded in encode_blocks(blocks, self.encoder, workers):
                tokens_stream.write(encoded.tokens.data)
                sizes_stream.write(encoded.sizes.data)
                counts["documents"] += len(encoded.sizes)
                counts["empty_texts"] += encoded.empty_texts
                counts["tokens"] += len(encoded.tokens)
                largest = int(encoded.tokens.max(initial=0))
                counts["largest_token_id"] = max(counts["largest_token_id"], largest)
                # ``after`` is the position in the source files after the lines of the block.
                report.advance(block.after.bytes_read - self.position.bytes_read)
                self.position = block.after
                if counts["tokens"] - saved_tokens >= SAVE_EVERY_TOKENS:
                    saved_tokens = counts["tokens"]
                    self._save(tokens_stream, sizes_stream)
            self._save(tokens_stream, sizes_stream)
        self.partial_folder.manifest["counts"][self.name] = counts
        document_sizes = np.fromfile(self.sizes_file, np.int32)  # with those of earlier calls
        self.partial_folder.write_file(
            f"{self.name}.idx", partial(write_index, sizes=document_sizes, dtype=self.encoder.dtype)
        )
        return counts

    def _save(self, *streams: IO[bytes]) -> None:
        """Flush the streams to disk, then save the position and the counts.

        The next call can resume from there if this one is interrupted.

        Args:
            streams: the files that are being written, of tokens and of documents' sizes.
        """
        for stream in streams:
            stream.flush()
            os.fsync(stream.fileno())
        saved = {"place": list(self.position), "counts": dict(self.counts)}
        self.partial_folder.state["stages"][self.name] = saved
        self.partial_folder.save()


@contextmanager
def _open_to_append(file: Path, size: int) -> Iterator[IO[bytes]]:
    """Open a file for writing after its first ``size`` bytes; the rest of it is removed."""
    with file.open("r+b" if file.exists() else "wb") as stream:
        stream.truncate(size)
        stream.seek(size)
        yield stream


def find_source_files(raw: Path) -> dict[str, Path]:
    """Return the files of a corpus by name, sorted by name, which is the order of reading.

    Args:
        raw: one file of any name, or a folder: the files in it and its subfolders that end in one
            of ``ENDINGS`` are taken. Hidden files and those in hidden subfolders are left out:
            their names begin with a dot.

    Raises:
        DataError: ``raw`` does not exist, or the folder has no such file.
    """
    if raw.is_file():
        return {raw.name: raw}
    if not raw.is_dir():
        raise DataError("no such file or folder", where=str(raw), fix=FIX)
    candidates = {}
    for file in raw.rglob("*"):
        path = file.relative_to(raw)
        is_hidden = any(part.startswith(".") for part in path.parts)
        if file.is_file() and file.name.lower().endswith(ENDINGS) and not is_hidden:
            candidates[path.as_posix()] = file
    if not candidates:
        rule = f"files must end in {', '.join(ENDINGS)}"
        raise DataError("no JSON Lines file found", where=str(raw), rule=rule, fix=FIX)
    return dict(sorted(candidates.items()))


def _read_lines(stream: Any) -> list[bytes]:
    """Return the next lines with their ends, about 2 MiB; an empty list at the end of the stream.

    If the last line continues for more than ``MAX_LINE_BYTES``, the next call returns what follows
    as another line: a hole in a file reads as one huge line of zeros, which would fill the memory.
    """
    block = stream.read(BLOCK_BYTES)
    if block and not block.endswith(b"\n"):  # the rest of the last line
        block += stream.readline(MAX_LINE_BYTES)
    *lines, last_line = block.split(b"\n")
    complete_lines = [line + b"\n" for line in lines]
    # After a line end, ``split`` gives an empty last line. Another last line has no line end: it is
    # longer than the maximum, or the file ends with it.
    if last_line:
        return [*complete_lines, last_line]
    return complete_lines


def _read_lines_after(stream: Any, num_lines: int) -> Iterator[list[bytes]]:
    """Yield the lines after the first ``num_lines`` of a file, about 2 MiB at a time.

    The first lines are read as the other ones are: a line that is too long comes in pieces, each of
    which counts as a line.
    """
    num_to_skip = num_lines
    for lines in iter(partial(_read_lines, stream), []):  # []: the end of the file
        later_lines = lines[num_to_skip:]
        num_to_skip -= len(lines) - len(later_lines)
        if later_lines:
            yield later_lines


def read_blocks(
    files: Sequence[Path], begin: CorpusPosition = CORPUS_BEGIN, max_lines: int | None = None
) -> Iterator[Block]:
    """Yield the lines of all files in order, about 2 MiB at a time.

    Args:
        files: plain or gzip, in the order of reading.
        begin: position to start from.
        max_lines: maximum number of lines, including those before ``begin``.

    Raises:
        DataError: a gzip file is damaged.
    """
    earlier_bytes = sum(path.stat().st_size for path in files[: begin.file_index])
    total_lines = begin.total_lines  # that were read from all files
    for file_index, path in enumerate(files[begin.file_index :], start=begin.file_index):
        # The lines that were read from this file.
        file_lines = begin.file_lines if file_index == begin.file_index else 0
        with path.open("rb") as raw, prepared.require_whole_gzip(path):
            is_gzip = raw.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
            stream: Any = gzip.GzipFile(fileobj=raw) if is_gzip else raw
            for next_lines in _read_lines_after(stream, file_lines):
                lines = next_lines
                if max_lines is not None:
                    lines = next_lines[: max_lines - total_lines]
                if not lines:  # ``max_lines`` were read
                    return
                if file_lines == 0:
                    lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
                first_line_number = file_lines + 1
                file_lines += len(lines)
                total_lines += len(lines)
                bytes_read = earlier_bytes + raw.tell()  # of the files as stored, for the progress
                after = CorpusPosition(
                    file_index=file_index,
                    file_lines=file_lines,
                    total_lines=total_lines,
                    bytes_read=bytes_read,
                )
                yield Block(lines, path, first_line_number, after)
        earlier_bytes += path.stat().st_size


def _describe_line_fault(error: ValidationError, text_key: str) -> str:
    """Return a short description of what is wrong with a line of a JSON Lines file.

    Args:
        error: the validator's, about one line.
        text_key: the key under which the line must have its text.
    """
    details = error.errors(include_url=False)[0]  # of the first fault
    value = f"{details['input']!r:.{SHOWN_CHARACTERS}}"
    if details["type"] == "json_invalid":
        # The parser got one line alone, which it calls line 1 whatever its place in the file is.
        reason = str(details["ctx"]["error"]).replace("at line 1 column", "at column")
        return f"not JSON, {reason}: {value}"
    if details["type"] == "missing":
        return (
            f"the key {text_key!r} is missing; the line has the keys "
            f"{', '.join(details['input']):.{SHOWN_CHARACTERS}}"
        )
    if details["loc"]:  # the fault is at the key, not of the whole line
        return f"{text_key!r} is {value}, not text"
    return f"not a JSON object: {value}"


def parse_texts(
    lines: Sequence[bytes], text_key: str, path: Path, first_line_number: int = 1
) -> list[str]:
    """Return the text of every line; lines of white space only are skipped.

    Args:
        lines: JSON objects in UTF-8.
        text_key: the key of the text in a line.
        path: the file, for errors.
        first_line_number: number of the first line in ``path``, from 1.

    Raises:
        DataError: a line is not a JSON object, or has no text under ``text_key``.
    """
    text_schema = core_schema.typed_dict_field(core_schema.str_schema())
    validator = SchemaValidator(core_schema.typed_dict_schema({text_key: text_schema}))
    texts: list[str] = []
    for number, line in enumerate(lines, start=first_line_number):
        content = line.rstrip()
        if not content:
            continue
        try:
            texts.append(validator.validate_json(content)[text_key])
        except ValidationError as error:
            raise DataError(
                _describe_line_fault(error, text_key),
                where=f"{path}, line {number}",
                rule=f"each line must be a JSON object in UTF-8 with the text under {text_key!r}",
                fix="repair or remove the line, or set text_key= to the JSON key of the text",
            ) from None
    return texts
