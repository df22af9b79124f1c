"""Read a printed unit: what it measures, of which work, and its factor.

Owns how the words for units in ``columns.toml`` are combined. The unit of a head decides which
figure its column has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from trainmark.published.importers.vocabulary import WORDS, plain

Quantity = Literal["time", "step_time", "memory", "percent", "rate", "flops", "other"]

_UNITS: dict[str, Any] = WORDS["units"]
_TIME: dict[str, float] = _UNITS["time"]
_MEMORY: dict[str, float] = _UNITS["memory"]
_FLOPS: dict[str, float] = _UNITS["flops"]
_MULTIPLES: dict[str, float] = _UNITS["multiples"]
_WORK = {word: work for work, words in _UNITS["work"].items() for word in words}
_DEVICE = {*_UNITS["device"]}
_OTHER = {*_UNITS["other"]}
_SHORT: dict[str, str] = _UNITS["short"]
_WITH_DEVICE: dict[str, str] = _UNITS["with_device"]
_PER = re.compile(r"\s*(?:/|\bper\b|(?<=[a-z])_per_(?=[a-z])|每)\s*", re.IGNORECASE)
# `ktokens`, `k tokens`, `ntokens`: a multiple before the work.
_MULTIPLE = re.compile(rf"({'|'.join(map(re.escape, _MULTIPLES))})?[ _-]?(.+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Unit:
    """A printed unit.

    Args:
        printed: its text.
        factor: to seconds, bytes, per cent, work a second or FLOP/s.
        work: of a rate: ``samples``, ``tokens``, ``steps``, or the printed word.
        per_device: a rate is that of one device.
    """

    quantity: Quantity
    printed: str
    factor: float = 1.0
    work: str = ""
    per_device: bool = False


SECONDS = Unit("time", "s")


def parse_unit(text: str) -> Unit | None:
    """Return the unit that a text is; None: it is no unit."""
    printed = re.sub(r"\s+", " ", plain(text)).strip(" .")
    word = printed.lower()
    if word in _SHORT:
        return parse_unit(_SHORT[word])
    parts = [part.strip(" .") for part in _PER.split(printed)]
    if len(parts) > 1 and parts[0].lower() in _WITH_DEVICE:  # `TPS/GPU`
        parts = [*_WITH_DEVICE[parts[0].lower()].split("/"), *parts[1:]]
    if not all(parts):
        return None
    return _simple_unit(printed) if len(parts) == 1 else _quotient(printed, parts)


def _simple_unit(printed: str) -> Unit | None:
    word = printed.lower()
    if word == "%":
        return Unit("percent", printed)
    if word in _TIME:
        return Unit("time", printed, _TIME[word])
    if word in _MEMORY:
        return Unit("memory", printed, _MEMORY[word])
    if word in _FLOPS and word.endswith("s"):  # `TFLOPS`; a `TFLOP` is no rate
        return Unit("flops", printed, _FLOPS[word])
    if word in _OTHER:
        return Unit("other", printed)
    return None


def _quotient(printed: str, parts: list[str]) -> Unit | None:
    """Return a unit of several parts, such as ``tokens/s/GPU`` or ``ms/iter``."""
    top, below = parts[0], [part.lower() for part in parts[1:]]
    word = top.lower()
    times = [part for part in below if part in _TIME]
    devices = [part for part in below if part in _DEVICE]
    if word in _FLOPS and len(times) <= 1 and len(times) + len(devices) == len(below):
        seconds = _TIME[times[0]] if times else 1.0
        return Unit("flops", printed, _FLOPS[word] / seconds, per_device=bool(devices))
    if not times:
        return _without_time(printed, top, below)
    factor, work = _work(top)
    if not work and (word in _OTHER or word in _MEMORY):  # a bandwidth
        return Unit("other", printed)
    is_rate = len(times) == 1 and len(devices) <= 1 and len(times) + len(devices) == len(below)
    if not work or not is_rate:
        return None
    return Unit("rate", printed, factor / _TIME[times[0]], work, per_device=bool(devices))


def _without_time(printed: str, top: str, below: list[str]) -> Unit | None:
    """Return a unit that is no rate: the time of a step, a memory of a device, others."""
    word = top.lower()
    if len(below) != 1:
        return None
    if word in _MEMORY and below[0] in _DEVICE:
        return Unit("memory", printed, _MEMORY[word], per_device=True)
    if word in _TIME and top not in _WORK:
        is_step = _WORK.get(below[0]) == "steps"
        return Unit("step_time", printed, _TIME[word]) if is_step else None
    is_other = word in _OTHER or word in _MEMORY
    is_per_other = below[0] in _OTHER and bool(_work(top)[1])  # `tokens/J`
    return Unit("other", printed) if is_other or is_per_other else None


def _work(top: str) -> tuple[float, str]:
    """Return the multiple and the work that a rate counts: of ``ktokens`` 1000 and ``tokens``.

    A work that nobody knows is one word, such as ``mol``; no work at all is an empty text.
    """
    if top in _WORK:  # `T/s` and `S/s` alone are in capitals
        return 1.0, _WORK[top]
    word = top.lower()
    if word in _WORK and len(word) > 1:
        return 1.0, _WORK[word]
    match = _MULTIPLE.fullmatch(word)
    if match and match[1] and len(match[2]) > 1 and match[2] in _WORK:
        return _MULTIPLES[match[1]], _WORK[match[2]]
    is_word = len(word) > 1 and word.isalpha() and word not in _MEMORY and word not in _OTHER
    return 1.0, word if is_word else ""
