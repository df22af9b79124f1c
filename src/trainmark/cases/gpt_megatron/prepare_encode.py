"""Lines of JSON into token ids, in one thread.

Owns how a text becomes ids quickly, and what is refused in a line. Must not know files,
processes or the indexed form; runs in the workers of ``prepare``.

White space is where words begin: no token of GPT-2's cutting holds white space after
anything else. So a text may be cut there, and a word met before needs no second encoding.
Most of a corpus is words met before; looking them up is several times as fast as encoding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic_core import from_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .tokenizer import CorpusTokenizer

WORDS_KEPT = 200_000  # some 40 MB
LONGEST_WORD_KEPT = 48  # characters
TEXT_AT_ONCE = 1 << 18  # characters encoded before their ids are taken: bounds memory
WORD = re.compile(r"\s*\S+|\s+")
# White space to Python that the library may see otherwise, or cut otherwise.
ODD_SPACE = re.compile(r"[^\S \t\n\r\f\v]")


@dataclass(frozen=True, slots=True)
class Encoded:
    """What came of a block of lines.

    Args:
        tokens: ids of all documents, each with its end token, in the pair's element type.
        sizes: tokens of each document, int32.
        empty_texts: texts without a character, which make no document.
    """

    tokens: bytes
    sizes: bytes
    empty_texts: int


class LineFault(Exception):
    """A line that holds no text.

    Args:
        number: which line of the block, from 0.
        what: the fault.
        remedy: the way out.
    """

    def __init__(self, number: int, what: str, remedy: str) -> None:
        super().__init__(number, what, remedy)
        self.number = number
        self.what = what
        self.remedy = remedy


def texts_of(data: bytes, text_key: str) -> Iterator[str]:
    """Yield the text of every line; a line of white space only is none.

    Raises:
        LineFault: a line is no JSON object, or has no text under ``text_key``.
    """
    for number, line in enumerate(data.split(b"\n")):
        if not line or line.isspace():
            continue
        try:
            found: Any = from_json(line)
        except ValueError as error:
            fault = str(error).replace("at line 1 column", "at column")
            raise LineFault(
                number, f"not readable as JSON: {fault}", "mend or remove the line"
            ) from None
        if not isinstance(found, dict):
            raise LineFault(
                number, f"a {type(found).__name__}, no JSON object", "mend or remove the line"
            )
        text = found.get(text_key)
        if text_key not in found:
            keys = ", ".join(map(repr, list(found)[:8])) or "none"
            raise LineFault(
                number, f"no key {text_key!r}; its keys: {keys}", "name the text's with --text-key"
            )
        if not isinstance(text, str):
            raise LineFault(
                number,
                f"{text_key!r} is {str(text)[:40]!r}, a {type(text).__name__}",
                "mend the line, or name the text's key with --text-key",
            )
        yield text


class Encoder:
    """Encode texts, keeping the ids of words.

    Args:
        tokenizer: the tokenizer.
        dtype: element type of the ids.
    """

    def __init__(self, tokenizer: CorpusTokenizer, dtype: np.dtype[Any]) -> None:
        self._tokenizer = tokenizer
        self._dtype = dtype
        self._end = np.array([tokenizer.end_id], dtype).tobytes()
        self._known: dict[str, bytes] = {}

    def block(self, data: bytes, text_key: str) -> Encoded:
        """Encode all lines of a block.

        Raises:
            LineFault: the first line that holds no text.
        """
        documents: list[bytes] = []
        waiting: list[str] = []
        characters = empty_texts = 0
        for text in texts_of(data, text_key):
            if not text:
                empty_texts += 1
                continue
            waiting.append(text)
            characters += len(text)
            if characters >= TEXT_AT_ONCE:
                documents += self.encode(waiting)
                waiting, characters = [], 0
        documents += self.encode(waiting)
        item_bytes = self._dtype.itemsize
        sizes = np.array([len(document) // item_bytes for document in documents], np.int32)
        return Encoded(b"".join(documents), sizes.tobytes(), empty_texts)

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        """Return each text's ids with the end token, as bytes of the element type."""
        words = [self._words(text) for text in texts]
        known = self._known
        if len(known) > WORDS_KEPT:
            known.clear()
        new = list(set().union(*words).difference(known))
        ids = self._tokenizer.library.encode_batch_fast(new, add_special_tokens=False)
        found = {
            word: np.array(item.ids, self._dtype).tobytes()
            for word, item in zip(new, ids, strict=True)
        }
        known.update(found)
        documents = [b"".join(map(known.__getitem__, item)) + self._end for item in words]
        for word in found:
            if len(word) > LONGEST_WORD_KEPT:
                del known[word]
        return documents

    def _words(self, text: str) -> list[str]:
        if not self._tokenizer.by_words or ODD_SPACE.search(text):
            return [text]
        return WORD.findall(text)
