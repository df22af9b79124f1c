"""A Hugging Face model folder: the keys of its ``config.json``, and BERT's tokenizer.

A case declares the keys that it needs as ``ConfigKeys``: each field has a type, a range and, as its
description, the rule that an error names. Owns reading the files and the errors, and which tokens a
vocabulary must have; knows no model and no case. Keys that a case does not declare are the writer's
own business.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainmark.data.files import readable, refuse_unreadable
from trainmark.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

CONFIG = "config.json"
Size = Annotated[int, Field(gt=0, description="a size is a whole number above 0")]
Share = Annotated[float, Field(ge=0, lt=1, description="a number in [0, 1)")]
_SHOWN_CHARACTERS = 80
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt")  # the first that exists is used
_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_TOKENIZER_RULE = "text is tokenised with the model's own tokenizer"


class ConfigKeys(BaseModel):
    """The keys of a ``config.json`` that define a model; derive once a case.

    A field's alias is the key's name in the file. A validator that raises ``ValueError`` gives
    the rule that was broken as its text.
    """

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, extra="ignore")

    @property
    def raw(self) -> dict[str, Any]:
        """The keys that the file gave, by their names there."""
        return self.model_dump(by_alias=True, exclude_unset=True)


Keys = TypeVar("Keys", bound=ConfigKeys)


def read_config(file: Path, keys: type[Keys], *, rule: str, remedy: str) -> Keys:
    """Read and check a ``config.json``.

    Raises:
        DataError: missing, no JSON, or the first key that is missing or outside its range.
    """
    raw = read_json(file, rule=rule, remedy=remedy)
    try:
        return keys.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    broken = str(first["ctx"]["error"]) if first["type"] == "value_error" else ""
    if not first["loc"]:  # a rule about several keys names them itself
        raise DataError(broken or first["msg"], where=str(file), rule=rule, remedy=remedy)
    name = str(first["loc"][0])
    field = next(item for key, item in keys.model_fields.items() if name in {key, item.alias})
    raise DataError(
        f"{name} is {repr(raw[name]) if name in raw else 'missing':.{_SHOWN_CHARACTERS}}",
        where=f"{file}, {name}",
        rule=broken or field.description or first["msg"],
        remedy=remedy,
    )


def read_json(file: Path, *, rule: str, remedy: str) -> Any:
    """Return what a JSON file of a model folder holds.

    Raises:
        DataError: it cannot be read, or is not JSON.
    """
    try:
        with readable(file, rule=rule, remedy=remedy):
            return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        what = f"not readable as JSON: {error}"
        raise DataError(what, where=str(file), rule=rule, remedy=remedy) from None


def refuse_short(
    file: Path, *, entries: int, vocab_size: int, of: str, remedy: str, multiple: int = 1
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
            remedy=remedy,
        )


def tokenizer_file(folder: Path, *, remedy: str) -> Path:
    """Return the file of a model folder's tokenizer.

    Args:
        remedy: what to do where there is none.

    Raises:
        DataError: there is none, or it is empty.
    """
    file = next((folder / name for name in TOKENIZER_FILES if (folder / name).is_file()), None)
    if file is None:
        what = f"no {' and no '.join(TOKENIZER_FILES)}"
        raise DataError(what, where=str(folder), rule=_TOKENIZER_RULE, remedy=remedy)
    refuse_unreadable(file, rule=_TOKENIZER_RULE, remedy=remedy)
    return file


def open_wordpiece(file: Path, *, remedy: str) -> Tokenizer:
    """Open ``tokenizer.json``, or build BERT's uncased tokenizer from ``vocab.txt``.

    Nothing is padded or truncated. Special tokens are put around a text unless the caller
    asks for none.

    Args:
        file: one of the two, not empty.
        remedy: what to do about a file that cannot be used.

    Raises:
        DataError: it cannot be read, or a special token is missing.
    """
    from tokenizers import Tokenizer, models

    try:
        if file.suffix == ".txt":
            tokenizer = Tokenizer(models.WordPiece.from_file(str(file), unk_token="[UNK]"))
        else:
            tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  the library raises bare Exception for any fault
        what = f"not readable as a tokenizer: {error}"
        raise DataError(what, where=str(file), rule=_TOKENIZER_RULE, remedy=remedy) from None
    missing = [name for name in _SPECIAL_TOKENS if tokenizer.token_to_id(name) is None]
    if missing:
        raise DataError(
            f"no token {', '.join(missing)}", where=str(file),
            rule="a BERT vocabulary holds the five special tokens", remedy=remedy,
        )  # fmt: skip
    if file.suffix == ".txt":
        _as_bert(tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _as_bert(tokenizer: Tokenizer) -> None:
    """Add what BERT's uncased tokenizer does around its vocabulary."""
    from tokenizers import normalizers, pre_tokenizers, processors

    vocabulary = tokenizer.get_vocab()
    tokenizer.add_special_tokens(list(_SPECIAL_TOKENS))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        *((token, vocabulary[token]) for token in ("[SEP]", "[CLS]"))
    )
