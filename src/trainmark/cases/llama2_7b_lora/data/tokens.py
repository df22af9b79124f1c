"""The tokenizer of a model folder: texts to ids, with beginning and end tokens.

Owns what its special tokens are. Must not know prompts, data files or torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.data import tokenizer
from trainmark.data.model_folder import read_json
from trainmark.data.tokenizer import FAST, SETTINGS, named_token, refuse_short, tokenizer_file
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

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
        return [[*ids, self.end_id] for ids in self.prompts(texts)]


def files_of(folder: Path) -> list[Path]:
    """Return the files of the tokenizer in ``folder`` that are read."""
    return [file for name in (FAST, *SETTINGS) if (file := folder / name).is_file()]


def open_tokenizer(folder: Path, *, vocab_size: int) -> TextTokenizer:
    """Open the tokenizer in ``folder``; ids may have gaps.

    Args:
        vocab_size: rows of the model's embedding.

    Raises:
        DataError: it is missing or damaged, has ids beyond the embedding, has fewer tokens than
            the embedding has rows, or has no end token.
    """
    file = tokenizer_file(folder, (FAST,), remedy=REMEDY)
    library = tokenizer.open_tokenizer(file, remedy=REMEDY)
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
    begin_id = vocab.get(named_token(folder, "bos_token", remedy=REMEDY) or "<s>")
    end_id = vocab.get(named_token(folder, "eos_token", remedy=REMEDY) or "</s>")
    if end_id is None:
        raise DataError(
            "no end token", where=str(file),
            rule="every dialogue ends with the end token",
            remedy=f"name it as eos_token in {SETTINGS[0]}",
        )  # fmt: skip
    begins = None
    if (settings := folder / SETTINGS[0]).is_file():
        begins = read_json(settings, rule=tokenizer.RULE, remedy=REMEDY).get("add_bos_token")
    if begins is None:  # then the file's own template decides
        begins = library.encode("").ids[:1] == [begin_id]

    def encode(texts: list[str]) -> list[list[int]]:
        return [item.ids for item in library.encode_batch(texts, add_special_tokens=False)]

    begin = (begin_id,) if begins and begin_id is not None else ()
    return TextTokenizer(encode, file, size, begin, end_id)
