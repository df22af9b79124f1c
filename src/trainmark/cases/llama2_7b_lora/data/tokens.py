"""The tokenizer of a model folder: texts to ids, with beginning and end tokens.

Owns which file is read and what its special tokens are. Must not know prompts, data files
or torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmark.data.files import refuse_unreadable
from trainmark.data.model_config import read_json, refuse_short
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

FAST, PIECES = "tokenizer.json", "tokenizer.model"  # the first that exists is used
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
RULE = f"model/ holds the model's own {FAST} (fast) or {PIECES} (SentencePiece)"
REMEDY = "copy the tokenizer's files from the model's page on the hub into model/"


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """An open tokenizer.

    Args:
        encode: turns texts into ids without special tokens; a text that spells a special
            token is encoded as the characters that it is.
        file: what was read.
        vocab_size: all ids are below it.
        begin: ids put before every text: the beginning token, or empty.
        end_id: the token that ends a document.
    """

    encode: Callable[[list[str]], list[list[int]]]
    file: Path
    vocab_size: int
    begin: tuple[int, ...]
    end_id: int

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts that a model continues, without end token."""
        return [[*self.begin, *ids] for ids in self.encode(list(texts))]

    def documents(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of complete texts, with the end token after each."""
        return [[*self.begin, *ids, self.end_id] for ids in self.encode(list(texts))]


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the files of the tokenizer in ``folder`` that are read.

    Raises:
        DataError: there is no tokenizer.
    """
    main = next((folder / name for name in (FAST, PIECES) if (folder / name).is_file()), None)
    if main is None:
        raise DataError(f"no {FAST} and no {PIECES}", where=str(folder), rule=RULE, remedy=REMEDY)
    return [main, *(folder / name for name in SETTINGS if (folder / name).is_file())]


def open_tokenizer(folder: Path, *, vocab_size: int) -> TextTokenizer:
    """Open the tokenizer in ``folder``.

    Args:
        vocab_size: rows of the model's embedding.

    Raises:
        DataError: it is missing or damaged, has ids beyond the embedding, has fewer tokens than
            the embedding has rows, or has no end token.
    """
    main, *others = tokenizer_files(folder)
    settings: dict[str, Any] = {}
    for file in reversed(others):  # tokenizer_config.json overrides the others
        told = read_json(file, rule=RULE, remedy=REMEDY)
        if not isinstance(told, dict):
            raise _unreadable(file, f"holds a {type(told).__name__}")
        settings |= told
    refuse_unreadable(main, rule=RULE, remedy=REMEDY)
    found, entries = (_fast if main.name == FAST else _pieces)(main, settings)
    if found.vocab_size > vocab_size:
        raise DataError(
            f"ids go up to {found.vocab_size - 1}",
            where=str(main),
            rule=f"the embedding of model/config.json has {vocab_size} rows (vocab_size)",
            remedy="put the tokenizer and the config.json of the same model into model/",
        )
    refuse_short(
        main, entries=entries, vocab_size=vocab_size, of="model/config.json",
        remedy="put the model's own tokenizer into model/; where its table is padded, add unused "
        "tokens up to that size",
    )  # fmt: skip
    return found


def _unreadable(file: Path, why: object) -> DataError:
    return DataError(
        f"not readable as a tokenizer: {why}", where=str(file), rule=RULE, remedy=REMEDY
    )


def _named(settings: dict[str, Any], name: str) -> str | None:
    """Return the text of a special token that the settings name."""
    told = settings.get(name)
    if isinstance(told, dict):  # an added token as an object
        told = told.get("content")
    return told if isinstance(told, str) and told else None


def _fast(file: Path, settings: dict[str, Any]) -> tuple[TextTokenizer, int]:
    """Return the tokenizer and how many tokens it has; ids may have gaps."""
    from tokenizers import Tokenizer

    try:
        library = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  the library raises bare Exception for any fault
        raise _unreadable(file, error) from None
    library.no_padding()
    library.no_truncation()
    library.encode_special_tokens = True  # despite its name: encode them as plain characters
    vocab = library.get_vocab(with_added_tokens=True)
    if not vocab:
        raise _unreadable(file, "no tokens")
    begin_id = vocab.get(_named(settings, "bos_token") or "<s>")
    end_id = vocab.get(_named(settings, "eos_token") or "</s>")
    begins = settings.get("add_bos_token")
    if not isinstance(begins, bool):  # then the file's own template decides
        begins = begin_id is not None and library.encode("").ids[:1] == [begin_id]

    def encode(texts: list[str]) -> list[list[int]]:
        return [item.ids for item in library.encode_batch(texts, add_special_tokens=False)]

    size = max(vocab.values()) + 1
    return _whole(encode, file, size, begin_id if begins else None, end_id), len(vocab)


def _pieces(file: Path, settings: dict[str, Any]) -> tuple[TextTokenizer, int]:
    """Return the tokenizer and how many tokens it has, including those added in its settings."""
    from sentencepiece import SentencePieceProcessor

    try:
        library = SentencePieceProcessor(model_file=str(file))
    except (RuntimeError, OSError) as error:
        raise _unreadable(file, str(error).splitlines()[0] or "no SentencePiece model") from None
    begins = settings.get("add_bos_token", True) is not False  # Llama's default is true

    def encode(texts: list[str]) -> list[list[int]]:
        found: list[list[int]] = library.encode(texts)
        return found

    begin_id, end_id = (None if n < 0 else int(n) for n in (library.bos_id(), library.eos_id()))
    size = library.vocab_size()
    added = settings.get("added_tokens_decoder")
    ids = [int(key) for key in added if key.isdigit()] if isinstance(added, dict) else []
    entries = size + sum(number >= size for number in ids)
    return _whole(encode, file, size, begin_id if begins else None, end_id), entries


def _whole(
    encode: Callable[[list[str]], list[list[int]]],
    file: Path,
    vocab_size: int,
    begin_id: int | None,
    end_id: int | None,
) -> TextTokenizer:
    if end_id is None:
        raise DataError(
            "no end token", where=str(file),
            rule="every dialogue ends with the end token",
            remedy=f"name it as eos_token in {SETTINGS[0]}",
        )  # fmt: skip
    begin = () if begin_id is None else (begin_id,)
    return TextTokenizer(encode, file, vocab_size, begin, end_id)
