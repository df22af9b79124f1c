"""BERT's WordPiece tokenizer out of the files that a model folder holds.

Owns how ``tokenizer.json`` and ``vocab.txt`` are read and which tokens must be in them.
Must not know models or cases: the way out is the case's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.data.split_layout import refuse_unreadable
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tokenizers import Tokenizer

FILES = ("tokenizer.json", "vocab.txt")  # the first that exists is used
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def tokenizer_file(folder: Path, *, remedy: str) -> Path:
    """Return the file of a model folder's tokenizer.

    Args:
        remedy: what to do where there is none.

    Raises:
        DataError: there is none, or it is empty.
    """
    file = next((folder / name for name in FILES if (folder / name).is_file()), None)
    rule = "text is tokenised with the model's own tokenizer"
    if file is None:
        what = f"no {' and no '.join(FILES)}"
        raise DataError(what, where=str(folder), rule=rule, remedy=remedy)
    refuse_unreadable(file, rule=rule, remedy=remedy)
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
    tokenizer = (_from_vocab if file.suffix == ".txt" else _from_json)(file, remedy)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _from_json(file: Path, remedy: str) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  the library raises bare Exception for any fault
        raise DataError(
            f"not readable as a tokenizer: {error}", where=str(file), remedy=remedy
        ) from None
    _refuse_missing_tokens(file, tokenizer.get_vocab(), remedy)
    return tokenizer


def _from_vocab(file: Path, remedy: str) -> Tokenizer:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    try:
        lines = file.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise DataError("not UTF-8 text", where=str(file), remedy=remedy) from None
    if not lines[-1]:
        lines.pop()
    vocab = {token.rstrip("\r"): number for number, token in enumerate(lines)}
    _refuse_missing_tokens(file, vocab, remedy)
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"])
    )
    return tokenizer


def _refuse_missing_tokens(file: Path, vocab: Iterable[str], remedy: str) -> None:
    missing = [name for name in SPECIAL_TOKENS if name not in vocab]
    if missing:
        raise DataError(
            f"no token {', '.join(missing)}",
            where=str(file),
            rule="a BERT vocabulary holds the five special tokens",
            remedy=remedy,
        )
