"""Read the speeds that a program printed into its output, without a pattern of the user's.

The best speed is that of ``analyze`` with ``preset=auto``. TFLOP/s and MFU of a device, which
``analyze`` does not take as a speed, are read too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from trainmark.errors import DataError
from trainmark.published.analysis.choice import choose_speed
from trainmark.published.analysis.lines import LogLine, read_line
from trainmark.published.analysis.log_reader import LogReader
from trainmark.published.analysis.options import AUTO, Options
from trainmark.published.analysis.quantities import normalize_rate_unit
from trainmark.published.log import read_numbered_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trainmark.published.analysis.pairs import Pair
    from trainmark.published.analysis.samples import Sample

# Names of speeds by their unit, for the whole job and for one device.
_NAME_BY_RATE_UNIT = {"tokens/s": "tokens_per_second", "samples/s": "samples_per_second"}
_SUFFIX_OF_DEVICE = "_per_device"
_TFLOPS = re.compile(r"(?i)\btera ?flops?\b|\btflops?(?:/s)?\b")
_MFU = re.compile(r"(?i)(?:^|[\s_/])mfu(?:[\s_(]*%\)?)?$")
_PEAK_FLOPS = re.compile(r"(?i)\b(?:peak|promised|theoretical|max)")
_QUICK_PARTS = ("flop", "mfu")  # a line without one of them is not split into its numbers
_MAX_TEXT = 300  # characters of a line that are kept


class LoggedSpeed(NamedTuple):
    """The values of one quantity that a program printed.

    Args:
        quantity: its name with its unit, such as ``tokens_per_second``.
        lines: number of lines that have a value.
        raw: text of the first of them.
    """

    quantity: str
    lines: int
    values: list[float]
    raw: str


def read_logged_speeds(logs: Sequence[Path]) -> list[LoggedSpeed]:
    """Return the speeds that the first log with a speed prints; empty: no log has one.

    Args:
        logs: of the nodes of one run; each prints the same.
    """
    for log in logs:
        speeds = _read_log(log)
        if speeds:
            return speeds
    return []


def _read_log(log: Path) -> list[LoggedSpeed]:
    """Return the best speed of a log, its TFLOP/s and its MFU, as far as it has them.

    If a log prints several speeds, the best one is in the format of a known trainer, if there is
    such a speed.
    """
    reader = LogReader(AUTO, skip=0)  # it finds the log format itself, and skips no first values
    flop_speeds: dict[str, LoggedSpeed] = {}
    try:
        # While the reader reads the lines, ``_collect_flops`` fills ``flop_speeds``.
        reader.read(_collect_flops(read_numbered_lines(str(log)), flop_speeds))
    except DataError:
        return []  # what a program wrote may be no text: then it has no speed
    speeds = list(flop_speeds.values())
    best_speed = _name_speed(choose_speed(reader, Options(preset=AUTO)).sample)
    if best_speed is not None:
        speeds.insert(0, best_speed)  # before TFLOP/s and MFU, which follow from it
    return speeds


def _name_speed(sample: Sample | None) -> LoggedSpeed | None:
    """Return a sample as a speed named by its unit; None: there is none, or its unit has no name.

    The values become step times in seconds, or rates per second.

    Args:
        sample: values of one kind in a log. Its source says what they measure: their kind, the
            length of their unit of time in seconds, and whether they are of a device or the job.
    """
    if sample is None:
        return None
    measured = sample.source.quantity
    if measured.kind == "step_time":
        name = "step_s"
        factor = measured.time_unit_s / measured.num_steps  # a printed time may cover several steps
    elif measured.kind == "steps":
        name = "steps_per_second"
        factor = 1 / measured.time_unit_s
    else:
        rate_name = _NAME_BY_RATE_UNIT.get(normalize_rate_unit(measured.unit or sample.unit))
        # There is no name for another unit, nor for the speed of a node.
        if rate_name is None or measured.scope == "node":
            return None
        name = rate_name + _SUFFIX_OF_DEVICE if measured.scope == "device" else rate_name
        factor = 1 / measured.time_unit_s
    values = [factor * value for value in sample.values.tolist()]
    # Of a running mean, which many lines print, only the last value counts.
    num_lines = 1 if len(values) == 1 else sample.num_lines
    # The line of the first value that counts, without its number: `line 12: ` stands before it.
    raw = sample.first_text.partition(": ")[2]
    return LoggedSpeed(name, num_lines, values, raw)


def _collect_flops(
    lines: Iterator[tuple[int, str]], speeds: dict[str, LoggedSpeed]
) -> Iterator[tuple[int, str]]:
    """Yield all lines, and add their TFLOP/s and MFU values to ``speeds``.

    The caller reads the lines, too, so one pass over a log is enough. ``speeds`` is complete after
    the last line.

    Args:
        lines: number and text of each line.
        speeds: by their quantity, such as ``mfu_percent``.
    """
    for number, text in lines:
        yield number, text
        if not any(part in text.lower() for part in _QUICK_PARTS):  # a quick test
            continue
        line = read_line(number, text)
        for quantity, value in _find_flops(line):
            earlier = speeds.get(quantity)
            if earlier is None:
                raw = text.strip()[:_MAX_TEXT]
                speeds[quantity] = LoggedSpeed(quantity, lines=1, values=[value], raw=raw)
            else:  # ``lines`` counts each value, also a second one on the same line
                earlier.values.append(value)
                speeds[quantity] = earlier._replace(lines=earlier.lines + 1)


def _find_flops(line: LogLine) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each TFLOP/s and each MFU of a line of training.

    TFLOP/s are taken as those of one device, because the known trainers that print them do so.
    """
    if line.is_other_work:  # of evaluation or preparation
        return
    for pair in line.pairs:  # each number with its key, the text before it
        if _PEAK_FLOPS.search(pair.key):  # what the device could reach, not what the run did
            continue
        # The key may name TFLOP/s, or the word behind the number, ``following``.
        if _TFLOPS.search(pair.key) or _TFLOPS.fullmatch(pair.following):
            yield "tflops_per_device", pair.value
        elif _MFU.search(pair.key):
            yield "mfu_percent", _convert_to_percent(pair)


def _convert_to_percent(pair: Pair) -> float:
    """Return a share in percent, whether it is printed in percent or as a fraction of 1.

    A value of at most 1 is taken as a fraction unless a percent sign stands in its key, the text
    before it, or in the word behind it.

    Args:
        pair: a number of a line with its key.
    """
    is_fraction = "%" not in pair.following and "%" not in pair.key and pair.value <= 1
    return 100 * pair.value if is_fraction else pair.value
