"""The byte-level BPE tokenizer of a corpus: which files it is, and whether they are sound.

Owns what a tokenizer folder must hold and how its end-of-document token is found. Must not
know corpora, workers or indexed files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tokenizers import Tokenizer

ONE_FILE = "tokenizer.json"
VOCAB, MERGES = "vocab.json", "merges.txt"
TOLD_EOD = ("tokenizer_config.json", "special_tokens_map.json")
FILES = (ONE_FILE, VOCAB, MERGES, *TOLD_EOD)
END_OF_DOCUMENT = "<|endoftext|>"
AS_WRITTEN = "the files are as the tokenizer's library wrote them"
REMEDY = "give --tokenizer the folder of a GPT-2 tokenizer, as the model hub has it under gpt2"


@dataclass(frozen=True, slots=True)
class CorpusTokenizer:
    """An open tokenizer.

    Args:
        library: turns text into ids. Text that spells a special token is encoded as the
            characters that it is, so no document can forge the end of one.
        vocab_size: ids are below it, without holes.
        end_of_document: the token that ends every document.
        end_id: its id.
        by_words: text may be cut before white space that follows something else, and the
            pieces encoded apart, without changing an id.
    """

    library: Tokenizer
    vocab_size: int
    end_of_document: str
    end_id: int
    by_words: bool


def tokenizer_files(folder: Path) -> dict[str, Path]:
    """Return the files of a tokenizer folder by name.

    Raises:
        DataError: neither form of a tokenizer is there.
    """
    found = {name: folder / name for name in FILES if (folder / name).is_file()}
    if ONE_FILE in found or (VOCAB in found and MERGES in found):
        return found
    missing = [name for name in (VOCAB, MERGES) if name not in found]
    half = f"{VOCAB if VOCAB in found else MERGES} without {missing[0]}"
    raise DataError(
        half if len(missing) == 1 else "no tokenizer",
        where=str(folder),
        rule=f"a tokenizer is {ONE_FILE}, or {VOCAB} and {MERGES}",
        remedy=REMEDY,
    )


def open_tokenizer(folder: Path) -> CorpusTokenizer:
    """Open ``tokenizer.json``, or build GPT-2's tokenizer from its two files.

    The two files say nothing of a space before a text; none is put there, as in GPT-2.

    Raises:
        DataError: a file is missing or damaged, is no byte-level BPE, leaves holes in its
            ids, or has no end-of-document token.
    """
    files = tokenizer_files(folder)
    file = files.get(ONE_FILE, files.get(VOCAB))
    assert file is not None
    if ONE_FILE in files:
        library, by_words = _from_one_file(file)
    else:
        library, by_words = _from_two_files(file, files[MERGES]), True
    library.no_padding()
    library.no_truncation()
    library.encode_special_tokens = True  # the name misleads: spell them out, do not match them
    end, told_by = _told_end(files)
    end_id = library.token_to_id(end)
    if end_id is None:
        raise DataError(
            f"no token {end!r}, which ends a document" + (f" says {told_by}" if told_by else ""),
            where=str(file),
            rule="a document ends with a token that no text has",
            remedy=f"name the token as eos_token in {TOLD_EOD[0]}, or add it to the vocabulary",
        )
    if end_id in library.encode(end, add_special_tokens=False).ids:
        raise DataError(
            f"a text that spells {end!r} becomes the end of a document",
            where=str(file),
            rule="the end-of-document token is a special one",
            remedy='set "special": true for it under added_tokens',
        )
    return CorpusTokenizer(
        library, library.get_vocab_size(with_added_tokens=True), end, end_id, by_words
    )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"not readable as JSON: {error}", where=str(file), rule=AS_WRITTEN, remedy=REMEDY
        ) from None
    if not isinstance(found, dict):
        raise DataError(
            f"holds a {type(found).__name__}",
            where=str(file), rule="the file is one JSON object", remedy=REMEDY,
        )  # fmt: skip
    return found


def _told_end(files: Mapping[str, Path]) -> tuple[str, str | None]:
    """Return the end-of-document token and the file that names it, if one does."""
    for name in TOLD_EOD:
        told = _read_json(files[name]).get("eos_token") if name in files else None
        if isinstance(told, dict):  # an added token written out
            told = told.get("content")
        if isinstance(told, str) and told:
            return told, name
        if told is not None:
            raise DataError(
                f"eos_token is {told!r}",
                where=f"{files[name]}, eos_token",
                rule="a token is a text, or an object with one under content",
                remedy=REMEDY,
            )
    return END_OF_DOCUMENT, None


def _from_two_files(vocab_file: Path, merges_file: Path) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = _read_json(vocab_file)
    try:
        lines = merges_file.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise DataError(
            "not UTF-8 text", where=str(merges_file), rule=AS_WRITTEN, remedy=REMEDY
        ) from None
    first = 1 if lines[0].startswith("#version") else 0
    texts = [line.rstrip("\r") for line in lines[first:]]
    while texts and not texts[-1]:
        texts.pop()
    merges = [text.split(" ") for text in texts]
    _check_ids(vocab_file, vocab, {})
    _check_merges(merges_file, merges, vocab, first_line=first + 1)
    library = Tokenizer(models.BPE(vocab, [(left, right) for left, right in merges]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return library


def _from_one_file(file: Path) -> tuple[Tokenizer, bool]:
    """Return the tokenizer and whether its texts may be cut into words."""
    from tokenizers import Tokenizer

    raw = _read_json(file)
    model, cutting = raw.get("model"), raw.get("pre_tokenizer")
    _check_kind(file, model, cutting)
    assert isinstance(model, dict)
    assert isinstance(cutting, dict)
    vocab: Any = model.get("vocab")
    merges: Any = model.get("merges")
    added: Any = raw.get("added_tokens") or []
    shapes = isinstance(vocab, dict) and isinstance(merges, list) and isinstance(added, list)
    if not shapes or not all(
        isinstance(item, dict) and isinstance(item.get("content"), str) for item in added
    ):
        raise DataError(
            "vocabulary, merges or added tokens of another shape",
            where=f"{file}, model",
            rule="model.vocab is an object, model.merges and added_tokens are lists",
            remedy=REMEDY,
        )
    _check_ids(file, vocab, {item["content"]: item.get("id") for item in added})
    pairs = [item.split(" ") if isinstance(item, str) else item for item in merges]
    _check_merges(file, pairs, vocab, first_line=None)
    try:
        library = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  the library raises bare Exception for any fault
        raise DataError(
            f"not readable as a tokenizer: {error}",
            where=str(file),
            rule=AS_WRITTEN,
            remedy=REMEDY,
        ) from None
    for item in added:
        number = library.token_to_id(item["content"])
        if number != item["id"]:  # the library counts on from the vocabulary's size
            raise DataError(
                f"the added token {item['content']!r} has id {item['id']} in the file, "
                f"and {number} once the library has read it",
                where=str(file),
                rule="added tokens follow the vocabulary's ids in order, or are part of it",
                remedy=REMEDY,
            )
    by_words = (
        raw.get("normalizer") is None
        and cutting["type"] == "ByteLevel"
        and cutting.get("use_regex", True) is True
        and cutting.get("add_prefix_space") is False
        and all(item.get("special") is True for item in added)
    )
    return library, by_words


def _check_kind(file: Path, model: Any, cutting: Any) -> None:
    """Refuse what is no deterministic byte-level BPE."""
    kind = model.get("type") if isinstance(model, dict) else None
    steps = [cutting, *(cutting.get("pretokenizers") or [])] if isinstance(cutting, dict) else []
    fault = None
    if kind != "BPE":
        fault = f"the model is {kind}"
    elif not any(isinstance(step, dict) and step.get("type") == "ByteLevel" for step in steps):
        fault = "texts are not cut into bytes"
    elif model.get("dropout"):
        fault = f"merges are dropped at random, dropout {model['dropout']}"
    elif model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        fault = "tokens carry a prefix or a suffix"
    if fault:
        raise DataError(
            fault,
            where=str(file),
            rule="a corpus is encoded by byte-level BPE: every text has ids, always the same",
            remedy=REMEDY,
        )


def _check_ids(file: Path, vocab: Mapping[str, Any], added: Mapping[Any, Any]) -> None:
    """Hold ids to the whole numbers from 0 without a hole, and all bytes to have one."""
    from tokenizers import pre_tokenizers

    fault, numbers = None, [*vocab.values(), *(i for t, i in added.items() if t not in vocab)]
    odd = next((n for n in numbers if type(n) is not int or not 0 <= n < 2**31), None)
    if odd is not None or not numbers:
        fault = f"an id is {odd!r}" if numbers else "no tokens"
    elif len(set(numbers)) < len(numbers):
        fault = f"{len(numbers)} tokens share {len(set(numbers))} ids"
    elif max(numbers) >= len(numbers):
        hole = min(set(range(len(numbers))) - set(numbers))
        fault = f"{len(numbers)} tokens, the largest id is {max(numbers)}, none has id {hole}"
    elif any(added[token] != vocab[token] for token in added if token in vocab):
        fault = "an added token has another id than in the vocabulary"
    else:
        missing = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(vocab))
        if missing:
            fault = f"no token for {len(missing)} of the 256 bytes, {missing[0]!r} for one"
    if fault:
        raise DataError(
            fault,
            where=str(file),
            rule="ids are the whole numbers from 0, one a token, and every byte is a token",
            remedy=REMEDY,
        )


def _check_merges(
    file: Path, merges: Sequence[Any], vocab: Mapping[str, Any], *, first_line: int | None
) -> None:
    """Hold every merge to two tokens that make a third; ``first_line`` where lines count."""
    for number, pair in enumerate(merges):
        listed = isinstance(pair, list) and len(pair) == 2
        texts = listed and all(isinstance(part, str) for part in pair)
        if not texts or not all(part in vocab for part in (*pair, "".join(pair))):
            place = f"line {number + first_line}" if first_line else f"model.merges[{number}]"
            raise DataError(
                f"no merge: {pair!r}",
                where=f"{file}, {place}",
                rule="a merge is two tokens of the vocabulary that make a third",
                remedy=REMEDY,
            )
