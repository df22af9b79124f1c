"""Tokenizers of model folders: found, opened, and held against the model that uses them.

Owns the forms that are read (``tokenizer.json``, BERT's ``vocab.txt``, GPT-2's two files), which
special tokens they must have, and the end-of-document token of a corpus. Must not know corpora.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trainmark.data.model_folder import read_json
from trainmark.data.splits import refuse_unreadable
from trainmark.data.text import read_text, split_lines
from trainmark.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

    from trainmark.errors import Fault

FAST, WORDPIECE, BPE = "tokenizer.json", "vocab.txt", ("vocab.json", "merges.txt")
BERT_FILES = (FAST, WORDPIECE)  # the first that exists is used
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")  # the first that names a token
END_OF_DOCUMENT = "<|endoftext|>"
CORPUS_FAULT = partial(
    DataError,
    rule="text is tokenised with the model's own tokenizer, its files as the library wrote them",
    fix="name with tokenizer= the folder of the tokenizer, as the model hub has it",
)
_BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def find_tokenizer_file(folder: Path, fault: Fault, names: tuple[str, ...] = BERT_FILES) -> Path:
    """Return the first of ``names`` in a folder.

    Raises:
        DataError: there is none, or it is empty.
    """
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        raise fault(f"no {' and no '.join(names)}", where=str(folder))
    refuse_unreadable(file, fault)
    return file


def open_tokenizer(file: Path, fault: Fault, *, plain: bool = True) -> Tokenizer:
    """Open a tokenizer of any form; nothing is padded or truncated.

    The two files of GPT-2 say nothing of a space before a text; none is put there.

    Args:
        plain: a text that spells a special token is encoded as the characters that it is, so
            that no text can forge one.

    Raises:
        DataError: it cannot be read, or is BERT's and lacks a special token.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    try:
        if file.name == WORDPIECE:
            vocabulary = {token: row for row, token in enumerate(split_lines(read_text(file)))}
            library = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        elif file.name == BPE[0]:
            merges = read_merges(file.with_name(BPE[1]))
            library = Tokenizer(models.BPE(json.loads(read_text(file)), merges))
            library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            library.decoder = decoders.ByteLevel()
        else:
            library = Tokenizer.from_str(read_text(file))
    except Exception as error:  # noqa: BLE001  the library raises bare Exception for any fault
        raise fault(f"not readable as a tokenizer: {error}", where=str(file)) from None
    library.no_padding()
    library.no_truncation()
    library.encode_special_tokens = plain  # the name misleads: spell them out, do not match them
    return library


def read_merges(file: Path) -> list[tuple[str, str]]:
    """Return the merges of GPT-2's ``merges.txt``, one a line after the version.

    Raises:
        ValueError: a line is not two tokens with a space between them.
    """
    merges = []
    for number, line in enumerate(split_lines(read_text(file)), start=1):
        if not line or line.startswith("#version"):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise ValueError(f"{file.name}, line {number}: {line[:40]!r} is not two tokens")
        merges.append((pair[0], pair[1]))
    return merges


def open_wordpiece(file: Path, fault: Fault, *, plain: bool = False) -> Tokenizer:
    """Open ``tokenizer.json`` of a BERT, or build its uncased tokenizer from ``vocab.txt``.

    Special tokens are put around a text unless the caller asks for none.

    Raises:
        DataError: as ``open_tokenizer``, or a special token is missing.
    """
    from tokenizers import normalizers, pre_tokenizers, processors

    library = open_tokenizer(file, fault, plain=plain)
    ids = library.get_vocab()
    if missing := [name for name in _BERT_TOKENS if name not in ids]:
        rule = "a BERT vocabulary holds the five special tokens"
        raise fault(f"no token {', '.join(missing)}", where=str(file), rule=rule)
    if file.name == WORDPIECE:
        library.add_special_tokens(list(_BERT_TOKENS))
        library.normalizer = normalizers.BertNormalizer(lowercase=True)
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        library.post_processor = processors.BertProcessing(
            ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
        )
    refuse_other_settings(file, library, fault)
    return library


def refuse_other_settings(file: Path, library: Tokenizer, fault: Fault) -> None:
    """Refuse ``tokenizer_config.json`` if the tokenizer opened from ``file`` does not follow it.

    The library's own classes read these keys; other tokens would train another model.

    Raises:
        DataError: the first key that differs, with its value.
    """
    settings = file.with_name(SETTINGS[0])
    if not settings.is_file():
        return
    document = json.loads(library.to_str())
    used: dict[str, Any] = {"do_basic_tokenize": True, "never_split": []}
    normalizer = document["normalizer"] or {}
    if normalizer.get("type") == "BertNormalizer":
        used["do_lower_case"] = normalizer["lowercase"]
        used["strip_accents"] = normalizer["strip_accents"]
        used["tokenize_chinese_chars"] = normalizer["handle_chinese_chars"]
    splitter = document["pre_tokenizer"] or {}
    if splitter.get("type") == "ByteLevel":
        used["add_prefix_space"] = splitter["add_prefix_space"]
    written = read_json(settings, fault)
    for key, value in used.items():
        if written.get(key) not in (value, None):
            raise fault(
                f"{key} is {json.dumps(written[key])}",
                where=f"{settings}, {key}",
                rule=f"text is tokenised with {key} {json.dumps(value)}, as {file.name} is read",
                fix=f"give the {FAST} that the library saved with these settings",
            )


def read_special_token(folder: Path, key: str, fault: Fault) -> str | None:
    """Return the special token that a folder's settings name under ``key``, ``eos_token``."""
    for file in (folder / name for name in SETTINGS):
        if file.is_file():
            token = read_json(file, fault).get(key)
            if isinstance(token, dict):  # an added token as an object
                token = token.get("content")
            if token is not None:
                return str(token)
    return None


def refuse_short_vocabulary(
    file: Path, *, entries: int, vocab_size: int, of: str, fix: str, multiple: int = 1
) -> None:
    """Refuse a vocabulary of ``entries`` for a model of ``vocab_size``.

    A shorter vocabulary was cut, or belongs to another model whose ids mean other words:
    training would go on without an error. A model may have its table padded.

    Args:
        file: the vocabulary.
        of: where ``vocab_size`` is said.
        multiple: of which the model's size may be, above ``entries``.

    Raises:
        DataError: the model has more, naming both numbers.
    """
    if vocab_size > -(-entries // multiple) * multiple:
        padding = f", padded to a multiple of {multiple} at most" if multiple > 1 else ""
        raise DataError(
            f"{entries} entries, the model has {vocab_size}",
            where=str(file),
            rule=f"the vocabulary is the model's own{padding}; {of} says vocab_size {vocab_size}",
            fix=fix,
        )


@dataclass(frozen=True, slots=True)
class CorpusTokenizer:
    """An open byte-level BPE tokenizer of a corpus.

    Args:
        library: turns text into ids.
        vocab_size: ids are below it.
        end_of_document: the token that ends every document; none: documents have no end.
        end_id: its id.
    """

    library: Tokenizer
    vocab_size: int
    end_of_document: str | None = None
    end_id: int | None = None


def find_corpus_files(folder: Path) -> dict[str, Path]:
    """Return the files of a corpus tokenizer's folder by name.

    Raises:
        DataError: neither form of a tokenizer is there.
    """
    files = {n: folder / n for n in (FAST, *BPE, *SETTINGS) if (folder / n).is_file()}
    if FAST in files or set(BPE) <= set(files):
        return files
    rule = f"a tokenizer is {FAST}, or {' and '.join(BPE)}"
    raise CORPUS_FAULT("no tokenizer", where=str(folder), rule=rule)


def open_corpus_tokenizer(folder: Path, *, ends: bool = True) -> CorpusTokenizer:
    """Open ``tokenizer.json``, or GPT-2's two files.

    Args:
        ends: whether a token ends every document.

    Raises:
        DataError: a file is missing or damaged, or there is no end-of-document token.
    """
    files = find_corpus_files(folder)
    file = files[FAST if FAST in files else BPE[0]]
    library = open_tokenizer(file, CORPUS_FAULT)
    refuse_other_settings(file, library, CORPUS_FAULT)
    vocab_size = max(library.get_vocab().values()) + 1
    if not ends:
        return CorpusTokenizer(library, vocab_size)
    end = read_special_token(folder, "eos_token", CORPUS_FAULT) or END_OF_DOCUMENT
    end_id = library.token_to_id(end)
    if end_id is None:
        raise DataError(
            f"no token {end!r}, which ends a document",
            where=str(file),
            rule="a document ends with a token that no text has",
            fix=f"name the token as eos_token in {SETTINGS[0]}, or add it to the vocabulary",
        )
    return CorpusTokenizer(library, vocab_size, end, end_id)
