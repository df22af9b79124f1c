"""The byte-level BPE tokenizer of a corpus: which files it is, and whether they are sound.

Owns what a tokenizer folder must hold and how its end-of-document token is found.
Must not know corpora, workers or indexed files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.data.model_config import read_json
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tokenizers import Tokenizer

ONE_FILE = "tokenizer.json"
VOCAB, MERGES = "vocab.json", "merges.txt"
TOLD_EOD = ("tokenizer_config.json", "special_tokens_map.json")
FILES = (ONE_FILE, VOCAB, MERGES, *TOLD_EOD)
END_OF_DOCUMENT = "<|endoftext|>"
AS_WRITTEN = "the files are as the tokenizer's library wrote them"
REMEDY = "name with tokenizer= the folder of the tokenizer, as the model hub has it"


@dataclass(frozen=True, slots=True)
class CorpusTokenizer:
    """An open tokenizer.

    Args:
        library: turns text into ids. Text that spells a special token is encoded as the
            characters that it is, so no document can forge the end of one.
        vocab_size: ids are below it.
        end_of_document: the token that ends every document; none: documents have no end.
        end_id: its id.
    """

    library: Tokenizer
    vocab_size: int
    end_of_document: str | None = None
    end_id: int | None = None


def tokenizer_files(folder: Path) -> dict[str, Path]:
    """Return the files of a tokenizer folder by name.

    Raises:
        DataError: neither form of a tokenizer is there.
    """
    found = {name: folder / name for name in FILES if (folder / name).is_file()}
    if ONE_FILE in found or (VOCAB in found and MERGES in found):
        return found
    raise _fault("no tokenizer", folder, f"a tokenizer is {ONE_FILE}, or {VOCAB} and {MERGES}")


def open_tokenizer(folder: Path, *, ends: bool = True) -> CorpusTokenizer:
    """Open ``tokenizer.json``, or GPT-2's two files.

    The two files say nothing of a space before a text; none is put there, as in GPT-2.

    Args:
        ends: whether a token ends every document.

    Raises:
        DataError: a file is missing or damaged, or there is no end-of-document token.
    """
    from tokenizers import Tokenizer

    files = tokenizer_files(folder)
    file = files[ONE_FILE if ONE_FILE in files else VOCAB]
    try:
        one_file = ONE_FILE in files
        library = Tokenizer.from_file(str(file)) if one_file else _from_two_files(files)
    except Exception as error:  # noqa: BLE001  the library raises bare Exception for any fault
        raise _fault(f"not readable as a tokenizer: {error}", file, AS_WRITTEN) from None
    library.no_padding()
    library.no_truncation()
    library.encode_special_tokens = True  # the name misleads: spell them out, do not match them
    vocab_size = max(library.get_vocab().values()) + 1
    if not ends:
        return CorpusTokenizer(library, vocab_size)
    end, told_by = _told_end(files)
    end_id = library.token_to_id(end)
    if end_id is None:
        what = f"no token {end!r}, which ends a document" + (f" says {told_by}" if told_by else "")
        remedy = f"name the token as eos_token in {TOLD_EOD[0]}, or add it to the vocabulary"
        raise _fault(what, file, "a document ends with a token that no text has", remedy)
    return CorpusTokenizer(library, vocab_size, end, end_id)


def _fault(what: str, where: Path | str, rule: str, remedy: str = REMEDY) -> DataError:
    return DataError(what, where=str(where), rule=rule, remedy=remedy)


def _told_end(files: Mapping[str, Path]) -> tuple[str, str | None]:
    """Return the end-of-document token and the file that names it, if one does."""
    for name in TOLD_EOD:
        told = None
        if name in files:
            told = read_json(files[name], rule=AS_WRITTEN, remedy=REMEDY).get("eos_token")
        if isinstance(told, dict):  # an added token as an object
            told = told.get("content")
        if told is not None:
            return str(told), name
    return END_OF_DOCUMENT, None


def _from_two_files(files: Mapping[str, Path]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    library = Tokenizer(models.BPE.from_file(str(files[VOCAB]), str(files[MERGES])))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return library
