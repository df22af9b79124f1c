"""Turn corpora of JSON lines into pairs of Megatron's indexed tokens, whole or not at all.

Owns which files are a corpus, what is refused in a line, what is written and what the manifest
says. The tokenizers' own threads encode a block of lines at a time: a corpus may have any size.
"""

from __future__ import annotations

import gzip
import shutil
from array import array
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic_core import SchemaValidator, ValidationError, core_schema

from trainmark.data import prepared
from trainmark.data.indexed import dtype_for, write_index
from trainmark.data.text import BYTE_ORDER_MARK
from trainmark.data.tokenizer import corpus_files, open_corpus_tokenizer
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trainmark.data.prepared import Say, Unfinished
    from trainmark.data.tokenizer import CorpusTokenizer

TOLD_TOKENS = 1 << 26  # between two lines of progress
COUNTS = ("documents", "empty_texts", "tokens", "largest_token_id")
FORMAT = 4
TOKENIZER = "tokenizer"
BLOCK_BYTES = 1 << 21
ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
GZIP_MAGIC = b"\x1f\x8b"
REMEDY = "give --from a file of JSON lines, plain or gzip, or a folder of them"
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
    **options: Any,
) -> None:
    """Write ``data``: the indexed pairs by their names, the tokenizer's files and a manifest.

    Args:
        raw: where the sources lie.
        say: called with each line of progress.
        pairs: the sources of each by name, in the order they are read; see ``source_files``.
        tokenizer: folder of the tokenizer; see ``data.tokenizer``.
        most: documents that are read of a pair's sources at most; others are read whole.
        text_key: under which key a line has its text.
        ends: whether the tokenizer's end-of-document token ends every document.
        options: what the manifest says besides; see ``prepared.writing``.

    Raises:
        DataError: a corpus or the tokenizer is missing or damaged, or ``data`` is not
            this call's to write.
        EnvironmentFault: no room or no permission.
    """
    opened = open_corpus_tokenizer(tokenizer, ends=ends)
    files = {name: file for found in pairs.values() for name, file in found.items()}
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
        for name, found in pairs.items():
            texts = read_texts(found.values(), text_key, (most or {}).get(name))
            _write_pair(name, texts, opened, unfinished)
            counts = unfinished.manifest["counts"][name]
            if not counts["documents"]:
                raise DataError(
                    f"no document in the corpus, {counts['empty_texts']} empty texts",
                    where=str(raw),
                    rule="a corpus has at least one text that is not empty",
                    remedy="name the texts' key with text_key=, or give another file with --from",
                )
            say(
                f"{counts['documents']:,} documents, {counts['tokens']:,} tokens, largest id "
                f"{counts['largest_token_id']} of {opened.vocab_size}"
            )


def _write_pair(
    name: str, blocks: Iterable[list[str]], how: CorpusTokenizer, unfinished: Unfinished
) -> None:
    """Encode blocks of texts into the pair ``name``."""
    dtype = dtype_for(how.vocab_size)
    end = [] if how.end_id is None else [how.end_id]

    def write(place: Path) -> None:
        counts, sizes, told = dict.fromkeys(COUNTS, 0), array("i"), TOLD_TOKENS
        with place.open("wb") as tokens:
            for texts in blocks:
                encoded = how.library.encode_batch_fast(
                    list(filter(None, texts)), add_special_tokens=False
                )
                documents = [np.array([*item.ids, *end], dtype) for item in encoded]
                block = np.concatenate([np.empty(0, dtype), *documents])
                tokens.write(block.data)
                sizes.extend(map(len, documents))
                counts["documents"] += len(documents)
                counts["empty_texts"] += texts.count("")
                counts["tokens"] += len(block)
                largest = int(block.max(initial=0))
                counts["largest_token_id"] = max(counts["largest_token_id"], largest)
                if counts["tokens"] >= told:
                    told += TOLD_TOKENS
                    unfinished.say(
                        f"{counts['documents']:,} documents, {counts['tokens']:,} tokens"
                    )
        unfinished.manifest["counts"][name] = counts
        every = np.array(sizes, np.int32)
        unfinished.file(f"{name}.idx", lambda index: write_index(index, every, dtype))

    unfinished.file(f"{name}.bin", write)


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


def read_texts(
    files: Iterable[Path], text_key: str, most: int | None = None
) -> Iterator[list[str]]:
    """Yield the texts of all lines in order, or of the first ``most``, some 2 MiB at a time.

    Raises:
        DataError: a damaged gzip file, or the first line that holds no text.
    """
    for path in files:
        first = 1
        with path.open("rb") as raw, prepared.whole_gzip(path):
            zipped = raw.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
            stream = gzip.GzipFile(fileobj=raw) if zipped else raw
            while lines := stream.readlines(BLOCK_BYTES)[:most]:
                if first == 1:
                    lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
                yield texts_of(lines, text_key, path, first)
                first += len(lines)
                if most is not None:
                    most -= len(lines)


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
                remedy="mend or remove the line, or name the text's key with text_key=",
            ) from None
    return texts
