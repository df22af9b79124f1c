"""Read which quantity a number in a log is, from the words of its key and the unit behind it.

Owns the vocabulary, ``words.toml``: rates, step times, counters, losses, and words that are not
about training.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainmark.published.importers import vocabulary
from trainmark.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Iterable

WORDS: dict[str, Any] = read_toml(Path(__file__).with_name("words.toml"))
STEPS_UNIT = "steps/s"
_TABLE_UNITS = vocabulary.WORDS["units"]
# The unit of a rate by the word for what it counts: `tokens/s` by `toks`.
_RATE_UNIT_BY_WORD = {
    word: f"{work}/s"
    for work, words in _TABLE_UNITS["work"].items()
    for word in words
    if word.isascii() and word.islower()
} | {word: unit for unit, words in WORDS["items"].items() for word in words}
_UNIT_BY_ABBREVIATION: dict[str, str] = WORDS["abbreviations"]
_SECONDS_BY_WORD: dict[str, float] = {
    word: seconds for word, seconds in _TABLE_UNITS["time"].items() if word.isascii()
}
# Without minutes: at the end of a key, `min` is a minimum.
_SECONDS_BY_ENDING = {word: seconds for word, seconds in _SECONDS_BY_WORD.items() if seconds <= 1}
_NOT_TRAINING_WORDS = frozenset(WORDS["marks"]["not_training"])
_JOB_WORDS = frozenset(WORDS["marks"]["job"])
_SUMMARY_WORDS = frozenset(WORDS["marks"]["summary"])
_SPEED_WORDS = frozenset(WORDS["marks"]["speed"])
_DURATION_WORDS = frozenset(WORDS["marks"]["duration"])
_BATCH_WORDS = {"batch", "batches"}
_NOT_COUNTER_WORDS = _NOT_TRAINING_WORDS | _DURATION_WORDS | set(WORDS["marks"]["no_counter"])
_EVALUATION_WORDS = frozenset(WORDS["other_work"]["evaluation"])
_PREPARATION_WORDS = frozenset(WORDS["other_work"]["preparation"])


def _join_alternatives(words: Iterable[str]) -> str:
    """Return a pattern that matches any of the words; longer ones are tried first."""
    return "|".join(sorted((re.escape(word) for word in words), key=len, reverse=True))


_ITEM = _join_alternatives(_RATE_UNIT_BY_WORD)
_STEP = _join_alternatives(word for word, unit in _RATE_UNIT_BY_WORD.items() if unit == STEPS_UNIT)
_TIME = _join_alternatives(_SECONDS_BY_WORD)
# A key that ends in one of these has its unit there.
_TIME_ENDING = _join_alternatives(_SECONDS_BY_ENDING)
_DEVICE_WORDS = {*_TABLE_UNITS["device"], *WORDS["marks"]["devices"]}
_DEVICE = rf"(?:{_join_alternatives(word for word in _DEVICE_WORDS if word.isascii())})s?"
_DURATION = _join_alternatives(_DURATION_WORDS)
_COUNT = r"(?P<count>\d+)(?P<thousand> ?k)?"
_COUNT_BEFORE = r"(?P<count2>\d+)(?P<thousand2> ?k)?"

# All of these are about the words of a key, joined by single spaces.
_RATE = re.compile(
    rf"\b(?P<item>{_ITEM}) per (?:(?P<device>{_DEVICE}) per )?(?P<time>{_TIME})"
    rf"(?P<each> per {_DEVICE})?\b"
)
_RATE_WITHOUT_PER = re.compile(rf"\b(?P<item>{_ITEM}) (?P<time>s|sec|secs|second)\b")
_TIME_PER_STEP = re.compile(rf"\b(?P<time>{_TIME}) per (?:{_COUNT} )?(?:{_STEP})\b")
_STEP_TIME = re.compile(
    rf"\b(?:{_STEP}) (?:{_DURATION})\b|\b(?:{_DURATION}) per (?:{_STEP})\b"
    rf"|\bstep ?time\b|\biter ?time\b"
    rf"|\b(?:{_STEP}) (?:{_TIME_ENDING})$"
)
_TIME_OF_MANY = re.compile(
    rf"\b(?:{_DURATION})(?: for| of| per)? {_COUNT} (?:{_STEP})\b"
    rf"|\b{_COUNT_BEFORE} (?:{_STEP}) (?:{_DURATION}|in)\b"
)
_PER_DEVICE = re.compile(rf"\bper {_DEVICE}\b")
_PER_NODE = re.compile(rf"\bper (?:{_join_alternatives(WORDS['marks']['nodes'])})\b")
_WEAK_STEP_TIME = re.compile(
    rf"(?:time|seconds|secs|sec|dt|duration)(?: (?:in )?(?:{_TIME_ENDING}))?"
)
# `time per epoch: 12.3` and `max epoch: 10` are no numbers of an epoch; `done at epoch: 3` is one.
_EPOCH = re.compile(
    r"(?<!\bper )(?<!\bmax )(?<!\btotal )(?<!\bleft in )(?<!\bremaining in )\bepoch$"
)
_MAIN_LOSS_WORDS = {"loss", "train", "training", "lm", "total", "step", "is"}
_GLOBAL_BATCH = re.compile(r"(?:global|total|effective) (?:train )?batch(?: size)?|gbs|global bs")
_WORK_OF_STEP = re.compile(
    r"wpb|(?:n |num )?(?:tokens|samples) per (?:step|batch|iteration|update)"
)
_DONE_WORDS = "consumed|trained|seen|processed"
_WORK_SO_FAR = re.compile(
    rf"(?:num )?(?:{_DONE_WORDS})(?: train| input)? (?P<item>tokens|samples|sequences)"
    rf"|(?:num )?(?:input )?(?P<item2>tokens|samples|sequences) (?:{_DONE_WORDS})(?: so far)?"
)
_FLOPS = re.compile(r"(?i)[kmgtp]?flops?\b|^\s*[kmgtp]$|^\s*[kmgt]i?b(?:it)?s?(?:/s(?:ec)?)?$")

# The unit behind a number, as it stands in a line. Behind the number of a step a key may stand that
# looks like a unit: `10 images/sec: 304`, `step 10 tokens/s 300`.
_NO_KEY = r"(?!['\"]?[ \t]*[:=][ \t]*['\"]?[+-]?[0-9])"
_NO_BARE_KEY = r"(?! [0-9][0-9.,]*(?: (?![A-Za-z]+/)|[^\w .]|$))"
UNIT = (
    rf"(?i:(?:{_ITEM}) ?(?:/|per ) ?(?:{_DEVICE} ?(?:/|per ) ?)?(?:{_TIME})"
    rf"(?: ?(?:/|per ) ?{_DEVICE})?(?![\w/]){_NO_BARE_KEY}"
    rf"|(?:{_TIME}) ?(?:/|per ) ?(?:{_STEP})(?![\w/])"
    rf"|(?:{_TIME})(?![\w/])){_NO_KEY}"
)


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a number in a log that is a speed or a step time measures.

    Args:
        kind: ``speed``: samples or tokens a second; ``steps``: steps a second; ``step_time``.
        unit: what a speed counts, ``tokens/s``; empty: not known.
        time_unit_s: length of the unit of time: 0.001 of milliseconds, 60 of a rate a minute.
        num_steps: number of steps that a time covers.
        scope: a speed of one ``device``, one ``node`` or the whole ``job``; empty: the key does not
            say.
        is_summary: an average or a total, not what one step or interval had.
        is_weak: the key alone, such as ``time``, may mean something else.
    """

    kind: Literal["speed", "steps", "step_time"]
    unit: str = ""
    time_unit_s: float = 1.0
    num_steps: int = 1
    scope: Literal["device", "node", "job", ""] = ""
    is_summary: bool = False
    is_weak: bool = False


@lru_cache(maxsize=4096)
def split_words(text: str) -> tuple[str, ...]:
    """Return the words of a key or unit in lower case, with ``per`` for a slash.

    ``audit.qualities.split_words`` does the same for headers, whose Chinese words and decimal
    numbers it keeps.
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)  # `stepTime` has two words
    return tuple(re.findall(r"[a-zµ]+|[0-9]+", spaced.replace("/", " per ").lower()))


@lru_cache(maxsize=4096)
def read_quantity(key: str, unit: str = "", following: str = "") -> Quantity | None:
    """Return what a number measures; None: neither a speed nor a step time of training.

    Args:
        key: the text before the number; empty: there is none.
        unit: the known unit of time or of a rate behind the number, such as ``ms``; empty: there is
            none.
        following: the word behind the number, which may be a known unit or any other word.
    """
    words = split_words(key)
    if not _NOT_TRAINING_WORDS.isdisjoint(words):
        return None
    # FLOP/s and bytes, in the key or behind the number, are other quantities.
    if _FLOPS.search(key) or _FLOPS.search(following):
        return None
    unit_quantity = _read_unit(unit)
    quantity = _read_key(words, unit_quantity)
    # If the key does not say what the number is, a unit such as `tokens/s` or `s/step` does; a bare
    # time such as `ms` does not.
    if quantity is None and unit_quantity is not None and _is_rate_or_time_per_step(unit_quantity):
        quantity = unit_quantity
    if quantity is None:
        return None
    is_summary = not _SUMMARY_WORDS.isdisjoint(words)  # an average, a total or the like
    # Whose speed it is: that of a device, a node or the job; empty: not known.
    scope = quantity.scope
    if not scope and _PER_DEVICE.search(" ".join(words)):
        scope = "device"
    elif not scope and _PER_NODE.search(" ".join(words)):
        scope = "node"
    # A word such as `total` or `overall` says so less clearly than `per device`: the `overall
    # throughput per device` is that of one device during the whole run.
    elif not scope and quantity.kind == "speed" and not _JOB_WORDS.isdisjoint(words):
        scope = "job"
    return replace(quantity, is_summary=is_summary, scope=scope)


def _read_key(words: tuple[str, ...], unit_quantity: Quantity | None) -> Quantity | None:
    """Return what a number measures by the words of its key; None: they do not say.

    Args:
        words: of the key, which is the text before the number.
        unit_quantity: what the unit behind the number says; None: there is no known unit.
    """
    text = " ".join(words)
    rate = _RATE.search(text)
    # `tokens_sec` is a rate, but `step_sec` is the time of a step: words for a step have the unit
    # `steps/s` in the table.
    begins_with_step = bool(words) and _RATE_UNIT_BY_WORD.get(words[0]) == STEPS_UNIT
    if rate is None and not begins_with_step:
        rate = _RATE_WITHOUT_PER.search(text)
    if rate is not None:
        return _make_rate(rate)
    for word in words:
        if word in _UNIT_BY_ABBREVIATION:
            return _expand_abbreviation(_UNIT_BY_ABBREVIATION[word], unit_quantity)
    if _SPEED_WORDS.isdisjoint(words):
        return _read_step_time(words, unit_quantity)
    if unit_quantity is None:  # weak: the speed in `speed: 3.1` may count anything
        return Quantity("speed", is_weak=True)
    if _is_rate_or_time_per_step(unit_quantity):
        return unit_quantity
    return None  # `speed: 3 ms` is no speed


def _is_rate_or_time_per_step(unit_quantity: Quantity) -> bool:
    """Tell whether a unit is a rate, or a time of a step, and not a bare time such as ``ms``."""
    # ``_read_unit`` sets ``unit`` for a time of a step, such as `s/it`, but not for a bare time.
    return unit_quantity.kind != "step_time" or bool(unit_quantity.unit)


def _read_step_time(words: tuple[str, ...], unit_quantity: Quantity | None) -> Quantity | None:
    """Return the step time that the words of a key name; None: they name none.

    If the key is only a word such as ``time`` and the unit is a rate such as ``it/s``, that rate is
    returned instead.

    Of a step time, ``time_unit_s`` is the length of the unit of time in seconds, and ``num_steps``
    is how many steps the time covers.

    Args:
        words: of the key, which is the text before the number.
        unit_quantity: what the unit behind the number says; None: there is no known unit.
    """
    text = " ".join(words)
    per_step = _TIME_PER_STEP.search(text)  # `ms per iteration`
    of_many = _TIME_OF_MANY.search(text)  # `time for 100 steps`
    if per_step is not None:
        return Quantity(
            "step_time",
            time_unit_s=_SECONDS_BY_WORD[per_step["time"]],
            num_steps=_read_count(per_step),
        )
    if of_many is not None or _STEP_TIME.search(text):
        return Quantity(
            "step_time",
            time_unit_s=_get_unit_seconds(words, unit_quantity),
            num_steps=_read_count(of_many),
        )
    if not _WEAK_STEP_TIME.fullmatch(text):
        return None
    # The key is a word such as `time`: a unit such as `s/it` or `it/s` outweighs it, `ms` does not.
    if unit_quantity is not None and _is_rate_or_time_per_step(unit_quantity):
        return unit_quantity
    # Weak: `time: 3 ms` may be the time of something else.
    return Quantity("step_time", time_unit_s=_get_unit_seconds(words, unit_quantity), is_weak=True)


def _make_rate(match: re.Match[str]) -> Quantity:
    """Return the quantity of a match of ``_RATE`` or ``_RATE_WITHOUT_PER``.

    The group ``item`` is what the rate counts, and ``time`` its unit of time.
    """
    unit = _RATE_UNIT_BY_WORD[match["item"]]
    seconds = _SECONDS_BY_WORD[match["time"]]
    # Only `_RATE` has the groups for a device: `device` in `tokens per gpu per s`, `each` in
    # `tokens per s per gpu`.
    groups = match.groupdict()
    per_device = bool(groups.get("device") or groups.get("each"))
    if unit == STEPS_UNIT:  # all devices do a step together, so it has no scope
        return Quantity("steps", unit, time_unit_s=seconds)
    return Quantity("speed", unit, time_unit_s=seconds, scope="device" if per_device else "")


def _expand_abbreviation(unit: str, unit_quantity: Quantity | None) -> Quantity:
    """Return the quantity of an abbreviation in a key, such as ``tps`` for tokens a second.

    Args:
        unit: for which the abbreviation stands: ``tokens/s``, ``tokens/s/device`` or ``steps/s``;
            empty: the abbreviation, such as ``ips``, does not say what it counts.
        unit_quantity: what the unit behind the number says; None: there is no known unit.
    """
    if not unit and unit_quantity is not None and unit_quantity.kind != "step_time":
        return unit_quantity  # `ips` counts what the unit behind its number says
    if unit == STEPS_UNIT:
        return Quantity("steps", unit)
    # The key or the unit behind the number may say that the speed is that of one device.
    is_of_device = unit.endswith("/device")
    if unit_quantity is not None and unit_quantity.kind == "speed":
        is_of_device = is_of_device or unit_quantity.scope == "device"
    scope: Literal["device", ""] = "device" if is_of_device else ""
    return Quantity("speed", unit.removesuffix("/device"), scope=scope)


def _read_count(match: re.Match[str] | None) -> int:
    """Return the number of steps in a match: 2000 of ``2k``; 1 if it has none."""
    if match is None:
        return 1
    groups = match.groupdict()  # a pattern with two places for the number has two groups for it
    number = groups.get("count") or groups.get("count2")
    is_in_thousands = bool(groups.get("thousand") or groups.get("thousand2"))
    count = int(number) if number else 1
    count = max(count, 1)  # a time of 0 steps is read as one of a single step
    return count * 1000 if is_in_thousands else count


def _get_unit_seconds(words: tuple[str, ...], unit_quantity: Quantity | None) -> float:
    """Return the seconds of a time's unit: that in the key, else behind the number, else 1.

    Args:
        words: of the key.
        unit_quantity: what the unit behind the number says; None: there is no known unit.
    """
    # The ending of a key of several words, such as `time_ms`. A single word is what is measured.
    if len(words) > 1 and words[-1] in _SECONDS_BY_ENDING:
        return _SECONDS_BY_ENDING[words[-1]]
    # This kind also has a time that need not be that of a step, such as `ms`.
    if unit_quantity is not None and unit_quantity.kind == "step_time":
        return unit_quantity.time_unit_s
    return 1.0


@lru_cache(maxsize=1024)
def _read_unit(unit: str) -> Quantity | None:
    """Return what the unit behind a number says; None: it is empty or not known.

    A bare time such as ``ms`` is a ``step_time`` without a unit: it need not be the time of a step.
    """
    words = split_words(unit)
    if not words:
        return None
    text = " ".join(words)
    rate = _RATE.search(text)
    if rate is not None:
        return _make_rate(rate)
    time_per_step = _TIME_PER_STEP.search(text)
    if time_per_step is not None:
        seconds = _SECONDS_BY_WORD[time_per_step["time"]]
        steps = _read_count(time_per_step)
        # By this unit, ``_is_rate_or_time_per_step`` distinguishes it from a bare time.
        return Quantity("step_time", unit="s/step", time_unit_s=seconds, num_steps=steps)
    if text in _SECONDS_BY_WORD:
        return Quantity("step_time", time_unit_s=_SECONDS_BY_WORD[text])
    return None


def normalize_rate_unit(unit: str) -> str:
    """Return which common rate a unit counts, such as ``samples/s``; an unknown unit unchanged.

    Images, sequences, frames and examples are samples, words are tokens: ``img/sec`` is
    ``samples/s``. Only what is counted is kept: a device in the unit is dropped, and any unit of
    time becomes a second.
    """
    rate = _RATE.fullmatch(" ".join(split_words(unit)))
    if rate is None:
        return unit
    rate_unit = _RATE_UNIT_BY_WORD[rate["item"]]
    if rate_unit in {"examples/s", "images/s", "frames/s", "sequences/s"}:
        return "samples/s"
    return "tokens/s" if rate_unit == "words/s" else rate_unit


def find_rate_seconds(unit: str) -> float | None:
    """Return the seconds of a rate's unit of time, 60 of ``samples/min``; None: not known."""
    rate = _RATE.fullmatch(" ".join(split_words(unit)))
    return None if rate is None else _SECONDS_BY_WORD[rate["time"]]


@lru_cache(maxsize=4096)
def is_step_counter(key: str) -> bool:
    """Tell whether a number is that of a step: its key ends in ``step``, ``iter`` and the like.

    A key with a word for something else, such as ``eval``, ``max``, ``per`` or ``time``, does not
    count.
    """
    words = split_words(key)
    # The table has the unit `steps/s` for each word that means a step.
    is_step = bool(words) and _RATE_UNIT_BY_WORD.get(words[-1]) == STEPS_UNIT
    # `batches/s` counts steps, but a key that ends in `batch` may be of a size.
    return is_step and words[-1] not in _BATCH_WORDS and _NOT_COUNTER_WORDS.isdisjoint(words)


@lru_cache(maxsize=4096)
def is_epoch(key: str) -> bool:
    """Tell whether a number is that of an epoch: its key ends in ``epoch``.

    A key such as ``time per epoch``, ``max epoch`` or ``steps left in epoch`` does not count.
    """
    return _EPOCH.search(" ".join(split_words(key))) is not None


@lru_cache(maxsize=4096)
def is_loss(key: str) -> bool:
    """Tell whether a number is a training loss by the words of its key."""
    words = split_words(key)
    # `train_loss`, `loss/train` or `Loss is 3.2`.
    is_named = words[-1:] == ("loss",) or words in {("loss", "train"), ("loss", "is")}
    return is_named and _EVALUATION_WORDS.isdisjoint(words)


@lru_cache(maxsize=4096)
def is_main_loss(key: str) -> bool:
    """Tell whether a loss is the one that is trained, and not a part of it.

    A key with any other word than those for the main loss, such as ``aux loss``, is of a part.
    """
    return _MAIN_LOSS_WORDS.issuperset(split_words(key))


@lru_cache(maxsize=4096)
def is_global_batch(key: str) -> bool:
    """Tell whether a number is the samples of a step over all devices."""
    return _GLOBAL_BATCH.fullmatch(" ".join(split_words(key))) is not None


@lru_cache(maxsize=4096)
def is_work_of_step(key: str) -> bool:
    """Tell whether a number is the samples or tokens of one step."""
    return _WORK_OF_STEP.fullmatch(" ".join(split_words(key))) is not None


@lru_cache(maxsize=4096)
def read_rate_unit_of_counter(key: str) -> str:
    """Return the unit of the rate at which a counter of all work trained grows.

    It is ``tokens/s`` for ``consumed tokens``, and empty if the key is not that of such a counter.
    """
    match = _WORK_SO_FAR.fullmatch(" ".join(split_words(key)))
    if match is None:
        return ""
    # The work may stand behind the verb or before it: `consumed samples`, `samples seen`.
    unit: str = _RATE_UNIT_BY_WORD[match["item"] or match["item2"]]
    return unit


@lru_cache(maxsize=4096)
def is_pause(key: str) -> bool:
    """Tell by the words of its key whether a number is the time of an evaluation or checkpoint."""
    words = split_words(key)
    other_work = _EVALUATION_WORDS | {"save", "saving", "saved", "ckpt", "checkpoint"}
    return not other_work.isdisjoint(words) and not _DURATION_WORDS.isdisjoint(words)


def get_unit_seconds(key: str, unit: str) -> float:
    """Return the seconds of the unit of a time with this key, and this unit behind it."""
    return _get_unit_seconds(split_words(key), _read_unit(unit))


def is_evaluation(word: str) -> bool:
    """Tell whether a word says that a line is about an evaluation."""
    return word.lower() in _EVALUATION_WORDS


def is_preparation(word: str) -> bool:
    """Tell whether a line that begins with this word is about data, models or files."""
    return word.lower() in _PREPARATION_WORDS
