"""Read a printed unit: what it measures, of which work, and its factor.

Owns how the words for units in ``columns.toml`` are combined. The words are in lower case; only
those for work may be capitals: ``T/s`` is tokens a second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from trainmark.published.importers.vocabulary import WORDS, strip_markup

Quantity = Literal["time", "step_time", "memory", "percent", "rate", "flops", "other"]

_UNITS: dict[str, Any] = WORDS["units"]
_SECONDS_BY_WORD: dict[str, float] = _UNITS["time"]
_BYTES_BY_WORD: dict[str, float] = _UNITS["memory"]
_FLOPS_BY_WORD: dict[str, float] = _UNITS["flops"]
_MULTIPLES: dict[str, float] = _UNITS["multiples"]
_WORK_BY_WORD = {word: work for work, words in _UNITS["work"].items() for word in words}
_DEVICE_WORDS = {*_UNITS["device"]}
_OTHER_WORDS = {*_UNITS["other"]}
_UNIT_BY_SHORT_FORM: dict[str, str] = _UNITS["short"]
_RATE_BY_SHORT_FORM: dict[str, str] = _UNITS["with_device"]
_DIVISION = re.compile(r"\s*(?:/|\bper\b|(?<=[a-z])_per_(?=[a-z])|每)\s*", re.IGNORECASE)
# `ktokens`, `k tokens`, `ntokens`: a multiple before the work.
_MULTIPLE_AND_WORK = re.compile(
    rf"({'|'.join(map(re.escape, _MULTIPLES))})?[ _-]?(.+)", re.IGNORECASE
)


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
    """Return the unit that a text is; None: the text is not a unit.

    Short forms are written out: ``ips`` is ``images/s``.
    """
    printed = re.sub(r"\s+", " ", strip_markup(text)).strip(" .")
    word = printed.lower()
    if word in _UNIT_BY_SHORT_FORM:
        return parse_unit(_UNIT_BY_SHORT_FORM[word])
    parts = [part.strip(" .") for part in _DIVISION.split(printed)]
    if len(parts) > 1 and parts[0].lower() in _RATE_BY_SHORT_FORM:  # `TPS/GPU` is `tokens/s/GPU`
        parts = [*_RATE_BY_SHORT_FORM[parts[0].lower()].split("/"), *parts[1:]]
    if not all(parts):  # nothing before or behind a slash
        return None
    return _parse_simple_unit(printed) if len(parts) == 1 else _parse_quotient(printed, parts)


def _parse_simple_unit(printed: str) -> Unit | None:
    """Return a unit without a denominator; None: the text is not a unit."""
    word = printed.lower()
    if word == "%":
        return Unit("percent", printed)
    if word in _SECONDS_BY_WORD:
        return Unit("time", printed, factor=_SECONDS_BY_WORD[word])
    if word in _BYTES_BY_WORD:
        return Unit("memory", printed, factor=_BYTES_BY_WORD[word])
    if word in _FLOPS_BY_WORD and word.endswith("s"):  # `TFLOPS`; a `TFLOP` is no rate
        return Unit("flops", printed, factor=_FLOPS_BY_WORD[word])
    if word in _OTHER_WORDS:
        return Unit("other", printed)
    return None


def _parse_quotient(printed: str, parts: list[str]) -> Unit | None:
    """Return a unit of several parts, such as ``tokens/s/GPU`` or ``ms/iter``; None: no unit.

    The ``factor`` of a unit turns values into FLOP/s or into work a second: that of ``ktokens/s``
    is 1000. A known unit that no figure of training has, ``GB/s``, has the quantity ``other``.

    Args:
        printed: the whole text.
        parts: the numerator and each denominator.
    """
    numerator, *denominators = parts
    denominators = [part.lower() for part in denominators]
    times = [part for part in denominators if part in _SECONDS_BY_WORD]
    devices = [part for part in denominators if part in _DEVICE_WORDS]
    has_only_times_and_devices = len(times) + len(devices) == len(denominators)
    word = numerator.lower()
    # `TFLOPS/GPU` has its time in the word, `TFLOP/s/GPU` in a denominator. In `TFLOPs/s` the `s`
    # of the word is a plural. `TFLOP/GPU` has no time, so it is no rate.
    is_rate = word.endswith("s") if not times else len(times) == 1
    if word in _FLOPS_BY_WORD and is_rate and has_only_times_and_devices:
        seconds = _SECONDS_BY_WORD[times[0]] if times else 1.0
        return Unit(
            "flops", printed, factor=_FLOPS_BY_WORD[word] / seconds, per_device=bool(devices)
        )
    if not times:
        return _parse_quotient_without_time(printed, numerator, denominators)
    work = _parse_work(numerator)
    if work is None:
        is_other_unit = word in _OTHER_WORDS or word in _BYTES_BY_WORD  # `J/s`, `$/h`, `GB/s`
        return Unit("other", printed) if is_other_unit else None
    if len(times) != 1 or len(devices) > 1 or not has_only_times_and_devices:
        return None
    factor = work.factor / _SECONDS_BY_WORD[times[0]]
    return Unit("rate", printed, factor=factor, work=work.name, per_device=bool(devices))


def _parse_quotient_without_time(
    printed: str, numerator: str, denominators: list[str]
) -> Unit | None:
    """Return a unit such as ``ms/iter``, ``GB/GPU`` or ``tokens/J``; None: the text is no unit.

    The ``factor`` of a unit turns values into bytes or seconds. A known unit that no figure of
    training has, ``tokens/J``, has the quantity ``other``.

    Args:
        printed: the whole text.
        numerator: the part before the slash, as printed.
        denominators: in lower case; none of them is a time.
    """
    if len(denominators) != 1:
        return None
    denominator = denominators[0]
    word = numerator.lower()
    if word in _BYTES_BY_WORD and denominator in _DEVICE_WORDS:
        return Unit("memory", printed, factor=_BYTES_BY_WORD[word], per_device=True)
    # Of times per something, only that of a step is read: `ms/iter`. A capital `S` stands for
    # samples, not for seconds.
    if word in _SECONDS_BY_WORD and numerator not in _WORK_BY_WORD:
        is_step = _WORK_BY_WORD.get(denominator) == "steps"
        return Unit("step_time", printed, factor=_SECONDS_BY_WORD[word]) if is_step else None
    # Known units that no figure of training has: `W/node`, `GB/epoch`, `tokens/J`.
    is_other = word in _OTHER_WORDS or word in _BYTES_BY_WORD
    is_work_per_other = denominator in _OTHER_WORDS and _parse_work(numerator) is not None
    return Unit("other", printed) if is_other or is_work_per_other else None


def _parse_work(text: str) -> _Work | None:
    """Return what the numerator of a rate counts, and its multiple; None: it counts no work.

    Work is samples, tokens or steps, by any of their words in ``columns.toml``; or else any other
    word, such as ``mol``, that is not a unit of bytes, power and the like.
    """
    if text in _WORK_BY_WORD:  # as printed, because a `T` is tokens only in capitals
        return _Work(factor=1.0, name=_WORK_BY_WORD[text])
    word = text.lower()
    if word in _WORK_BY_WORD and len(word) > 1:  # one small letter may be anything
        return _Work(factor=1.0, name=_WORK_BY_WORD[word])
    # `ktokens`: the first group is the multiple, `k`, the second the work, `tokens`.
    match = _MULTIPLE_AND_WORK.fullmatch(word)
    if match and match[1] and len(match[2]) > 1 and match[2] in _WORK_BY_WORD:
        return _Work(_MULTIPLES[match[1]], _WORK_BY_WORD[match[2]])
    is_word = (
        len(word) > 1 and word.isalpha() and word not in _BYTES_BY_WORD and word not in _OTHER_WORDS
    )
    return _Work(factor=1.0, name=word) if is_word else None
