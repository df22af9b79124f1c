"""What the name of a quality in other people's tables says about its scale and direction."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path

from trainmark.toml_file import read_toml

_CASES = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")


@cache
def words(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case: ``final_acc1`` is ``final``, ``acc``, ``1``."""
    split = _CASES.sub(" ", name)
    parts = re.findall(r"[A-Za-z]+|[0-9]+(?:\.[0-9]+)?|[\u4e00-\u9fff]+", split)
    return tuple(word.lower() for word in parts)


def is_share(name: str) -> bool:
    """Tell whether a quality lies between 0 and 1, or 0 and 100 per cent."""
    return _has_word(name, "shares")


def is_quality(name: str) -> bool:
    """Tell whether a name is that of a quality of a trained model."""
    return _has_word(name, "shares") or _has_word(name, "others")


def is_lower_better(name: str) -> bool:
    """Tell whether a quality is better the lower it is."""
    return _has_word(name, "lower")


def _has_word(name: str, kind: str) -> bool:
    parts = words(name)
    # `top 1` and `top-1` are printed for `top1`, `m IoU` is what `mIoU` splits into.
    joined = {first + second for first, second in pairwise(parts)}
    return any(_is_word(word, pattern) for word in {*parts, *joined} for pattern in _table()[kind])


def _is_word(word: str, pattern: str) -> bool:
    if pattern.endswith("*"):
        return word.startswith(pattern[:-1])
    if not pattern.isascii():  # Chinese has no spaces: `收敛精度`
        return pattern in word
    return word == pattern


@cache
def _table() -> dict[str, list[str]]:
    return read_toml(Path(__file__).with_name("qualities.toml"))
