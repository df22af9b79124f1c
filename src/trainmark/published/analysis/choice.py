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
    from trainmark.published.analysis.log_reader import LogReader
    from trainmark.published.analysis.options import Options
    from trainmark.published.analysis.readings import Readings
    from trainmark.published.analysis.samples import Sample

# Keys that known trainers print only once, in a line at the end of a run.
_CLOSING_KEYS_OF_TRAINERS = {
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
    """Return the best speed of a log: of the preset that the user names, or of any.

    A preset is the log format of a known trainer. Plain samples are the values of keys that name a
    speed but belong to no known trainer.

    Args:
        reader: it has read the whole log.
    """
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
    # The presets in whose format the log has a line.
    recognised_presets = [name for name in PRESETS if reader.num_lines_of_preset[name]]
    # Without a speed, the report still says of which trainer the log is: if its lines are those of
    # several, the first of them in the order of ``PRESETS``.
    if choice.sample is None and recognised_presets and may_choose_preset:
        choice.preset = recognised_presets[0]
    # Notes on trainers that print their speed only at the end, if the log lacks that line.
    choice.missing_closings += _note_missing_closings(recognised_presets, reader)
    # The log shows the number of devices if it has the speed of the job and that of one device.
    choice.devices = _infer_devices(choice.sample, plain_samples)
    return choice


def _is_more_specific(plain_samples: list[Sample], preset_sample: Sample, options: Options) -> bool:
    """Tell whether a plain key has samples or tokens a second, and the preset only steps.

    A preset is the log format of a known trainer. A plain key names a speed but belongs to no
    known trainer.

    Args:
        plain_samples: the values of each plain key, the best key first.
        preset_sample: the values of the best preset.
    """
    # The kind ``speed`` is samples or tokens a second; others are step times or steps a second.
    if preset_sample.source.quantity.kind == "speed":
        return False
    # With the batch size, from the log or from the user, steps become samples.
    has_batch_size = len(preset_sample.batches) > 0 or options.base_batch_size is not None
    if not plain_samples or has_batch_size:
        return False
    best = plain_samples[0]
    # A speed without a unit may count anything, so it is no more specific than steps.
    return bool(best.unit) and best.source.quantity.kind == "speed"


def _choose_preset(
    name: str,
    preset_samples: dict[str, Sample],
    plain_samples: list[Sample],
    reader: LogReader,
) -> Choice:
    """Return the speed of a preset, and the other speeds of the log.

    Args:
        name: of the preset, the log format of a known trainer.
        preset_samples: the values of each preset that has some, by its name.
        plain_samples: the values of each key that names a speed but belongs to no known trainer,
            the best key first.
        reader: it has read the whole log.
    """
    sample = preset_samples.get(name)
    others = [other for preset, other in preset_samples.items() if preset != name]
    # A form is one way in which the preset's trainer prints its speed; its key is the text before
    # the number.
    preset_keys = {form.key for form in PRESETS[name].forms}
    preset_keys |= {other.source.key for other in others}
    for other in plain_samples:
        # A key of a preset is listed as that preset's, not again as a plain one.
        if other.source.key not in preset_keys and not _repeats_other_values(other):
            others.append(other)
    choice = Choice(name, sample, others[:_MAX_OTHERS])  # no more are reported
    # The speed of the job divided by that of one device is the number of devices. The speed of a
    # device may be in another form of the preset than the one that was chosen.
    choice.devices = _infer_devices(sample, _take_sample_of_each_form(name, reader))
    if sample is None:  # a note says so if the trainer prints its speed only at the end of a run
        choice.missing_closings += _note_missing_closings([name], reader)
    return choice


def _repeats_other_values(sample: Sample) -> bool:
    """Tell whether a sample is only an average or total of other values that the log has, too.

    A line at the end of the log, about the whole run, is more than that.
    """
    return sample.source.quantity.is_summary and not sample.is_from_closing_line


def _take_sample_of_each_form(name: str, reader: LogReader) -> list[Sample]:
    """Return the values of each form of a preset that has some in the log.

    A preset is the log format of a known trainer, and a form one way in which it prints its speed.

    Args:
        name: of the preset.
    """
    samples = []
    for readings in _list_readings(name, reader):
        # No first steps are skipped: a form with few values still shows the speed of a device.
        sample = take_sample(readings, reader.context, skip=0)
        if sample is not None:
            samples.append(sample)
    return samples


def _list_readings(preset: str, reader: LogReader) -> list[Readings]:
    """Return the readings of each source of a preset: all values behind one key of its trainer.

    For the preset ``PLAIN``, the keys are those that name a speed but belong to no known trainer.
    """
    return [x for key, x in reader.readings.items() if key.preset == preset]


def _take_preset_samples(reader: LogReader, options: Options) -> dict[str, Sample]:
    """Return, by the name of the preset, the sample of each preset with values in the log.

    A preset is the log format of a known trainer, a form one way in which it prints its speed. The
    sample is those values of the best form that count.
    """
    samples: dict[str, Sample] = {}
    for name in PRESETS:
        readings_of_preset = _list_readings(name, reader)
        keys = {readings.source.key for readings in readings_of_preset}
        # The rank is the place of the form in the preset, which lists the best one first.
        for readings in sorted(readings_of_preset, key=lambda x: x.source.rank):
            form = readings.source.form
            assert form is not None, "the source of a preset is one of its forms"
            # If the form prints the total over devices, ``total_of`` is the key of one device's
            # speed, else it is empty. The speed of one device is preferred to the total if the log
            # has it and the user gives the number of devices.
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
            # Some forms print means since the start, with the time since the start, whose key is
            # ``clock``. The sample has the speeds between these means. If there is only one mean,
            # there is no sample, and the mean is the speed. After a resume the mean does not count,
            # because its clock began at the resume.
            if sample is None and form.clock and not reader.context.resumed_at:
                sample = take_only_mean(readings)
            if sample is not None:
                samples[name] = sample
                break  # the best form with values is found
    return samples


def _rank_preset(sample: Sample, reader: LogReader) -> tuple[int, int]:
    """Return the rank of a preset: by the kind of its values, then by its number of lines.

    A smaller rank is better, so the number of lines is negated.

    Args:
        sample: the values of the preset, the log format of a known trainer.
        reader: it has counted the lines in the format of each preset.
    """
    source = sample.source
    if source.is_component:  # the time of one component may lack parts of a step
        kind_rank = 3
    # The best are a speed of the whole run from the line at its end, and values whose lines print
    # the global batch size, ``batches``: with it, step times become samples a second.
    elif sample.is_from_closing_line or len(sample.batches):
        kind_rank = 0
    elif source.quantity.kind == "speed":
        kind_rank = 1
    else:  # step times or steps a second, without a batch size
        kind_rank = 2
    return kind_rank, -reader.num_lines_of_preset[source.preset]


def _note_missing_closings(presets: list[str], reader: LogReader) -> list[str]:
    """Return a note for each preset whose speed is missing because it is only in a closing line.

    A trainer prints its closing line once, at the end of a run. It is missing, or it gives no speed
    because the run was resumed.

    Args:
        presets: names of presets, the log formats of known trainers.
        reader: it has read the whole log.
    """
    notes = []
    for name in presets:
        # The keys on the closing line, as text; empty: the trainer also prints its speed earlier.
        closing = PRESETS[name].closing
        if not closing or not reader.num_lines_of_preset[name]:  # or the log has no line of it
            continue
        resumed_at = reader.context.resumed_at  # number of a line; 0: the run was not resumed
        # All values of such a preset are from closing lines.
        has_closing = bool(_list_readings(name, reader))
        if resumed_at and has_closing:
            notes.append(
                f"the run was resumed from a checkpoint (line {resumed_at}): the closing line of "
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
    """Return a sample of each plain key, the best first.

    A plain key names a speed but belongs to no known trainer. Its readings are all its values in
    the log; its sample is the values that count.

    Args:
        reader: it has read the whole log.
    """
    plain_readings = _list_readings(PLAIN, reader)
    # How many lines have the key that is printed most often, once a step or interval.
    num_step_lines = max((x.num_lines for x in plain_readings if x.has_steps), default=0)
    if num_step_lines == 0:  # no line has the number of a step: the most frequent key counts
        num_step_lines = max((x.num_lines for x in plain_readings), default=0)
    samples = []
    for readings in plain_readings:
        is_summary = readings.source.quantity.is_summary  # an average or a total
        # A summary on a few lines without a step is printed at the end, about the whole run.
        is_rare_summary = (
            is_summary and not readings.has_steps and is_rare(readings, num_step_lines)
        )
        # A closing line is printed once, at the end. A key that known trainers print there is taken
        # as a closing one here, too, although the line is not in the format of such a trainer.
        is_from_closing_line = readings.source.key in _CLOSING_KEYS_OF_TRAINERS or is_rare_summary
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

    The numbers of the rank are compared from left to right; false is smaller than true:

    1. Speeds come before step times and steps a second, and these before progress bars. Of speeds
       and of step times, weak keys, which may mean something else, come last.
    2. A line at the end of the log, which covers the whole run, comes first.
    3. Values come before their means.
    4. The scope, which says whose speed it is, decides: that of a device, a node or the job.
    5. The longest progress bar comes first.
    6. The key on the most lines comes first.

    Args:
        sample: the values of the key that count.
        has_gpu_num: the user gives the number of devices, by which the speed of one device is
            multiplied.
    """
    quantity = sample.source.quantity
    # A progress bar prints no key: the reader of logs gives it one that begins with ``BAR_KEY``.
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
    # Of several progress bars, that of training runs longest. The weights of its speeds are the
    # seconds that each covers.
    seconds = float(sample.weights.sum()) if is_progress_bar else 0.0
    return (
        kind_rank,
        not sample.is_from_closing_line,
        is_mean,
        scope_ranks[quantity.scope],
        -seconds,
        -sample.num_lines,
    )


def _choose_plain(ranked: list[Sample], options: Options) -> Choice:
    """Return the speed of the best key; none if several are equally good and their speeds differ.

    If the best key is on lines with the number of a step, it is taken even then, and the report
    lists the others: such lines are those of a training. Without steps, the file may be a table of
    results, with the speeds of several jobs. None of the keys belongs to a known trainer.

    Args:
        ranked: the values of each key, the best key first.
    """
    if not ranked:
        return Choice()
    best, *others = ranked
    has_gpu_num = options.gpu_num is not None
    rank = _rank_plain(best, has_gpu_num=has_gpu_num)
    # Keys whose means are close may print the same speed. Rivals are keys that are as good as the
    # best and whose means are not close to its mean.
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
    # A mean that only repeats other values of the log is no other speed.
    other_speeds = [other for other in others if not _repeats_other_values(other)]
    return Choice(PLAIN, best, other_speeds[:_MAX_OTHERS])  # no more are reported


def _infer_devices(sample: Sample | None, others: list[Sample]) -> int | None:
    """Return the devices of a job: its speed divided by that of one device; None: not known.

    A speed of a known trainer has a form: one of the ways in which that trainer prints its speed.
    ``form.total_of`` is the key of one device's speed, whose total over devices the form prints;
    empty: the trainer prints no such key. Without a form, any key of one device counts.

    Args:
        sample: the speed of the job.
        others: other speeds, one of which may be that of a device.
    """
    # The scope says whose speed it is: that of the job, of a device or of a node.
    if sample is None or sample.source.quantity.scope != "job":
        return None
    form = sample.source.form
    if form is not None and not form.total_of:
        return None
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
