"""Read a printed unit: what it measures, of which work, and its factor.

Owns how the words for units in ``columns.toml`` are combined.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from trainmark.published.importers.vocabulary import WORDS, strip_markup

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
        quantity: what it measures; ``other``: a known unit that no figure of training has: ``W``.
        printed: its text.
        factor: by which a value becomes seconds, bytes, per cent, work a second or FLOP/s.
        work: what a rate counts: ``samples``, ``tokens``, ``steps``, or the printed word; empty: it
            is not a rate.
        per_device: a rate or memory is that of one device.
    """

    quantity: Quantity
    printed: str
    factor: float = 1.0
    work: str = ""
    per_device: bool = False


class _Work(NamedTuple):
    """What a rate counts, and in which multiple: 1000 and ``tokens`` of ``ktokens``."""

    factor: float
    name: str


SECONDS = Unit("time", "s")


def parse_unit(text: str) -> Unit | None:
    """Return the unit that a text is; None: the text is not a unit."""
    printed = re.sub(r"\s+", " ", strip_markup(text)).strip(" .")
    word = printed.lower()
    if word in _SHORT:
        return parse_unit(_SHORT[word])
    parts = [part.strip(" .") for part in _PER.split(printed)]
    if len(parts) > 1 and parts[0].lower() in _WITH_DEVICE:  # `TPS/GPU` is `tokens/s/GPU`
        parts = [*_WITH_DEVICE[parts[0].lower()].split("/"), *parts[1:]]
    if not all(parts):  # nothing before or behind a slash
        return None
    return _parse_simple_unit(printed) if len(parts) == 1 else _parse_quotient(printed, parts)


def _parse_simple_unit(printed: str) -> Unit | None:
    """Return a unit without a denominator; None: the text is not a unit."""
    word = printed.lower()
    if word == "%":
        return Unit("percent", printed)
    if word in _TIME:
        return Unit("time", printed, factor=_TIME[word])
    if word in _MEMORY:
        return Unit("memory", printed, factor=_MEMORY[word])
    if word in _FLOPS and word.endswith("s"):  # `TFLOPS`; a `TFLOP` is no rate
        return Unit("flops", printed, factor=_FLOPS[word])
    if word in _OTHER:
        return Unit("other", printed)
    return None


def _parse_quotient(printed: str, parts: list[str]) -> Unit | None:
    """Return a unit of several parts, such as ``tokens/s/GPU`` or ``ms/iter``; None: no unit.

    Args:
        printed: the whole text.
        parts: the numerator and each denominator.
    """
    numerator, *denominators = parts
    denominators = [part.lower() for part in denominators]
    times = [part for part in denominators if part in _TIME]
    devices = [part for part in denominators if part in _DEVICE]
    has_only_times_and_devices = len(times) + len(devices) == len(denominators)
    word = numerator.lower()
    # `TFLOPS/GPU` has its time in the word, `TFLOP/s/GPU` in a denominator.
    if word in _FLOPS and len(times) <= 1 and has_only_times_and_devices:
        seconds = _TIME[times[0]] if times else 1.0
        return Unit("flops", printed, factor=_FLOPS[word] / seconds, per_device=bool(devices))
    if not times:
        return _parse_quotient_without_time(printed, numerator, denominators)
    work = _parse_work(numerator)
    if work is None:
        is_bandwidth_or_power = word in _OTHER or word in _MEMORY
        return Unit("other", printed) if is_bandwidth_or_power else None
    if len(times) != 1 or len(devices) > 1 or not has_only_times_and_devices:
        return None
    factor = work.factor / _TIME[times[0]]
    return Unit("rate", printed, factor=factor, work=work.name, per_device=bool(devices))


def _parse_quotient_without_time(
    printed: str, numerator: str, denominators: list[str]
) -> Unit | None:
    """Return a unit that is not a rate: the time of a step, the memory of a device, others.

    None: the text is not a unit.
    """
    if len(denominators) != 1:
        return None
    denominator = denominators[0]
    word = numerator.lower()
    if word in _MEMORY and denominator in _DEVICE:
        return Unit("memory", printed, factor=_MEMORY[word], per_device=True)
    if word in _TIME and numerator not in _WORK:  # a capital `S` stands for samples
        is_step = _WORK.get(denominator) == "steps"
        return Unit("step_time", printed, factor=_TIME[word]) if is_step else None
    is_other = word in _OTHER or word in _MEMORY
    is_work_per_other = denominator in _OTHER and _parse_work(numerator) is not None  # `tokens/J`
    return Unit("other", printed) if is_other or is_work_per_other else None


def _parse_work(text: str) -> _Work | None:
    """Return what the numerator of a rate counts; None: it is not one word.

    A word that is not in ``columns.toml`` counts as work, too: ``mol``.
    """
    if text in _WORK:  # `T/s` and `S/s` alone are in capitals
        return _Work(1.0, _WORK[text])
    word = text.lower()
    if word in _WORK and len(word) > 1:  # one small letter may be anything
        return _Work(1.0, _WORK[word])
    match = _MULTIPLE.fullmatch(word)
    if match and match[1] and len(match[2]) > 1 and match[2] in _WORK:
        return _Work(_MULTIPLES[match[1]], _WORK[match[2]])
    is_word = len(word) > 1 and word.isalpha() and word not in _MEMORY and word not in _OTHER
    return _Work(1.0, word) if is_word else None
