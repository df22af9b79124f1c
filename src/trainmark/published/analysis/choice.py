"""Choose the speed of the job among the speeds of a log.

Wall time with the batch, and totals that a trainer prints at its end, come before rates; the timer
of a component comes last. A preset comes before keys that belong to no known trainer. The other
speeds are kept, so that a reader sees differences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainmark.published.analysis.samples import is_rare, take_only_mean, take_sample
from trainmark.published.analysis.sources import BAR, PLAIN, PRESETS

if TYPE_CHECKING:
    from trainmark.published.analysis.options import Options
    from trainmark.published.analysis.readings import LogReader
    from trainmark.published.analysis.samples import Sample

_CLOSING_KEYS = {x.key for preset in PRESETS.values() for x in preset.forms if x.is_closing}
_TOLERANCE = 0.1  # by which two statements of one speed may differ
_MAX_OTHERS = 4


@dataclass
class Choice:
    """The chosen speed of a log, and the speeds that were not chosen.

    Args:
        preset: name of the format; empty: none fits.
        sample: its values; None: there are none.
        others: other speeds in the log, the best first.
        devices: of the job, if the log has the speed of the job and of a device; None: not known.
        ambiguous: equally good candidates that differ; then there is no sample.
        reasons: why a known trainer's log has no speed.
    """

    preset: str = ""
    sample: Sample | None = None
    others: list[Sample] = field(default_factory=list)
    devices: int | None = None
    ambiguous: list[Sample] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def choose(reader: LogReader, options: Options) -> Choice:
    """Return the best sample of a log: of the named preset, or of any."""
    named = options.preset if options.preset in {*PRESETS, PLAIN} else None
    samples = _take_preset_samples(reader, options)
    plain = _take_plain_samples(reader, options)
    recognised = [name for name in PRESETS if reader.recognised[name]]
    if named in PRESETS:
        return _choose_preset(str(named), samples, plain, reader)
    ranked = sorted(samples, key=lambda name: _rank_preset(samples[name], reader))
    if ranked and named is None and not _is_more_specific(plain, samples[ranked[0]], options):
        return _choose_preset(ranked[0], samples, plain, reader)
    choice = _choose_plain(plain, options)
    if choice.sample is None and recognised and named is None:
        choice.preset = recognised[0]
    choice.reasons += _note_missing_closings(recognised, reader)
    choice.devices = _infer_devices(choice.sample, plain)
    return choice


def _is_more_specific(plain: list[Sample], of_preset: Sample, options: Options) -> bool:
    """Tell whether a plain key has the work per second, and the preset only steps."""
    if of_preset.source.quantity.reads == "speed" or len(of_preset.batches):
        return False
    return (
        bool(plain)
        and bool(plain[0].unit)
        and options.base_batch_size is None
        and (plain[0].source.quantity.reads == "speed")
    )


def _choose_preset(
    name: str, samples: dict[str, Sample], plain: list[Sample], reader: LogReader
) -> Choice:
    """Return the sample of a preset, and the other speeds of the log."""
    sample = samples.get(name)
    keys = {form.key for form in PRESETS[name].forms}
    others = [other for preset, other in samples.items() if preset != name]
    known = keys | {other.source.key for other in others}
    others += [other for other in plain if other.source.key not in known and _is_independent(other)]
    choice = Choice(name, sample, others[:_MAX_OTHERS])
    choice.devices = _infer_devices(sample, [*samples.values(), *_take_all_forms(name, reader)])
    if sample is None:
        choice.reasons += _note_missing_closings([name], reader)
    return choice


def _is_independent(sample: Sample) -> bool:
    """Tell whether a sample is more than a mean of other values in the log."""
    return sample.is_closing or not sample.source.quantity.is_summary


def _take_all_forms(name: str, reader: LogReader) -> list[Sample]:
    """Return a sample of each form of a preset."""
    readings = (x for (preset, _, _), x in reader.readings.items() if preset == name)
    samples = (take_sample(x, reader.context, skip=0) for x in readings)
    return [sample for sample in samples if sample is not None]


def _take_preset_samples(reader: LogReader, options: Options) -> dict[str, Sample]:
    """Return the sample of each preset with values: that of its best form."""
    samples: dict[str, Sample] = {}
    for name in PRESETS:
        readings = [x for (preset, _, _), x in reader.readings.items() if preset == name]
        present = {x.source.key for x in readings}
        for reading in sorted(readings, key=lambda x: x.source.rank):
            form = reading.source.form
            assert form is not None
            if form.total_of in present and options.gpu_num is not None:
                continue
            if form.is_closing and reader.context.resumed_at:
                continue
            sample = take_sample(
                reading, reader.context, skip=options.skip_steps, is_closing=form.is_closing
            )
            if sample is None and form.clock and not reader.context.resumed_at:
                sample = take_only_mean(reading)
            if sample is not None:
                samples[name] = sample
                break
    return samples


def _rank_preset(sample: Sample, reader: LogReader) -> tuple[int, int]:
    """Return the rank of a preset; smaller is better."""
    source = sample.source
    if source.is_component:
        basis = 3
    elif sample.is_closing or len(sample.batches):
        basis = 0
    else:
        basis = 1 if source.quantity.reads == "speed" else 2
    return basis, -reader.recognised[source.preset]


def _note_missing_closings(presets: list[str], reader: LogReader) -> list[str]:
    """Return notes about trainers that print their speed only in a closing line."""
    notes = []
    for name in presets:
        closing = PRESETS[name].closing
        if not closing or not reader.recognised[name]:
            continue
        resumed_at = reader.context.resumed_at
        if resumed_at and any(preset == name for preset, _, _ in reader.readings):
            notes.append(
                f"the run resumed from a checkpoint (line {resumed_at}): the closing line of "
                f"{name} divides all samples by the time of the last session, so it is no speed"
            )
        elif not any(preset == name for preset, _, _ in reader.readings):
            notes.append(
                f"the closing line of {name} ({closing}) is missing: the run did not finish, or "
                "the log lacks its end"
            )
    return notes


def _take_plain_samples(reader: LogReader, options: Options) -> list[Sample]:
    """Return a sample of each key that names a speed, the best first."""
    readings = [x for (preset, _, _), x in reader.readings.items() if preset == PLAIN]
    max_lines = max((x.lines for x in readings if x.has_steps), default=0)
    max_lines = max_lines or max((x.lines for x in readings), default=0)
    samples = []
    for reading in readings:
        is_summary = reading.source.quantity.is_summary
        is_closing = reading.source.key in _CLOSING_KEYS or (
            is_summary and not reading.has_steps and is_rare(reading, max_lines)
        )
        if is_closing and reader.context.resumed_at:
            continue
        sample = take_sample(
            reading, reader.context, skip=options.skip_steps, is_closing=is_closing
        )
        if sample is not None:
            samples.append(sample)
    has_gpu_num = options.gpu_num is not None
    return sorted(samples, key=lambda sample: _rank_plain(sample, has_gpu_num=has_gpu_num))


def _rank_plain(sample: Sample, *, has_gpu_num: bool) -> tuple[float, ...]:
    """Return the rank of a sample without a preset; smaller is better."""
    quantity = sample.source.quantity
    if sample.source.key.startswith(BAR):
        kind = 4
    elif quantity.reads == "speed":
        kind = 1 if quantity.is_weak and not sample.unit else 0
    else:
        kind = 3 if quantity.is_weak else 2
    is_mean = quantity.is_summary and not sample.is_closing and quantity.scope != "job"
    order = {"job": 0, "": 1, "device": 2, "node": 3}
    if has_gpu_num:
        order = {"device": 0, "": 1, "job": 2, "node": 3}
    # The progress bar of training runs longest.
    seconds = float(sample.weights.sum()) if kind == 4 else 0.0
    return kind, not sample.is_closing, is_mean, order[quantity.scope], -seconds, -sample.lines


def _choose_plain(plain: list[Sample], options: Options) -> Choice:
    """Return the best of the keys; none if several are equally good and differ."""
    if not plain:
        return Choice()
    best, *others = plain
    has_gpu_num = options.gpu_num is not None
    rank = _rank_plain(best, has_gpu_num=has_gpu_num)
    rivals = [
        other
        for other in others
        if _rank_plain(other, has_gpu_num=has_gpu_num) == rank
        and other.unit == best.unit
        and other.source.quantity.reads == best.source.quantity.reads
        and abs(other.mean - best.mean) > _TOLERANCE * abs(best.mean)
    ]
    if rivals and not best.has_steps:
        return Choice(PLAIN, None, ambiguous=[best, *rivals])
    return Choice(PLAIN, best, [other for other in others if _is_independent(other)][:_MAX_OTHERS])


def _infer_devices(sample: Sample | None, others: list[Sample]) -> int | None:
    """Return the devices of a job by its speed over that of one device; None: not known."""
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
        if round(ratio) >= 1 and abs(ratio - round(ratio)) < 0.02 * ratio:
            return round(ratio)
    return None
