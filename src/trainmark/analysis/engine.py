"""One log and its options into the figures and the record of one case.

Owns how options, preset and log are put together. Must not know the command line.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainmark.analysis import modes
from trainmark.analysis.events import READERS, EventReader
from trainmark.analysis.extract import Evidence, Extractor, LastValue, NearMiss
from trainmark.analysis.numbers import Rule
from trainmark.analysis.options import (
    LARGEST_BATCH,
    MEMORY,
    SPEED,
    Options,
    check,
    check_events,
    record,
)
from trainmark.analysis.presets import Form, choose
from trainmark.analysis.source import Block, blocks
from trainmark.analysis.spread import Spread
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainmark.results.index_record import IndexRecord


@dataclass(frozen=True, slots=True)
class Reading:
    """How the values of a log are to be understood.

    Args:
        values: what the mode works on.
        batch: samples a device does in a step, for modes that need it.
        devices: factor of the mode: 1 where the log's figure is the whole job's.
    """

    evidence: Evidence
    values: Spread
    mode: int
    time_unit: str
    batch: float | None
    devices: int
    unit: str | None
    loss: float | None
    failed: bool
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Analysis:
    """A log's record, what it was computed from, and what a reader should know."""

    record: IndexRecord
    reading: Reading


def analyze(log: str, options: Options) -> Analysis:
    """Read ``log``, a path or ``-``, once and return its figures.

    Raises:
        UsageError: for options that do not fit together.
        DataError: for a log without values.
    """
    check(options)
    source = blocks(log)
    try:
        if options.preset is None:
            reading = _read_keyword(source, options, None)
        else:
            choice, source = choose(options.preset, source)
            if choice.form is None:
                reading = _read_events(source, choice.preset.name, options)
            else:
                reading = _read_keyword(source, options, choice.form)
            reading.notes.insert(0, choice.why)
    except DataError as error:
        error.where = f"{log}: {error.where}" if error.where else log
        raise
    return Analysis(_finish(log, options, reading), reading)


def _read_keyword(source: Iterable[Block], options: Options, form: Form | None) -> Reading:
    keyword = options.keyword or (form.keyword if form else "")
    separator = options.separator or ""
    rule = Rule(keyword, separator, options.position, options.cut)
    values = Extractor(rule, Spread(options.skip_steps))
    batch_keyword = (
        form.batch if form and options.base_batch_size is None and not options.keyword else ""
    )
    batch = Extractor(Rule(batch_keyword), Spread(options.skip_steps)) if batch_keyword else None
    loss_keyword = options.keyword_loss or (form.loss if form else "")
    loss = LastValue(Rule(loss_keyword)) if loss_keyword else None
    near = NearMiss(keyword)
    for block in source:
        if batch:  # a last line without its end may hold one number of the pair
            block = block.whole_lines()  # noqa: PLW2901
            batch.feed(block)
        values.feed(block)
        if loss:
            loss.feed(block)
        if not values.matched:
            near.feed(block)
    _require(values, values.spread, keyword, near)
    if loss and loss.value is None and options.keyword_loss:
        remedy = "check --keyword_loss, or leave it out"
        raise DataError(f"no number after {loss_keyword!r} in any line", remedy=remedy)
    return _understand(values, batch, loss.value if loss else None, options, form)


def _understand(
    values: Extractor,
    batch: Extractor | None,
    loss: float | None,
    options: Options,
    form: Form | None,
) -> Reading:
    """Choose mode, batch and units: what is said first, then what the preset knows."""
    notes: list[str] = []
    samples: float | None = options.base_batch_size
    mode, time_unit, unit = 0, "s", None
    whole_job = False  # whether log or batch speak of all devices already
    if form:
        if batch and batch.spread.count:
            samples, whole_job = _global_batch(values.spread, batch.spread, notes), True
        mode, time_unit = _MODE_OF[form.reads][samples is not None], form.time_unit
        if form.reads == "speed" and options.model_mode is None:
            unit, whole_job = _unit_after(values), not form.per_device
            if whole_job and options.gpu_num > 1:
                notes.append("the log's speed is the whole job's: not multiplied by --gpu_num")
    return Reading(
        evidence=values,
        values=values.spread,
        mode=mode if options.model_mode is None else options.model_mode,
        time_unit=options.time_unit or time_unit,
        batch=samples,
        devices=1 if whole_job else options.gpu_num,
        unit=unit,
        loss=loss,
        failed=False,
        notes=notes,
    )


_MODE_OF = {"step_time": (2, -2), "steps": (1, 3), "speed": (-1, -1)}  # without, with a batch


def _global_batch(values: Spread, batch: Spread, notes: list[str]) -> float:
    """Return the mean global batch: sum of samples over sum of seconds stays exact."""
    if batch.count != values.count:
        what = f"{values.count} step times but {batch.count} global batch sizes"
        raise DataError(what, remedy="give --base_batch_size N, what one device takes in a step")
    if batch.minimum == batch.maximum:
        notes.append(f"global batch size {batch.mean:g}, from the log")
    else:
        notes.append(
            f"global batch size from {batch.minimum:g} to {batch.maximum:g}, from the log; "
            f"its mean {batch.mean:g} is used, so that the result is all samples over all seconds"
        )
    return batch.mean


def _unit_after(values: Extractor) -> str | None:
    """Return the unit written behind the first value, as ``tokens/s``."""
    if values.first is None:
        return None
    behind = values.first.text.partition(values.rule.keyword)[2]
    found = re.match(r"[\s:='\"]*[\d.,eE+-]+\s*([A-Za-z]+)/(s|sec)\b", behind)
    return f"{found[1]}/s" if found else None


def _read_events(source: Iterable[Block], name: str, options: Options) -> Reading:
    check_events(options, name)  # the preset may have been recognised only now
    skip = options.skip_steps
    reader: EventReader = READERS[name](Spread(skip), Spread(skip), Spread(skip))
    for block in source:
        reader.feed(block)
    use_speeds = reader.speeds.seen > 0
    values = reader.speeds if use_speeds else reader.seconds
    _require(reader, values, reader.marker.decode(), None)
    notes = list(reader.notes)
    samples: float | None = options.base_batch_size
    mode = -1 if use_speeds else _MODE_OF["step_time"][samples is not None]
    whole_job = samples is None
    if not use_speeds and whole_job and reader.samples.count == values.count:
        samples, mode = reader.samples.mean, -2
        notes.append("all samples over all seconds of the intervals in the log")
    return Reading(
        evidence=reader,
        values=values,
        mode=mode if options.model_mode is None else options.model_mode,
        time_unit="s",
        batch=samples,
        devices=1 if whole_job or use_speeds else options.gpu_num,
        unit=None,
        loss=reader.loss,
        failed=reader.failed,
        notes=notes,
    )


def _require(evidence: Evidence, values: Spread, keyword: str, near: NearMiss | None) -> None:
    """Refuse a log without values, with the line that explains it."""
    if values.count:
        return
    if values.skipped:
        what = f"skipping {values.skipped} leaves none of {values.seen} values"
        remedy = f"skip fewer than {values.seen} with --skip_steps"
        raise DataError(what, rule="the result is the mean of what is left", remedy=remedy)
    if evidence.matched:
        what = f"{evidence.matched} lines with {keyword!r}, none with a value"
        first = evidence.first_malformed
        rule = f"first is {first}" if first else "an interval needs a beginning and an end"
        remedy = "check --position, --separator and --range" if near else "wait for more steps"
        raise DataError(what, rule=rule, remedy=remedy)
    best = near.best if near else None
    rule = f"nearest is {best}" if best else "no line comes near it"
    raise DataError(f"no line with {keyword!r}", rule=rule, remedy="give --keyword as in the log")


def _finish(log: str, options: Options, reading: Reading) -> IndexRecord:
    values, notes = reading.values, reading.notes
    if options.index == SPEED:
        mode = modes.check_mode(reading.mode, reading.batch)
        result = modes.final_result(
            reading.mode, values.mean,
            batch=reading.batch, devices=reading.devices, time_unit=reading.time_unit,
        )  # fmt: skip
        unit = mode.unit or options.ips_unit or reading.unit or modes.DEFAULT_UNIT
        if mode.unit and options.ips_unit and options.ips_unit != mode.unit:
            notes.append(f"mode {reading.mode} is in {mode.unit}; --ips_unit is not used")
        if mode.reads_speed and reading.time_unit != "s":
            notes.append(
                f"mode {reading.mode} reads a speed; --time_unit ms divides it by 1000 all the same"
            )
    else:
        largest = options.index in {MEMORY, LARGEST_BATCH}
        result = round(values.maximum if largest else values.mean, 3)
        unit = options.ips_unit or ""
        notes.append(f"the {'largest' if largest else 'mean'} of the log's values, as it is")
    loss = reading.loss
    failed = options.failed or reading.failed
    if loss is not None and not math.isfinite(loss):
        notes.append(f"the last loss is {loss}: the run diverged, no LOSS_RESULT")
        loss, failed = None, True
    return record(options, log, result, unit, loss, failed=failed)
