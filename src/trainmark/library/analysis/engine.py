"""Compute the figures and the record of one case from a log and options.

Owns which mode, batch and unit follow from options, preset and log.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from trainmark.errors import DataError, UsageError
from trainmark.library.analysis import modes
from trainmark.library.analysis.distribution import Distribution
from trainmark.library.analysis.events import READERS, parse
from trainmark.library.analysis.lines import closest, read
from trainmark.library.analysis.numbers import Rule
from trainmark.library.analysis.options import LARGEST, SPEED, Options, check, check_events, record
from trainmark.library.analysis.presets import choose
from trainmark.record.index_record import rounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainmark.library.analysis.lines import Line
    from trainmark.library.analysis.presets import Form
    from trainmark.record.index_record import IndexRecord

HEAD = 100_000  # lines in which a preset is recognised
MOVED = 1.02  # mean over median, or median over mean, that is worth a note
_SHARES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}
_MODE_OF = {"step_time": (2, -2), "steps": (1, 3), "speed": (-1, -1)}  # without, with a batch


@dataclass(slots=True, kw_only=True)
class Values:
    """The values of a log, and what it says of them.

    Args:
        reads: ``step_time``, ``steps`` a second or ``speed``; empty: the mode says it.
        batches: samples of all devices, one for each value; empty: the log does not tell.
        whole_job: the values are those of the whole job.
        unit: what a speed counts; None: not known.
        first: the first line with a value that counts, as shown.
    """

    values: Distribution
    batches: Distribution
    reads: str = ""
    time_unit: str = "s"
    whole_job: bool = False
    unit: str | None = None
    loss: float | None = None
    failed: bool = False
    matched: int = 0
    malformed: int = 0
    first: str | None = None
    first_malformed: str | None = None
    notes: list[str] = field(default_factory=list)


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
        everything = chain(head, lines)
        if choice is not None and choice.form is None:
            found = _of_events(everything, choice.preset, options)
        else:
            found = _of_lines(everything, head, options, choice.form if choice else None)
        found.notes[:0] = notes
        return _computed(log, found, options)
    except DataError as error:
        if error.where != log:
            error.where = f"{log}: {error.where}" if error.where else log
        raise


def _of_lines(
    lines: Iterable[Line], head: Sequence[Line], options: Options, form: Form | None
) -> Values:
    """Return the values behind a keyword, the user's or the form's."""
    own = form if not options.keyword else None
    keyword = own.keyword if own else options.keyword or ""
    rule = options.rule(keyword)
    batch = Rule(own.batch) if own and own.batch and options.base_batch_size is None else None
    loss_word = options.keyword_loss or (form.loss if form else "")
    whole = not options.keyword_loss and loss_word[:1].isalpha()  # not eval_loss
    loss = Rule(loss_word, whole=whole) if loss_word else None
    found = Values(
        values=Distribution(options.skip_steps), batches=Distribution(options.skip_steps)
    )
    if form is not None:
        found.reads, found.time_unit = form.reads, form.time_unit
        found.whole_job = not form.per_device
    for line in lines:
        text = line.text
        if loss_word and loss_word in text and loss and (last := loss.value(text)) is not None:
            found.loss = last
        if keyword not in text:
            continue
        found.matched += 1
        value, at = rule.value(text), text.find(keyword)
        cut = batch is not None and not text.endswith("\n")  # may hold one number of the pair
        if value is None or cut or not math.isfinite(value):
            found.malformed += 1
            found.first_malformed = found.first_malformed or line.shown(at)
            continue
        found.values.add(value)
        if batch and (samples := batch.value(text)) is not None:
            found.batches.add(samples)
        if found.first is None and found.values.count:
            found.first = line.shown(at)
            number = r"[\s:='\"]*[\d.,eE+-]+\s*"
            unit = re.match(rf"{number}([A-Za-z]+/s)(ec)?\b", text[at + len(keyword) :])
            known = own.unit if own else None
            found.unit = unit[1] if unit and options.position is None else known
    near = closest(keyword, head) if not found.matched else None
    _require(found, keyword, options, near)
    if options.keyword_loss and found.loss is None:
        remedy = "check keyword_loss, or leave it out"
        raise DataError(f"no number after {loss_word!r} in any line", remedy=remedy)
    if found.batches.count not in {0, found.values.count}:
        what = f"{found.values.count} step times but {found.batches.count} global batch sizes"
        raise DataError(what, remedy="give base_batch_size=N, what one device takes in a step")
    return found


def _of_events(lines: Iterable[Line], preset: str, options: Options) -> Values:
    """Return the speeds or intervals of a log of JSON events."""
    check_events(options, preset)  # the preset may have been recognised only now
    reader = READERS[preset](options.skip_steps)
    for line in lines:
        if reader.marker in line.text:
            reader.feed(line, parse(line, reader.marker))
    speeds = reader.speeds.seen > 0
    values = reader.speeds if speeds else reader.seconds
    paired = not speeds and reader.samples.count == values.count
    shown = [
        line.shown(line.text.find(reader.marker)) if line else None
        for line in (reader.first.get(values), reader.first_malformed)
    ]
    found = Values(
        values=values, batches=reader.samples if paired else Distribution(),
        reads="speed" if speeds else "step_time",
        whole_job=speeds or options.base_batch_size is None,
        loss=reader.loss, failed=reader.failed, notes=reader.notes, matched=reader.matched,
        malformed=reader.malformed, first=shown[0], first_malformed=shown[1],
    )  # fmt: skip
    _require(found, reader.marker, options, None)
    return found


def _require(found: Values, keyword: str, options: Options, near: str | None) -> None:
    """Refuse a log without values, with the line that explains it."""
    seen, shown = found.values.seen, found.first_malformed
    if found.values.count:
        return
    if seen:
        what = f"skip_steps={options.skip_steps} leaves none of {seen} value{'s' * (seen > 1)}"
        rule, remedy = "the result is the mean of what is left", "leave skip_steps out"
    elif found.matched:
        what = f"{found.matched} lines with {keyword!r}, none with a value"
        rule = f"first is {shown}" if shown else "an interval needs a beginning and an end"
        remedy = "check the log, or position, separator and range"
    else:
        what, remedy = f"no line with {keyword!r}", "give keyword as in the log"
        rule = f"nearest is {near}" if near else "no line comes near it"
    raise DataError(what, rule=rule, remedy=remedy)


def _computed(log: str, found: Values, options: Options) -> Analysis:
    """Choose mode, batch and units: what is said first, then what preset and log know."""
    values, notes = found.values, found.notes
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
        "lines_malformed": found.malformed, "first_malformed": found.first_malformed,
        "first_value": found.first, "values": values.count,
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
