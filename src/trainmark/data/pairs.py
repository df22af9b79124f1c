"""Turn corpora of JSON lines into pairs of Megatron's indexed token files.

This module writes the pairs and the manifest. A corpus may have any size. A call that was
interrupted resumes after the last block that was saved.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from trainmark.affinity import count_allowed_cores
from trainmark.data import prepared
from trainmark.data.corpus import CORPUS_BEGIN, CorpusPosition, read_blocks
from trainmark.data.encoding import BlockEncoder, encode_blocks
from trainmark.data.indexed import write_index
from trainmark.data.tokenizer import find_corpus_files
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from trainmark.data.prepared import PartialFolder, Say

SAVE_EVERY_TOKENS = 1 << 26  # after so many tokens, an interrupted call can resume
COUNT_NAMES = ("documents", "empty_texts", "tokens", "largest_token_id")
FORMAT_VERSION = 4
TOKENIZER_FOLDER = "tokenizer"
WORKER_BYTES = 1 << 25  # one worker for this many bytes of a corpus


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
