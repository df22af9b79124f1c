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

FAST = "tokenizer.json"
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
RULE = f"model/ holds the model's own {FAST}"
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
    refuse_unreadable(folder / FAST, rule=RULE, remedy=REMEDY)
    return [folder / FAST, *(folder / name for name in SETTINGS if (folder / name).is_file())]


def open_tokenizer(folder: Path, *, vocab_size: int) -> TextTokenizer:
    """Open the tokenizer in ``folder``; ids may have gaps.

    Args:
        vocab_size: rows of the model's embedding.

    Raises:
        DataError: it is missing or damaged, has ids beyond the embedding, has fewer tokens than
            the embedding has rows, or has no end token.
    """
    from tokenizers import Tokenizer

    file, *others = tokenizer_files(folder)
    settings: dict[str, Any] = {}
    for other in reversed(others):  # tokenizer_config.json overrides the others
        settings |= read_json(other, rule=RULE, remedy=REMEDY)
    try:
        library = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  the library raises bare Exception for any fault
        what = f"not readable as a tokenizer: {error}"
        raise DataError(what, where=str(file), rule=RULE, remedy=REMEDY) from None
    library.no_padding()
    library.no_truncation()
    library.encode_special_tokens = True  # despite its name: encode them as plain characters
    vocab = library.get_vocab(with_added_tokens=True)
    size = max(vocab.values(), default=-1) + 1
    if size > vocab_size:
        raise DataError(
            f"ids go up to {size - 1}",
            where=str(file),
            rule=f"the embedding of model/config.json has {vocab_size} rows (vocab_size)",
            remedy="put the tokenizer and the config.json of the same model into model/",
        )
    refuse_short(
        file, entries=len(vocab), vocab_size=vocab_size, of="model/config.json",
        remedy="put the model's own tokenizer into model/; where its table is padded, add unused "
        "tokens up to that size",
    )  # fmt: skip
    begin_id = vocab.get(_named(settings, "bos_token") or "<s>")
    end_id = vocab.get(_named(settings, "eos_token") or "</s>")
    if end_id is None:
        raise DataError(
            "no end token", where=str(file),
            rule="every dialogue ends with the end token",
            remedy=f"name it as eos_token in {SETTINGS[0]}",
        )  # fmt: skip
    begins = settings.get("add_bos_token")
    if not isinstance(begins, bool):  # then the file's own template decides
        begins = begin_id is not None and library.encode("").ids[:1] == [begin_id]

    def encode(texts: list[str]) -> list[list[int]]:
        return [item.ids for item in library.encode_batch(texts, add_special_tokens=False)]

    begin = (begin_id,) if begins and begin_id is not None else ()
    return TextTokenizer(encode, file, size, begin, end_id)


def _named(settings: dict[str, Any], name: str) -> str | None:
    """Return the text of a special token that the settings name."""
    told = settings.get(name)
    if isinstance(told, dict):  # an added token as an object
        told = told.get("content")
    return told if isinstance(told, str) and told else None
