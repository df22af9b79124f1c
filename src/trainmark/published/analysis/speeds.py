"""Read the speeds that a program printed into its output, without a pattern of the user's.

The best speed is that of ``analyze`` with ``preset=auto``. Beside it count TFLOP/s and MFU of a
device, which are no speed of an analysis.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from trainmark.errors import DataError
from trainmark.published.analysis.choice import choose_speed
from trainmark.published.analysis.lines import LogLine, read_line
from trainmark.published.analysis.options import AUTO, Options
from trainmark.published.analysis.quantities import normalize_rate_unit
from trainmark.published.analysis.readings import LogReader
from trainmark.published.log import read_numbered_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trainmark.published.analysis.pairs import Pair
    from trainmark.published.analysis.samples import Sample

# Names of speeds by their unit, for the whole job and for one device.
_RATES = {"tokens/s": "tokens_per_second", "samples/s": "samples_per_second"}
_DEVICE = "_per_device"
_TFLOPS = re.compile(r"(?i)\btera ?flops?\b|\btflops?(?:/s)?\b")
_MFU = re.compile(r"(?i)(?:^|[\s_/])mfu(?:[\s_(]*%\)?)?$")
_OTHER_FLOPS = re.compile(r"(?i)\b(?:peak|promised|theoretical|max)")
_QUICK_PARTS = ("flop", "mfu")
_MAX_TEXT = 300


class LoggedSpeed(NamedTuple):
    """The values of one quantity that a program printed.

    Args:
        quantity: with its unit, such as ``tokens_per_second``.
        lines: that have a value.
        raw: the first of them.
    """

    quantity: str
    lines: int
    values: list[float]
    raw: str


def read_logged_speeds(logs: Sequence[Path]) -> list[LoggedSpeed]:
    """Return what the first log with a speed prints of it; empty: none has one.

    Args:
        logs: of the nodes of one run; each prints the same.
    """
    for log in logs:
        speeds = _read_log(log)
        if speeds:
            return speeds
    return []


def _read_log(log: Path) -> list[LoggedSpeed]:
    reader = LogReader(AUTO, 0)
    flops: dict[str, LoggedSpeed] = {}
    try:
        reader.read(_collect_flops(read_numbered_lines(str(log)), flops))
    except DataError:
        return []  # what a program wrote may be no text: then it has no speed
    speed = _name_speed(choose_speed(reader, Options(preset=AUTO)).sample)
    return [*([] if speed is None else [speed]), *flops.values()]


def _name_speed(sample: Sample | None) -> LoggedSpeed | None:
    """Return the values of a sample in seconds or a second; None: their unit has no name."""
    if sample is None:
        return None
    measured = sample.source.quantity
    if measured.kind == "step_time":
        quantity, factor = "step_s", measured.seconds / measured.steps
    elif measured.kind == "steps":
        quantity, factor = "steps_per_second", 1 / measured.seconds
    else:
        name = _RATES.get(normalize_rate_unit(measured.unit or sample.unit))
        if name is None or measured.scope == "node":
            return None
        quantity = name + _DEVICE if measured.scope == "device" else name
        factor = 1 / measured.seconds
    values = [factor * value for value in sample.values.tolist()]
    lines = 1 if len(values) == 1 else sample.lines  # a mean until then has one value
    return LoggedSpeed(quantity, lines, values, sample.first_text.partition(": ")[2])


def _collect_flops(
    lines: Iterator[tuple[int, str]], speeds: dict[str, LoggedSpeed]
) -> Iterator[tuple[int, str]]:
    """Yield all lines, and add the TFLOP/s and MFU that they have to ``speeds``."""
    for number, text in lines:
        yield number, text
        if not any(part in text.lower() for part in _QUICK_PARTS):
            continue
        line = read_line(number, text)
        for quantity, value in _find_flops(line):
            last = speeds.get(quantity) or LoggedSpeed(quantity, 0, [], text.strip()[:_MAX_TEXT])
            last.values.append(value)
            speeds[quantity] = last._replace(lines=last.lines + 1)


def _find_flops(line: LogLine) -> Iterator[tuple[str, float]]:
    """Yield each TFLOP/s of a device and each MFU in percent of a line of training."""
    if line.is_other_work:
        return
    for pair in line.pairs:
        if _OTHER_FLOPS.search(pair.key):
            continue
        if _TFLOPS.search(pair.key) or _TFLOPS.fullmatch(pair.following):
            yield "tflops_per_device", pair.value
        elif _MFU.search(pair.key):
            yield "mfu_percent", _in_percent(pair)


def _in_percent(pair: Pair) -> float:
    """Return a share in percent; up to 1 without a percent sign it is a fraction."""
    is_fraction = "%" not in pair.following and "%" not in pair.key and pair.value <= 1
    return 100 * pair.value if is_fraction else pair.value
