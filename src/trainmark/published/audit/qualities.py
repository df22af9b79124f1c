"""Tell the scale and direction of a quality by its name in other people's tables.

``qualities.toml`` lists the words of such names.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path

from trainmark.toml_file import read_toml

# The places inside `trainLoss` and `HTTPError` where a word begins.
_WORD_STARTS = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")


@cache
def split_words(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case: ``final_acc1`` is ``final``, ``acc``, ``1``."""
    spaced = _WORD_STARTS.sub(" ", name)  # `trainLoss` has two words
    # Letters, numbers such as `0.5`, and Chinese characters.
    parts = re.findall(r"[A-Za-z]+|[0-9]+(?:\.[0-9]+)?|[\u4e00-\u9fff]+", spaced)
    return tuple(part.lower() for part in parts)


def is_fraction(name: str) -> bool:
    """Tell whether a quality is a fraction: between 0 and 1, or 0 and 100 per cent."""
    return _has_word(name, "fractions")


def is_quality(name: str) -> bool:
    """Tell whether a name is that of a quality of a trained model."""
    return _has_word(name, "fractions") or _has_word(name, "others")


def is_lower_better(name: str) -> bool:
    """Tell whether a quality is better the lower it is."""
    return _has_word(name, "lower")


def _has_word(name: str, kind: str) -> bool:
    """Tell whether a name has one of the words that ``qualities.toml`` lists under ``kind``.

    Args:
        name: of a column in a published table.
        kind: ``fractions``, ``others`` on other scales, or ``lower``: a lower value is better.
    """
    parts = split_words(name)
    # `top 1` and `top-1` are printed for `top1`, `m IoU` is what `mIoU` splits into.
    joined_parts = {first + second for first, second in pairwise(parts)}
    for word in {*parts, *joined_parts}:
        if any(_matches_pattern(word, pattern) for pattern in _read_words_by_kind()[kind]):
            return True
    return False


def _matches_pattern(word: str, pattern: str) -> bool:
    """Tell whether a word matches a pattern.

    The pattern ``acc`` is the whole word, ``acc*`` its beginning. A Chinese pattern may stand
    anywhere in the word.
    """
    if pattern.endswith("*"):
        return word.startswith(pattern[:-1])
    if not pattern.isascii():  # Chinese has no spaces: `收敛精度`
        return pattern in word
    return word == pattern


@cache
def _read_words_by_kind() -> dict[str, list[str]]:
    """Return the words of ``qualities.toml`` by kind: ``fractions``, ``others`` and ``lower``.

    ``others`` are qualities on other scales, ``lower`` those whose lower value is better.
    """
    return read_toml(Path(__file__).with_name("qualities.toml"))
