"""Compute the figures and the record of one case from a log and options.

Owns how options, preset and log are combined. Must not know the command line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainmark.errors import DataError, UsageError
from trainmark.library.analysis import modes
from trainmark.library.analysis.options import LARGEST, SPEED, Options, check, record
from trainmark.library.analysis.presets import choose
from trainmark.library.analysis.reading import Reading, read_events, read_keyword
from trainmark.library.analysis.source import LINE_LIMIT_BYTES, Block, blocks, check_readable
from trainmark.record.index_record import rounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.record.index_record import IndexRecord

MOVED = 1.02  # mean over median, or median over mean, that is worth a note
OUTLIER = 3.0  # and so is a value so many times the median, or such a part of it


@dataclass(frozen=True, slots=True)
class Analysis:
    """A log's record, the values from which it was computed, and notes."""

    record: IndexRecord
    reading: Reading
    measured: float  # the result of the formula, for a failed run too
    loss: float | None


def analyze_all(logs: Sequence[str], options: Options) -> list[Analysis]:
    """Return the figures of ``logs``, all of which are opened before the first is read.

    Raises:
        UsageError: for options that do not fit together.
        DataError: for a log that cannot be opened or has no values.
    """
    check(options)
    for log in logs:
        check_readable(log)
    return [analyze(log, options) for log in logs]


def analyze(log: str, options: Options) -> Analysis:
    """Read ``log``, a path or ``-``, once and return its figures.

    Raises:
        UsageError: for options that do not fit together.
        DataError: for a log without values.
    """
    check(options)
    said: list[str] = []
    torn: list[int] = []
    source = _noting_torn(blocks(log), torn)
    try:
        if options.preset is None:
            reading = read_keyword(source, options, None)
        else:
            choice, source = choose(options.preset, source)
            options = _with_devices(options, choice.devices, said)
            if choice.form is None:
                reading = read_events(source, choice.preset.name, options)
            else:
                reading = read_keyword(source, options, choice.form)
            reading.notes.insert(0, choice.why)
    except DataError as error:
        if error.where != log:
            error.where = f"{log}: {error.where}" if error.where else log
        raise
    reading.notes.extend(said)
    if torn:
        limit, lines = f"{LINE_LIMIT_BYTES >> 20} MiB", "lines" if len(torn) > 1 else "line"
        reading.notes.append(f"{len(torn)} {lines} beyond {limit}: the rest is not read")
    return _finish(log, options, reading)


def _noting_torn(source: Iterator[Block], torn: list[int]) -> Iterator[Block]:
    """Pass the blocks on; add to ``torn`` those whose last line is beyond the limit."""
    for block in source:
        if block.torn:
            torn.append(block.number)
        yield block


def _with_devices(options: Options, devices: int | None, notes: list[str]) -> Options:
    """Return the options with the number of devices from the log, unless the user gave it."""
    if devices is None:
        return options
    if options.gpu_num is None:
        notes.append(f"gpu_num {devices}, as the log says")
        return replace(options, gpu_num=devices)
    if options.gpu_num != devices:
        notes.append(f"the log says {devices} devices; --gpu_num {options.gpu_num} is used")
    return options


def _finish(log: str, options: Options, reading: Reading) -> Analysis:
    values, notes = reading.values, reading.notes
    if options.index == SPEED:
        result, unit = _speed(log, options, reading)
    else:
        largest = options.index in LARGEST
        result = rounded(values.maximum if largest else reading.middle)
        unit = options.ips_unit or ""
        what = "largest" if largest else reading.statistic
        notes.append(f"the {what} of the log's values, as it is")
    _note_devices(options, reading)
    if options.index not in LARGEST:
        _note_outliers(reading)
    loss = reading.loss
    failed = options.failed or reading.failed
    if loss is not None and not math.isfinite(loss):
        notes.append(f"the last loss is {loss}: the run diverged, no LOSS_RESULT")
        loss, failed = None, True
    if failed:
        notes.append(f"the run failed: FINAL_RESULT is 0, measured was {result:g} {unit}")
    final = record(options, log, 0.0 if failed else result, unit, loss, failed=failed)
    return Analysis(final, reading, result, loss)


def _speed(log: str, options: Options, reading: Reading) -> tuple[float, str]:
    """Return the result of the mode and its unit."""
    mode, notes = modes.check_mode(reading.mode, reading.batch), reading.notes
    if mode.unit is None:
        _check_unit(log, options, reading)
    result = modes.final_result(
        reading.mode, reading.middle,
        batch=reading.batch, devices=reading.devices, time_unit=reading.time_unit,
    )  # fmt: skip
    if mode.unit and options.ips_unit and options.ips_unit != mode.unit:
        notes.append(f"mode {reading.mode} is in {mode.unit}; --ips_unit is not used")
    if mode.reads_speed and reading.time_unit != "s":
        notes.append(
            f"mode {reading.mode} reads a speed; --time_unit ms divides it by 1000 all the same"
        )
    unit = mode.unit or options.ips_unit or reading.unit
    if unit is None and mode.reads_speed:
        notes.append("the log names no unit of its speed: give --ips_unit; UNIT is empty")
        unit = ""
    return result, modes.DEFAULT_UNIT if unit is None else unit


def _check_unit(log: str, options: Options, reading: Reading) -> None:
    """Refuse a unit that would only rename what the log counts."""
    wanted, has = options.ips_unit, reading.unit
    if wanted is None or has is None or wanted.removesuffix("ec") == has:
        return
    what = wanted.partition("/")[0]
    batch = f"--base_batch_size N, in {what} that one device takes in a step"
    steps = "" if reading.mode != -1 else "read step times with --keyword and --model_mode -2, and "
    raise UsageError(
        f"{wanted} is not what {log} counts",
        where="--ips_unit",
        rule=f"its numbers are {has}, and a unit does not convert them",
        remedy=f"leave --ips_unit out; or {steps}give {batch}",
    )


def _note_devices(options: Options, reading: Reading) -> None:
    if options.gpu_num is None:
        scaled = options.index == SPEED and "devices" in modes.MODES[reading.mode].formula
        one = "; the result is of one device" if scaled and not reading.whole_job else ""
        reading.notes.append(f"gpu_num 1 assumed: give --gpu_num N{one}")


def _note_outliers(reading: Reading) -> None:
    """Note mean and median if outliers moved the mean, or may have."""
    values = reading.values
    median = values.percentiles(0.5)[0]
    if median <= 0 or values.minimum < 0:
        return
    low, high = sorted((values.mean, median))
    moved = high > MOVED * low
    if not moved and values.maximum < OUTLIER * median and values.minimum * OUTLIER > median:
        return
    farthest, number = values.maximum, values.maximum_number
    if values.maximum * values.minimum < median**2:  # as ratios, the smallest is farther away
        farthest, number = values.minimum, values.minimum_number
    ways = "--skip_steps N leaves out the first values"
    if not reading.robust:
        ways += ", --robust takes the median"
    reading.notes.append(
        f"outliers: mean {values.mean:g} but median {median:g}; value {number} of {values.seen} "
        f"is {farthest:g}. {ways}"
    )
