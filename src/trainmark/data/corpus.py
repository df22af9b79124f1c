"""Read a corpus of JSON lines: find its files, read them in blocks of lines, and check the lines.

A reader can begin at any position that an earlier reader reached.
"""

from __future__ import annotations

import gzip
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import SchemaValidator, ValidationError, core_schema

from trainmark.data import prepared
from trainmark.data.text import BYTE_ORDER_MARK, MAX_LINE_BYTES
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

BLOCK_BYTES = 1 << 21
ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
GZIP_MAGIC = b"\x1f\x8b"
FIX = "set --from to a file of JSON lines, plain or gzip, or to a folder of such files"
SHOWN_CHARACTERS = 80  # of a wrong value, in an error


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
