"""Compute the figures and the record of one case from a log and options.

Owns which mode, batch and unit follow from options, preset and log.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from trainmark.errors import DataError, UsageError
from trainmark.library.analysis import modes
from trainmark.library.analysis.events import READERS
from trainmark.library.analysis.lines import closest, read
from trainmark.library.analysis.options import LARGEST, SPEED, Options, check, check_events, record
from trainmark.library.analysis.presets import choose
from trainmark.library.analysis.readers import KeywordReader
from trainmark.record.index_record import rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.library.analysis.distribution import Distribution
    from trainmark.library.analysis.lines import Line
    from trainmark.library.analysis.readers import Reader
    from trainmark.record.index_record import IndexRecord

HEAD = 100_000  # lines in which a preset is recognised
MOVED = 1.02  # mean over median, or median over mean, that is worth a note
_SHARES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}
_MODE_OF = {"step_time": (2, -2), "steps": (1, 3), "speed": (-1, -1)}  # without, with a batch


@dataclass(frozen=True, slots=True)
class Analysis:
    """A log's record, and all its figures by name: values are in the log's own unit."""

    record: IndexRecord
    figures: dict[str, Any]


def analyze(log: str, options: Options) -> Analysis:
    """Read ``log``, a path or ``-``, once and return its figures.

    Raises:
        UsageError: for options that do not fit together.
        DataError: for a log that cannot be read or has no values.
    """
    check(options)
    notes = []
    try:
        lines = read(log)
        head = list(islice(lines, HEAD))
        choice = choose(options.preset, head) if options.preset is not None else None
        if choice is not None:
            notes.append(choice.why)
            if options.gpu_num is None and choice.devices:
                notes.append(f"gpu_num {choice.devices}, as the log says")
                options = replace(options, gpu_num=choice.devices)
            elif choice.devices not in {None, options.gpu_num}:
                used = f"gpu_num={options.gpu_num} is used"
                notes.append(f"the log says {choice.devices} devices; {used}")
        if choice is not None and choice.form is None:
            check_events(options, choice.preset)  # the preset may have been recognised only now
            reader: Reader = READERS[choice.preset](options.skip_steps)
        else:
            reader = KeywordReader(options, choice.form if choice else None)
        for line in chain(head, lines):
            reader.feed(line)
        _require(reader, head, options)
        return _computed(log, reader, notes + reader.notes, options)
    except DataError as error:
        if error.where != log:
            error.where = f"{log}: {error.where}" if error.where else log
        raise


def _require(found: Reader, head: Sequence[Line], options: Options) -> None:
    """Refuse a log without the values that are asked for, with the line that explains it."""
    seen, count, keyword = found.values.seen, found.values.count, found.keyword
    remedy = "check the log, or position, separator and range"
    if seen and not count:
        what = f"skip_steps={options.skip_steps} leaves none of {seen} value{'s' * (seen > 1)}"
        rule, remedy = "the result is the mean of what is left", "leave skip_steps out"
    elif found.matched and not count:
        what, shown = f"{found.matched} lines with {keyword!r}, none with a value", _shown(found)[1]
        rule = f"first is {shown}" if shown else "an interval needs a beginning and an end"
    elif not count:
        what, near = f"no line with {keyword!r}", closest(keyword, head)
        rule = f"nearest is {near}" if near else "no line comes near it"
        remedy = "give keyword as in the log"
    elif options.keyword_loss and found.loss is None:
        what, rule = f"no number after {options.keyword_loss!r} in any line", None
        remedy = "check keyword_loss, or leave it out"
    elif found.batches.count not in {0, count}:
        what, rule = f"{count} step times but {found.batches.count} global batch sizes", None
        remedy = "give base_batch_size=N, what one device takes in a step"
    else:
        return
    raise DataError(what, rule=rule, remedy=remedy)


def _shown(found: Reader) -> list[str | None]:
    """Return the first line with a value and the first malformed one, as they are shown."""
    lines = (found.first, found.first_malformed)
    return [line.shown(line.text.find(found.keyword)) if line else None for line in lines]


def _computed(log: str, found: Reader, notes: list[str], options: Options) -> Analysis:
    """Choose mode, batch and units: what is said first, then what preset and log know."""
    values, (first, first_malformed) = found.values, _shown(found)
    batch: float | None = options.base_batch_size
    of_log = batch is None and found.batches.count > 0
    if of_log:
        batch = _global_batch(found.batches, options, notes)
    own = _MODE_OF[found.reads][batch is not None] if found.reads else 0
    mode = own if options.model_mode is None else options.model_mode
    of_speed = found.reads == "speed" and found.whole_job and options.model_mode is None
    whole_job = of_log or of_speed
    if of_speed and (options.gpu_num or 1) > 1:
        notes.append("the log's speed is the whole job's: not multiplied by gpu_num")
    devices = 1 if whole_job else options.gpu_num or 1
    time_unit = options.time_unit or found.time_unit
    statistic = "median" if options.robust else "mean"
    middle = values.percentiles(0.5)[0] if options.robust else values.mean
    if options.index == SPEED:
        formula = modes.check_mode(mode, batch)
        counted = modes.DEFAULT_UNIT if of_log else found.unit if mode == -1 else None
        unit = _unit(log, formula, counted, options, notes)
        result = modes.final_result(mode, middle, batch=batch, devices=devices, time_unit=time_unit)
        if formula.reads_speed and time_unit != "s":
            speed = f"mode {mode} reads a speed"
            notes.append(f"{speed}; time_unit=ms divides it by 1000 all the same")
        how = f"mode {mode}: {formula.formula.replace('mean', statistic)}"
    else:
        largest = options.index in LARGEST
        result, unit = rounded(values.maximum if largest else middle), options.ips_unit or ""
        how = f"the {'largest' if largest else statistic} of the log's values, as it is"
    if options.gpu_num is None:
        one = "; the result is of one device" if "devices" in how and not whole_job else ""
        notes.append(f"gpu_num 1 assumed: give gpu_num=N{one}")
    if options.index not in LARGEST:
        _note_outliers(values, options, notes)
    failed, loss = options.failed or found.failed, found.loss
    if loss is not None and not math.isfinite(loss):
        notes.append(f"the last loss is {loss}: the run diverged, no LOSS_RESULT")
        loss, failed = None, True
    if failed:
        notes.append(f"the run failed: FINAL_RESULT is 0, measured was {result:g} {unit}")
    final = record(options, log, 0.0 if failed else result, unit, loss, failed=failed)
    figures = {
        "log_file": final.log_file, "lines_matched": found.matched,
        "lines_malformed": found.malformed, "first_malformed": first_malformed,
        "first_value": first, "values": values.count,
        "values_skipped": values.seen - values.count, "mean": values.mean, "min": values.minimum,
        **dict(zip(_SHARES, values.percentiles(*_SHARES.values()), strict=True)),
        "max": values.maximum, "percentiles_exact": values.exact, "statistic": statistic,
        "model_mode": mode, "time_unit": time_unit, "batch": batch, "devices_in_formula": devices,
        "how": how, "result": result, "unit": unit, "loss": loss, "notes": notes,
    }  # fmt: skip
    return Analysis(final, figures)


def _global_batch(batches: Distribution, options: Options, notes: list[str]) -> float:
    """Return the mean global batch: sum of samples over sum of seconds stays exact."""
    least, most = batches.minimum, batches.maximum
    if least == most:
        notes.append(f"global batch size {least:g}, from the log")
        return least
    if options.robust:
        raise UsageError(
            "the median of the times is of no one number of samples",
            where="robust",
            rule=f"each time in the log is of {least:g} to {most:g} samples",
            remedy="leave robust out, or skip the part where it changes with skip_steps=N",
        )
    all_ = f"its mean {batches.mean:g} is used, so that the result is all samples over all seconds"
    notes.append(f"global batch size from {least:g} to {most:g}, from the log; {all_}")
    return batches.mean


def _unit(
    log: str, mode: modes.Mode, counted: str | None, options: Options, notes: list[str]
) -> str:
    """Return the unit of the result; refuse one that would only rename what the log counts."""
    wanted = options.ips_unit
    if wanted and counted and wanted.removesuffix("ec") != counted:
        what = wanted.partition("/")[0]
        steps = "read step times with keyword and model_mode=-2, and " * mode.reads_speed
        batch = f"base_batch_size=N, in {what} that one device takes in a step"
        raise UsageError(
            f"{wanted} is not what {log} counts",
            where="ips_unit",
            rule=f"its numbers are {counted}, and a unit does not convert them",
            remedy=f"leave ips_unit out; or {steps}give {batch}",
        )
    if mode.unit is not None:
        if wanted not in {None, mode.unit}:
            notes.append(f"the mode's result is in {mode.unit}; ips_unit is not used")
        return mode.unit
    if not (wanted or counted) and mode.reads_speed:
        notes.append("the log names no unit of its speed: give ips_unit; UNIT is empty")
        return ""
    return wanted or counted or modes.DEFAULT_UNIT


def _note_outliers(values: Distribution, options: Options, notes: list[str]) -> None:
    """Note mean and median if outliers moved the mean."""
    mean, median = values.mean, values.percentiles(0.5)[0]
    if values.minimum >= 0 < median and not 1 / MOVED <= mean / median <= MOVED:
        robust = "" if options.robust else ", robust takes the median"
        ways = f"skip_steps=N leaves out the first values{robust}"
        notes.append(f"outliers: mean {mean:g} but median {median:g}. {ways}")
