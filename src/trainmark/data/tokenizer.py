"""Find and open the tokenizers of model folders, and check that they fit the model.

Three forms are read: ``tokenizer.json``, BERT's ``vocab.txt``, and GPT-2's two files. This module
checks the special tokens and finds the end-of-document token of a corpus. The parameter
``make_error`` of its functions makes a ``DataError`` with the caller's rule and fix.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trainmark.data.model_folder import read_json_object
from trainmark.data.splits import refuse_unreadable
from trainmark.data.text import read_text, split_lines
from trainmark.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

    from trainmark.errors import Fault

FAST_FILE = "tokenizer.json"
WORDPIECE_FILE = "vocab.txt"  # of BERT
BPE_FILES = ("vocab.json", "merges.txt")  # of GPT-2
BERT_FILES = (FAST_FILE, WORDPIECE_FILE)  # the first that exists is used
# The first that names a token is used.
SETTINGS_FILES = ("tokenizer_config.json", "special_tokens_map.json")
END_OF_DOCUMENT = "<|endoftext|>"
make_corpus_error = partial(
    DataError,
    rule="the tokenizer must be the model's own, and its files must be unmodified",
    fix="set tokenizer= to the folder of the tokenizer, as downloaded from the model hub",
)
_BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def find_tokenizer_file(
    folder: Path, make_error: Fault, names: tuple[str, ...] = BERT_FILES
) -> Path:
    """Return the first of ``names`` that exists in a folder.

    Args:
        make_error: makes a ``DataError`` with the rule and the fix of the case.
        names: names of files, the preferred one first.

    Raises:
        DataError: none exists, or the file is empty.
    """
    for name in names:
        file = folder / name
        if file.is_file():
            refuse_unreadable(file, make_error)
            return file
    raise make_error(f"no {' and no '.join(names)}", where=str(folder))


def open_tokenizer(file: Path, make_error: Fault, *, plain: bool = True) -> Tokenizer:
    """Open a tokenizer of any form; it neither pads nor truncates.

    The forms are ``tokenizer.json``, the ``vocab.txt`` of BERT, and the ``vocab.json`` and
    ``merges.txt`` of GPT-2. GPT-2's files do not define whether a space is added before a text;
    none is added. For ``vocab.txt``, the result has the vocabulary alone: ``open_wordpiece`` adds
    the special tokens of BERT and how it splits texts.

    Args:
        file: ``tokenizer.json``, ``vocab.txt`` or ``vocab.json``.
        make_error: makes a ``DataError`` with the rule and the fix of the case.
        plain: encode a special token that is spelled out in a text as ordinary characters, so
            that no text can forge one.

    Raises:
        DataError: the file cannot be read.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    try:
        if file.name == WORDPIECE_FILE:  # `vocab.txt` of BERT, a token a line
            tokens = split_lines(read_text(file))
            vocabulary = {token: number for number, token in enumerate(tokens)}
            library = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        elif file.name == BPE_FILES[0]:  # `vocab.json` of GPT-2, beside `merges.txt`
            merges = read_merges(file.with_name(BPE_FILES[1]))
            library = Tokenizer(models.BPE(json.loads(read_text(file)), merges))
            library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            library.decoder = decoders.ByteLevel()
        else:
            library = Tokenizer.from_str(read_text(file))
    except Exception as error:  # noqa: BLE001  the library raises bare Exception for any fault
        raise make_error(f"not readable as a tokenizer: {error}", where=str(file)) from None
    library.no_padding()
    library.no_truncation()
    library.encode_special_tokens = plain  # True: do not match them in texts
    return library


def read_merges(file: Path) -> list[tuple[str, str]]:
    """Return the merges of GPT-2's ``merges.txt``, one from each line after the version.

    A merge is the two tokens that byte-pair encoding joins to one.

    Raises:
        ValueError: a line is not two tokens separated by a space.
    """
    merges = []
    for number, line in enumerate(split_lines(read_text(file)), start=1):
        if not line or line.startswith("#version"):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise ValueError(
                f"{file.name}, line {number}: a merge must be exactly two tokens, not {line[:40]!r}"
            )
        merges.append((pair[0], pair[1]))
    return merges


def open_wordpiece(file: Path, make_error: Fault, *, plain: bool = False) -> Tokenizer:
    """Open ``tokenizer.json`` of a BERT, or build its uncased tokenizer from ``vocab.txt``.

    The tokenizer adds special tokens around a text unless its caller disables that.

    Args:
        file: the ``tokenizer.json`` or ``vocab.txt``.
        make_error: makes a ``DataError`` with the rule and the fix of the case.
        plain: encode a special token that is spelled out in a text as ordinary characters.

    Raises:
        DataError: the file cannot be read, a special token is missing, or
            ``tokenizer_config.json`` asks for other settings.
    """
    from tokenizers import normalizers, pre_tokenizers, processors

    library = open_tokenizer(file, make_error, plain=plain)
    ids = library.get_vocab()
    missing = [name for name in _BERT_TOKENS if name not in ids]
    if missing:
        rule = "a BERT vocabulary must contain the five special tokens"
        raise make_error(f"the vocabulary lacks {', '.join(missing)}", where=str(file), rule=rule)
    if file.name == WORDPIECE_FILE:  # a bare list of tokens; ``tokenizer.json`` has all this itself
        library.add_special_tokens(list(_BERT_TOKENS))
        library.normalizer = normalizers.BertNormalizer(lowercase=True)
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        library.post_processor = processors.BertProcessing(
            ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
        )
    refuse_conflicting_settings(file, library, make_error)
    return library


def refuse_conflicting_settings(file: Path, library: Tokenizer, make_error: Fault) -> None:
    """Refuse settings in ``tokenizer_config.json`` that the opened tokenizer does not follow.

    A setting that is not followed gives other tokens, which would train another model.

    Args:
        file: the file from which ``library`` was opened.
        library: the opened tokenizer.
        make_error: makes a ``DataError`` with the rule and the fix of the case.

    Raises:
        DataError: the first key that differs, with its value.
    """
    settings = file.with_name(SETTINGS_FILES[0])  # ``tokenizer_config.json``
    if not settings.is_file():
        return
    document = json.loads(library.to_str())
    # What the opened tokenizer does, by keys of ``tokenizer_config.json``. It always does these
    # two; the others depend on its components.
    applied: dict[str, Any] = {"do_basic_tokenize": True, "never_split": []}
    normalizer = document["normalizer"] or {}
    if normalizer.get("type") == "BertNormalizer":
        applied["do_lower_case"] = normalizer["lowercase"]
        applied["strip_accents"] = normalizer["strip_accents"]
        applied["tokenize_chinese_chars"] = normalizer["handle_chinese_chars"]
    splitter = document["pre_tokenizer"] or {}
    if splitter.get("type") == "ByteLevel":
        applied["add_prefix_space"] = splitter["add_prefix_space"]
    requested = read_json_object(settings, make_error)
    for key, value in applied.items():
        if requested.get(key) not in (value, None):  # None: the settings leave it open
            raise make_error(
                f"{key} is {json.dumps(requested[key])}",
                where=f"{settings}, {key}",
                rule=f"{file.name} implies {key} {json.dumps(value)}",
                fix=f"use the {FAST_FILE} that the library saved with these settings",
            )


def read_special_token(folder: Path, key: str, make_error: Fault) -> str | None:
    """Return the special token in a tokenizer's settings under ``key``; None: it is not there.

    Args:
        folder: the folder of the tokenizer, with its files of settings.
        key: such as ``eos_token``.
        make_error: makes a ``DataError`` with the rule and the fix of the case.
    """
    for name in SETTINGS_FILES:
        file = folder / name
        if file.is_file():
            token = read_json_object(file, make_error).get(key)
            # A setting is the token's text, or an object with the text as ``content``.
            if isinstance(token, dict):
                token = token.get("content")
            if token is not None:
                return str(token)
    return None


def refuse_short_vocabulary(
    file: Path, *, entries: int, vocab_size: int, size_source: str, fix: str, multiple: int = 1
) -> None:
    """Refuse a vocabulary that is shorter than the model's.

    A shorter vocabulary was cut, or belongs to another model whose ids mean other words; training
    would not notice it. A model may have further rows in its table of embeddings, as padding.

    Args:
        file: the vocabulary.
        entries: its number of tokens.
        vocab_size: rows of the model's table of embeddings.
        size_source: what sets ``vocab_size``, a file or the recipe, for the error.
        fix: what the user can do, for the error.
        multiple: the model may pad ``entries`` up to the next multiple of this.

    Raises:
        DataError: ``vocab_size`` is larger; the error has both numbers.
    """
    num_multiples = -(-entries // multiple)  # rounded up
    if vocab_size > num_multiples * multiple:
        padding = (
            f"; vocab_size may be rounded up to the next multiple of {multiple}"
            if multiple > 1
            else ""
        )
        raise DataError(
            f"the vocabulary has {entries} entries, but the model expects {vocab_size}",
            where=str(file),
            rule=(
                f"the vocabulary must belong to the model{padding}; {size_source} sets "
                f"vocab_size to {vocab_size}"
            ),
            fix=fix,
        )


@dataclass(frozen=True, slots=True)
class CorpusTokenizer:
    """An open byte-level BPE tokenizer of a corpus.

    Args:
        library: turns text into ids.
        vocab_size: all ids are below it.
        end_of_document: the token that ends every document; None: there is no such token.
        end_id: the id of ``end_of_document``.
    """

    library: Tokenizer
    vocab_size: int
    end_of_document: str | None = None
    end_id: int | None = None


def find_corpus_files(folder: Path) -> dict[str, Path]:
    """Return the files of the tokenizer that encodes a corpus, by name.

    They are the ``tokenizer.json``, GPT-2's two files and the files of settings, as far as they
    exist.

    Raises:
        DataError: the folder has neither ``tokenizer.json`` nor GPT-2's two files.
    """
    names = (FAST_FILE, *BPE_FILES, *SETTINGS_FILES)
    files = {name: folder / name for name in names if (folder / name).is_file()}
    if FAST_FILE in files or set(BPE_FILES) <= set(files):
        return files
    rule = f"a tokenizer folder must contain {FAST_FILE}, or {' and '.join(BPE_FILES)}"
    raise make_corpus_error("the folder has no tokenizer", where=str(folder), rule=rule)


def open_corpus_tokenizer(folder: Path, *, ends: bool = True) -> CorpusTokenizer:
    """Open the tokenizer that encodes a corpus, and find the token that ends its documents.

    It is opened from ``tokenizer.json``, or else from GPT-2's ``vocab.json`` and ``merges.txt``.

    Args:
        folder: the folder of the tokenizer.
        ends: whether documents end with the end-of-document token.

    Raises:
        DataError: a file is missing or damaged, or the end-of-document token is not in the
            vocabulary.
    """
    files = find_corpus_files(folder)
    file = files[FAST_FILE] if FAST_FILE in files else files[BPE_FILES[0]]
    library = open_tokenizer(file, make_corpus_error)
    refuse_conflicting_settings(file, library, make_corpus_error)
    vocab_size = max(library.get_vocab().values()) + 1  # ids may have gaps
    if not ends:  # no token ends a document
        return CorpusTokenizer(library, vocab_size)
    # If no settings name the token, it is GPT-2's.
    end_token = read_special_token(folder, "eos_token", make_corpus_error) or END_OF_DOCUMENT
    end_id = library.token_to_id(end_token)
    if end_id is None:
        raise DataError(
            f"the end-of-document token {end_token!r} is missing",
            where=str(file),
            rule="each document must end with a token that does not occur in text",
            fix=f"set eos_token in {SETTINGS_FILES[0]} to a token of the vocabulary, or add "
            f"{end_token!r} to the vocabulary",
        )
    return CorpusTokenizer(library, vocab_size, end_token, end_id)
