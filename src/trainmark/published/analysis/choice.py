"""Choose the speed of the job among the speeds of a log.

A source is a key in the log, or a form in which a known trainer prints its speed; a sample is the
values of one source that count. A plain sample has a key that names a speed but belongs to no known
trainer.

Wall time with the batch, and totals that a trainer prints at its end, come before rates; the timer
of a component comes last. A preset comes before keys that belong to no known trainer. The other
speeds are kept, so that a reader sees differences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainmark.published.analysis.samples import is_rare, take_only_mean, take_sample
from trainmark.published.analysis.sources import BAR_KEY, PLAIN, PRESETS

if TYPE_CHECKING:
    from trainmark.published.analysis.options import Options
    from trainmark.published.analysis.readings import LogReader, Readings
    from trainmark.published.analysis.samples import Sample

_CLOSING_KEYS = {
    form.key for preset in PRESETS.values() for form in preset.forms if form.is_from_closing_line
}
_SAME_SPEED_TOLERANCE = 0.1  # relative difference of two keys that may print the same speed
_MAX_OTHERS = 4  # other speeds that are reported
_DEVICES_TOLERANCE = 0.02  # relative distance of a ratio of speeds from a whole number of devices


@dataclass
class Choice:
    """The chosen speed of a log, and the speeds that were not chosen.

    Args:
        preset: name of the format; empty: none fits.
        sample: the values of the chosen speed; None: there are none.
        others: other speeds in the log, the best first.
        devices: of the job, if the log has the speed of the job and of a device; None: not known.
        ambiguous: equally good candidates that differ; then there is no sample.
        missing_closings: notes on known trainers that print their speed only at the end, if that
            line is missing or gives no speed.
    """

    preset: str = ""
    sample: Sample | None = None
    others: list[Sample] = field(default_factory=list)
    devices: int | None = None
    ambiguous: list[Sample] = field(default_factory=list)
    missing_closings: list[str] = field(default_factory=list)


def choose_speed(reader: LogReader, options: Options) -> Choice:
    """Return the best speed of a log: of the preset that the user names, or of any."""
    preset_samples = _take_preset_samples(reader, options)
    plain_samples = _take_plain_samples(reader, options)
    if options.preset in PRESETS:  # the user's choice holds even if it has no values
        return _choose_preset(str(options.preset), preset_samples, plain_samples, reader)
    may_choose_preset = options.preset != PLAIN  # PLAIN: the user wants no preset of a trainer
    if preset_samples and may_choose_preset:
        best_preset = min(
            preset_samples, key=lambda name: _rank_preset(preset_samples[name], reader)
        )
        # Samples or tokens a second behind a plain key are better than a preset's bare steps.
        if not _is_more_specific(plain_samples, preset_samples[best_preset], options):
            return _choose_preset(best_preset, preset_samples, plain_samples, reader)
    choice = _choose_plain(plain_samples, options)
    recognised_presets = [name for name in PRESETS if reader.num_lines_of_preset[name]]
    # Without a speed, the report still says whose log it is.
    if choice.sample is None and recognised_presets and may_choose_preset:
        choice.preset = recognised_presets[0]
    choice.missing_closings += _note_missing_closings(recognised_presets, reader)
    choice.devices = _infer_devices(choice.sample, plain_samples)
    return choice


def _is_more_specific(plain_samples: list[Sample], preset_sample: Sample, options: Options) -> bool:
    """Tell whether a plain key has samples or tokens a second, and the preset only steps.

    Args:
        plain_samples: the best first.
        preset_sample: that of the best preset.
    """
    if preset_sample.source.quantity.kind == "speed":
        return False
    has_batch = len(preset_sample.batches) > 0 or options.base_batch_size is not None
    if not plain_samples or has_batch:  # with a batch, the preset's steps become samples
        return False
    best = plain_samples[0]
    return bool(best.unit) and best.source.quantity.kind == "speed"


def _choose_preset(
    name: str,
    preset_samples: dict[str, Sample],
    plain_samples: list[Sample],
    reader: LogReader,
) -> Choice:
    """Return the speed of a preset, and the other speeds of the log.

    Args:
        name: of the preset.
        preset_samples: the sample of each preset with values, by its name.
    """
    sample = preset_samples.get(name)
    others = [other for preset, other in preset_samples.items() if preset != name]
    preset_keys = {form.key for form in PRESETS[name].forms}
    preset_keys |= {other.source.key for other in others}
    for other in plain_samples:
        # A key of a preset is listed as that preset's, not again as a plain one.
        if other.source.key not in preset_keys and _is_independent(other):
            others.append(other)
    choice = Choice(name, sample, others[:_MAX_OTHERS])  # no more are reported
    # The speed of a device may be in another form of the preset than the one that was chosen.
    samples_of_all_forms = [*preset_samples.values(), *_take_all_forms(name, reader)]
    choice.devices = _infer_devices(sample, samples_of_all_forms)
    if sample is None:
        choice.missing_closings += _note_missing_closings([name], reader)
    return choice


def _is_independent(sample: Sample) -> bool:
    """Tell whether a sample is more than a mean of other values in the log."""
    return sample.is_from_closing_line or not sample.source.quantity.is_summary


def _take_all_forms(name: str, reader: LogReader) -> list[Sample]:
    """Return a sample of each form of a preset."""
    samples = []
    for readings in _list_readings(name, reader):
        # Nothing is skipped: a form with few values still shows the speed of a device.
        sample = take_sample(readings, reader.context, skip=0)
        if sample is not None:
            samples.append(sample)
    return samples


def _list_readings(preset: str, reader: LogReader) -> list[Readings]:
    """Return the values of each source of a preset."""
    return [x for key, x in reader.readings.items() if key.preset == preset]


def _take_preset_samples(reader: LogReader, options: Options) -> dict[str, Sample]:
    """Return the sample of each preset with values: that of its best form.

    A form is one way in which the preset's trainer prints its speed.
    """
    samples: dict[str, Sample] = {}
    for name in PRESETS:
        readings_of_preset = _list_readings(name, reader)
        keys = {readings.source.key for readings in readings_of_preset}
        for readings in sorted(readings_of_preset, key=lambda x: x.source.rank):
            form = readings.source.form
            assert form is not None, "the source of a preset is one of its forms"
            # The form is a total over devices, and ``total_of`` the key of one device's speed. If
            # that speed is in the log and the user gives the number of devices, it is preferred.
            if form.total_of in keys and options.gpu_num is not None:
                continue
            if form.is_from_closing_line and reader.context.resumed_at:
                continue  # it divides all samples by the time after the resume
            sample = take_sample(
                readings,
                reader.context,
                skip=options.skip_steps,
                is_from_closing_line=form.is_from_closing_line,
            )
            # A form with a clock prints means since the start, and the sample has the speeds
            # between them. With a single mean there is no sample, and the mean is the speed. After
            # a resume the mean does not count, because its clock began at the resume.
            if sample is None and form.clock and not reader.context.resumed_at:
                sample = take_only_mean(readings)
            if sample is not None:
                samples[name] = sample
                break  # forms are sorted by rank: the first one with values is the best
    return samples


def _rank_preset(sample: Sample, reader: LogReader) -> tuple[int, int]:
    """Return the rank of a preset: by the kind of its values, then by its number of lines.

    A smaller rank is better, so the number of lines is negated.
    """
    source = sample.source
    if source.is_component:  # the time of one component may lack parts of a step
        kind_rank = 3
    # The best are a speed of the whole run from its closing line, and values whose lines print the
    # global batch: with it, step times become samples a second.
    elif sample.is_from_closing_line or len(sample.batches):
        kind_rank = 0
    elif source.quantity.kind == "speed":
        kind_rank = 1
    else:  # step times or steps a second, without a batch
        kind_rank = 2
    return kind_rank, -reader.num_lines_of_preset[source.preset]


def _note_missing_closings(presets: list[str], reader: LogReader) -> list[str]:
    """Return a note for each preset whose speed is missing because it is only in a closing line.

    A trainer prints its closing line once, at the end of a run. It is missing, or it gives no speed
    because the run was resumed.

    Args:
        presets: names of presets.
    """
    notes = []
    for name in presets:
        closing = PRESETS[name].closing
        if not closing or not reader.num_lines_of_preset[name]:
            continue
        resumed_at = reader.context.resumed_at
        has_closing = bool(_list_readings(name, reader))
        if resumed_at and has_closing:
            notes.append(
                f"the run resumed from a checkpoint (line {resumed_at}): the closing line of "
                f"{name} divides all samples by the time of the last session, so it gives no "
                "speed"
            )
        elif not has_closing:
            notes.append(
                f"the closing line of {name} ({closing}) is missing: the run did not finish, "
                "or the end of the log is missing"
            )
    return notes


def _take_plain_samples(reader: LogReader, options: Options) -> list[Sample]:
    """Return a sample of each key that names a speed, the best first."""
    plain_readings = _list_readings(PLAIN, reader)
    # The number of lines of a source that is printed at each step or interval.
    num_step_lines = max((x.lines for x in plain_readings if x.has_steps), default=0)
    if num_step_lines == 0:  # no line has the number of a step: the most frequent source counts
        num_step_lines = max((x.lines for x in plain_readings), default=0)
    samples = []
    for readings in plain_readings:
        is_summary = readings.source.quantity.is_summary
        # A summary on a few lines without a step is printed at the end, about the whole run.
        is_rare_summary = (
            is_summary and not readings.has_steps and is_rare(readings, num_step_lines)
        )
        is_from_closing_line = readings.source.key in _CLOSING_KEYS or is_rare_summary
        if is_from_closing_line and reader.context.resumed_at:
            continue  # it may divide all samples by the time after the resume
        sample = take_sample(
            readings,
            reader.context,
            skip=options.skip_steps,
            is_from_closing_line=is_from_closing_line,
        )
        if sample is not None:
            samples.append(sample)
    has_gpu_num = options.gpu_num is not None
    return sorted(samples, key=lambda sample: _rank_plain(sample, has_gpu_num=has_gpu_num))


def _rank_plain(sample: Sample, *, has_gpu_num: bool) -> tuple[float, ...]:
    """Return the rank of a sample whose key belongs to no known trainer; smaller is better.

    Speeds come before step times and steps a second, and these before progress bars. Of speeds and
    of step times, weak keys, which may mean something else, come last. Among equals, a line at the
    end of the log, which covers the whole run, comes first. Then values come before their means,
    and a scope before a worse one. The last two numbers prefer the longest progress bar and the
    source with the most lines. False is smaller than true.

    Args:
        has_gpu_num: the user gives the number of devices, by which the speed of one device is
            multiplied.
    """
    quantity = sample.source.quantity
    is_progress_bar = sample.source.key.startswith(BAR_KEY)
    if is_progress_bar:
        kind_rank = 4  # its speed is that of iterations, whatever these are
    elif quantity.kind == "speed":
        # `speed` without a unit may count anything.
        kind_rank = 1 if quantity.is_weak and not sample.unit else 0
    else:
        kind_rank = 3 if quantity.is_weak else 2
    # A mean printed along the way repeats the values of steps; a total of the job does not.
    is_mean = quantity.is_summary and not sample.is_from_closing_line and quantity.scope != "job"
    # The empty scope: the key does not say whether the speed is of a device or of the job. The
    # speed of a node is last, because the number of nodes is not known.
    if has_gpu_num:
        scope_ranks = {"device": 0, "": 1, "job": 2, "node": 3}
    else:
        scope_ranks = {"job": 0, "": 1, "device": 2, "node": 3}
    # Of several progress bars, that of training runs longest; weights are the seconds between its
    # readings.
    seconds = float(sample.weights.sum()) if is_progress_bar else 0.0
    return (
        kind_rank,
        not sample.is_from_closing_line,
        is_mean,
        scope_ranks[quantity.scope],
        -seconds,
        -sample.lines,
    )


def _choose_plain(ranked: list[Sample], options: Options) -> Choice:
    """Return the speed of the best key; none if several are equally good and their speeds differ.

    If the best key is on lines with the number of a step, it is taken even then, and the report
    lists the others.

    Args:
        ranked: a sample of each key, the best first.
    """
    if not ranked:
        return Choice()
    best, *others = ranked
    has_gpu_num = options.gpu_num is not None
    rank = _rank_plain(best, has_gpu_num=has_gpu_num)
    # Two keys whose means are close may print the same speed; rivals are equally good keys whose
    # means are not.
    rivals = [
        other
        for other in others
        if _rank_plain(other, has_gpu_num=has_gpu_num) == rank
        and other.unit == best.unit
        and other.source.quantity.kind == best.source.quantity.kind
        and abs(other.mean - best.mean) > _SAME_SPEED_TOLERANCE * abs(best.mean)
    ]
    if rivals and not best.has_steps:
        return Choice(PLAIN, sample=None, ambiguous=[best, *rivals])
    independent = [other for other in others if _is_independent(other)]
    return Choice(PLAIN, best, independent[:_MAX_OTHERS])  # no more are reported


def _infer_devices(sample: Sample | None, others: list[Sample]) -> int | None:
    """Return the devices of a job: its speed divided by that of one device; None: not known.

    A preset knows the log of one trainer. Its form of a key (``source.form``) says by ``total_of``
    which other key has the speed of one device. Without a form, any key of one device counts.

    Args:
        sample: the speed of the job.
        others: other speeds, one of which may be that of a device.
    """
    if sample is None or sample.source.quantity.scope != "job":
        return None
    form = sample.source.form
    if form is not None and not form.total_of:
        return None  # the trainer does not print this speed of one device
    for other in others:
        if form is not None and other.source.key != form.total_of:
            continue
        if other.source.quantity.scope != "device" or other.unit != sample.unit:
            continue
        ratio = sample.mean / other.mean if other.mean else 0.0
        num_devices = round(ratio)  # means of printed speeds give it only approximately
        if num_devices >= 1 and abs(ratio - num_devices) < _DEVICES_TOLERANCE * ratio:
            return num_devices
    return None
