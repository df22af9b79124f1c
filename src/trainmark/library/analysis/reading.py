"""The values of one log and how they are to be understood.

Owns which mode, batch and unit follow from options, preset and log. Must not know the record.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainmark.errors import DataError, UsageError
from trainmark.library.analysis.distribution import Distribution
from trainmark.library.analysis.events import READERS, EventReader
from trainmark.library.analysis.extract import Evidence, Extractor, LastValue, NearMiss
from trainmark.library.analysis.modes import DEFAULT_UNIT
from trainmark.library.analysis.numbers import Rule
from trainmark.library.analysis.options import Options, check_events

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainmark.library.analysis.presets import Form
    from trainmark.library.analysis.source import Block


@dataclass(frozen=True, slots=True)
class Reading:
    """How the values of a log are to be understood.

    Args:
        values: what the mode works on.
        batch: samples a device does in a step, for modes that need it.
        devices: factor of the mode: 1 where the log's figure is the whole job's.
        whole_job: whether it is.
        unit: what the log counts; none: not known, or the user gave the batch.
        robust: whether the median of the values is used, not their mean.
    """

    evidence: Evidence
    values: Distribution
    mode: int
    time_unit: str
    batch: float | None
    devices: int
    whole_job: bool
    unit: str | None
    loss: float | None
    failed: bool
    robust: bool
    notes: list[str] = field(default_factory=list)

    @property
    def statistic(self) -> str:
        """Name of what stands for all values."""
        return "median" if self.robust else "mean"

    @property
    def middle(self) -> float:
        """The value that stands for all, of which there must be some."""
        return self.values.percentiles(0.5)[0] if self.robust else self.values.mean


def read_keyword(source: Iterable[Block], options: Options, form: Form | None) -> Reading:
    """Return the values behind a keyword, the user's or the form's."""
    keyword = options.keyword or (form.keyword if form else "")
    separator = options.separator or ""
    rule = Rule(keyword, separator, options.position, options.cut)
    values = Extractor(rule, Distribution(options.skip_steps))
    batch_keyword = (
        form.batch if form and options.base_batch_size is None and not options.keyword else ""
    )
    batch = (
        Extractor(Rule(batch_keyword), Distribution(options.skip_steps)) if batch_keyword else None
    )
    loss_keyword = options.keyword_loss or (form.loss if form else "")
    whole = not options.keyword_loss and loss_keyword[:1].isalpha()  # not eval_loss
    loss = LastValue(Rule(loss_keyword, whole=whole)) if loss_keyword else None
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
    _require(values, values.distribution, keyword, near, options)
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
    mode, time_unit = 0, "s"
    whole_job = False  # whether log or batch speak of all devices already
    if form:
        if batch and batch.distribution.count:
            samples = _global_batch(values.distribution, batch.distribution, options, notes)
            whole_job = True
        mode, time_unit = _MODE_OF[form.reads][samples is not None], form.time_unit
        if form.reads == "speed" and options.model_mode is None:
            whole_job = not form.per_device
            if whole_job and (options.gpu_num or 1) > 1:
                notes.append("the log's speed is the whole job's: not multiplied by --gpu_num")
    mode = mode if options.model_mode is None else options.model_mode
    from_log = samples is not None and options.base_batch_size is None
    return Reading(
        evidence=values,
        values=values.distribution,
        mode=mode,
        time_unit=options.time_unit or time_unit,
        batch=samples,
        devices=1 if whole_job else options.gpu_num or 1,
        whole_job=whole_job,
        unit=DEFAULT_UNIT if from_log else _speed_unit(values, mode, options, form),
        loss=loss,
        failed=False,
        robust=options.robust,
        notes=notes,
    )


_MODE_OF = {"step_time": (2, -2), "steps": (1, 3), "speed": (-1, -1)}  # without, with a batch


def _global_batch(
    values: Distribution, batch: Distribution, options: Options, notes: list[str]
) -> float:
    """Return the mean global batch: sum of samples over sum of seconds stays exact."""
    if batch.count != values.count:
        what = f"{values.count} step times but {batch.count} global batch sizes"
        raise DataError(what, remedy="give --base_batch_size N, what one device takes in a step")
    if batch.minimum == batch.maximum:
        notes.append(f"global batch size {batch.mean:g}, from the log")
    else:
        _check_constant(batch, options)
        notes.append(
            f"global batch size from {batch.minimum:g} to {batch.maximum:g}, from the log; "
            f"its mean {batch.mean:g} is used, so that the result is all samples over all seconds"
        )
    return batch.mean


def _check_constant(samples: Distribution, options: Options) -> None:
    """Refuse a median of times in which different numbers of samples were done."""
    if options.robust and samples.minimum != samples.maximum:
        raise UsageError(
            "the median of the times is of no one number of samples",
            where="--robust",
            rule=f"each time in the log is of {samples.minimum:g} to {samples.maximum:g} samples",
            remedy="leave --robust out, or skip the part where it changes with --skip_steps N",
        )


def _speed_unit(values: Extractor, mode: int, options: Options, form: Form | None) -> str | None:
    """Return what a logged speed counts, as the line writes it or the preset knows it."""
    if mode != -1:
        return None
    known = form.unit if form and not options.keyword and form.reads == "speed" else ""
    return _unit_after(values) or known or None


def _unit_after(values: Extractor) -> str | None:
    """Return the unit written behind the first value, as ``tokens/s``."""
    if values.first is None or values.rule.position is not None:
        return None
    behind = values.first.text.partition(values.rule.keyword)[2]
    found = re.match(r"[\s:='\"]*[\d.,eE+-]+\s*([A-Za-z]+)/(s|sec)\b", behind)
    return f"{found[1]}/s" if found else None


def read_events(source: Iterable[Block], name: str, options: Options) -> Reading:
    """Return the speeds or intervals of a log of JSON events."""
    check_events(options, name)  # the preset may have been recognised only now
    reader: EventReader = READERS[name](options.skip_steps)
    for block in source:
        reader.feed(block)
    use_speeds = reader.speeds.seen > 0
    values = reader.speeds if use_speeds else reader.seconds
    _require(reader, values, reader.marker.decode(), None, options)
    notes = list(reader.notes)
    samples: float | None = options.base_batch_size
    mode = -1 if use_speeds else _MODE_OF["step_time"][samples is not None]
    whole_job = samples is None
    if not use_speeds and whole_job and reader.samples.count == values.count:
        _check_constant(reader.samples, options)
        samples, mode = reader.samples.mean, -2
        notes.append("all samples over all seconds of the intervals in the log")
    mode = mode if options.model_mode is None else options.model_mode
    return Reading(
        evidence=reader,
        values=values,
        mode=mode,
        time_unit="s",
        batch=samples,
        devices=1 if whole_job or use_speeds else options.gpu_num or 1,
        whole_job=whole_job or use_speeds,
        unit=DEFAULT_UNIT if whole_job and not use_speeds else None,  # a speed's is not logged
        loss=reader.loss,
        failed=reader.failed,
        robust=options.robust,
        notes=notes,
    )


def _require(
    evidence: Evidence | EventReader,
    values: Distribution,
    keyword: str,
    near: NearMiss | None,
    options: Options,
) -> None:
    """Refuse a log without values, with the line that explains it."""
    if values.count:
        return
    if values.skipped:
        number = f"{values.seen} value{'s' if values.seen > 1 else ''}"
        what = f"--skip_steps {options.skip_steps} leaves none of {number}"
        fewer = f"give --skip_steps {values.seen - 1} or less"
        remedy = fewer if values.seen > 1 else "leave --skip_steps out"
        raise DataError(what, rule="the result is the mean of what is left", remedy=remedy)
    if evidence.matched:
        what = f"{evidence.matched} lines with {keyword!r}, none with a value"
        first = evidence.first_malformed
        rule = f"first is {first}" if first else "an interval needs a beginning and an end"
        remedy = "check --position, --separator and --range" if near else "wait for more steps"
        if isinstance(evidence, EventReader) and evidence.missing:
            remedy = f"write the key {evidence.missing!r}, which the events lack"
        raise DataError(what, rule=rule, remedy=remedy)
    best = near.best if near else None
    rule = f"nearest is {best}" if best else "no line comes near it"
    raise DataError(f"no line with {keyword!r}", rule=rule, remedy="give --keyword as in the log")
