"""BERT's WordPiece tokenizer out of the files that a model folder holds.

Owns how ``tokenizer.json`` and ``vocab.txt`` are read and which tokens must be in them.
Must not know models or cases: the way out is the case's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.data.files import refuse_unreadable
from trainmark.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

FILES = ("tokenizer.json", "vocab.txt")  # the first that exists is used
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
RULE = "text is tokenised with the model's own tokenizer"


def tokenizer_file(folder: Path, *, remedy: str) -> Path:
    """Return the file of a model folder's tokenizer.

    Args:
        remedy: what to do where there is none.

    Raises:
        DataError: there is none, or it is empty.
    """
    file = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if file is None:
        what = f"no {' and no '.join(FILES)}"
        raise DataError(what, where=str(folder), rule=RULE, remedy=remedy)
    refuse_unreadable(file, rule=RULE, remedy=remedy)
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
        raise DataError(what, where=str(file), rule=RULE, remedy=remedy) from None
    missing = [name for name in SPECIAL_TOKENS if tokenizer.token_to_id(name) is None]
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
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        *((token, vocabulary[token]) for token in ("[SEP]", "[CLS]"))
    )
