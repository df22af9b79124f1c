"""Extract figures from training logs that other programs wrote, and make the record of one case.

A log is read once. Its values stand behind the user's keyword, in the format of a known trainer, or
behind any key that names a speed; a log of events has them in its runs. The result is computed from
their mean by a mode of the public tool: the published log analyzer of training benchmarks, whose
options, modes and record this package keeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.errors import UsageError
from trainmark.published.analysis.choice import Choice, choose_speed
from trainmark.published.analysis.event_logs import MARK_OF_PRESET, read_event_speed
from trainmark.published.analysis.keywords import KeywordReader
from trainmark.published.analysis.log_reader import LogReader
from trainmark.published.analysis.options import AUTO, Options, parse_options
from trainmark.published.analysis.quantities import Quantity, normalize_rate_unit
from trainmark.published.analysis.results import STEP_TIME_MODES, Mode, compute_result, is_of_job
from trainmark.published.analysis.sources import PRESETS
from trainmark.published.analysis.summary import PERCENTILES, Analysis, summarize
from trainmark.published.log import read_numbered_lines
from trainmark.record.index_record import IndexRecord, get_fail_flag

if TYPE_CHECKING:
    from trainmark.published.analysis.event_logs import EventSpeed
    from trainmark.published.analysis.results import Result
    from trainmark.published.analysis.samples import Sample

__all__ = ["PRESETS", "Analysis", "Options", "analyze", "parse_options", "summarize"]

# In which a preset is recognised for a keyword of the user: they are held in memory, because
# standard input cannot be read twice.
_MAX_HEAD_LINES = 50_000
_MAX_DIFFERENCE = 0.1  # relative to the result; another speed that differs more gets a note
_MAX_SHOWN_KEYS = 8  # in messages


@dataclass
class _Extraction:
    """The values extracted from a log, and what the user must know about them.

    Args:
        preset: name of the format; empty: only the user's keyword was used.
        sample: the values that count; None: there are none.
        loss: the last loss, which may be infinite; None: there is none.
        others: other speeds in the log.
        devices: of the job, by the log; None: not known.
        has_failed: the log says that the run failed.
        num_malformed: number of lines that have the key, but no number behind it.
        first_malformed_text: the first of them.
        num_values: number of values, if there is no sample.
        num_skipped: how many of them ``skip_steps`` skips.
        notes: for the user.
        reason: why there is no sample; empty: there is one.
        advice: what the user can do about it.
    """

    preset: str = ""
    sample: Sample | None = None
    loss: float | None = None
    others: list[Sample] = field(default_factory=list)
    devices: int | None = None
    has_failed: bool = False
    num_malformed: int = 0
    first_malformed_text: str = ""
    num_values: int = 0
    num_skipped: int = 0
    notes: list[str] = field(default_factory=list)
    reason: str = ""
    advice: str = ""


def analyze(log: str, options: Options) -> Analysis:
    """Read a log once and return its record and figures; without values the record says "failed".

    Args:
        log: a path; ``-`` is standard input.
        options: of the user; ``gpu_num`` is the number of devices of the job.

    Raises:
        UsageError: options do not fit together, or a name or code in them is not one that the
            record allows.
        DataError: the log cannot be read.
    """
    options.check()  # raises a UsageError
    # The user says where the value of a line stands: behind a keyword, or as a word at a position
    # (``reads_words``). ``_read_keyword`` reads both; without either, the speed is searched for.
    has_keyword = bool(options.keyword) or options.reads_words
    # The values of the log with its last loss, its number of devices and notes for the user.
    extraction = _read_keyword(log, options) if has_keyword else _read_best_speed(log, options)
    if extraction.preset:  # the known log format whose values were taken
        extraction.notes.insert(0, f"preset {extraction.preset}")
    devices = options.gpu_num or extraction.devices  # the user's number outweighs the log's
    is_loss_finite = extraction.loss is not None and math.isfinite(extraction.loss)
    finite_loss = extraction.loss if is_loss_finite else None
    # The figures of a log without a value that counts. If there are such values,
    # ``_collect_figures`` replaces the counts and the first value. The notes are the list of the
    # extraction itself, so notes that are appended to it later are among the figures, too.
    figures: dict[str, Any] = {
        "log_file": log,
        "preset": extraction.preset or None,
        "values": 0,
        "values_skipped": extraction.num_skipped,
        "values_left_out": 0,
        "lines_malformed": extraction.num_malformed,
        "first_malformed": extraction.first_malformed_text or None,
        "first_value": None,
        "notes": extraction.notes,
    }
    sample = extraction.sample  # the values that count; None: there are none
    if sample is None:
        extraction.notes.insert(0, _describe_missing_value(extraction))
        # As in the public log analyzer, a record without values has a loss in any case; 0: none.
        loss = 0.0 if finite_loss is None else finite_loss
        record = _make_record(log, options, devices, loss=loss, result=None, failed=True)
        return Analysis(record, figures | {"loss": finite_loss})
    result = compute_result(sample, options, keyword_given=has_keyword)
    figures |= _collect_figures(sample, result)
    _add_notes(extraction, sample, result, options)
    figures["others"] = _compare_other_speeds(extraction, result, options)
    failed = _judge_run(extraction, sample, result, options)
    recorded_loss = finite_loss  # None: there is no loss, or it is not finite
    # The record of a failed run has a loss even if the log has none. A result of 0, too, is a
    # failure.
    if extraction.loss is None and (failed or result.value <= 0):
        recorded_loss = 0.0
    record = _make_record(log, options, devices, loss=recorded_loss, result=result, failed=failed)
    return Analysis(record, figures | {"loss": finite_loss})


def _judge_run(extraction: _Extraction, sample: Sample, result: Result, options: Options) -> bool:
    """Return whether the run that wrote the log failed, and add the reasons to the notes.

    Args:
        extraction: what was read from the log, with the notes for the user.
        sample: the values of the log that count.
        result: computed from the mean of these values.
    """
    failed = options.failed or extraction.has_failed  # the user or the log says so
    loss = extraction.loss
    if loss is not None and not math.isfinite(loss):
        extraction.notes.append(f"the last loss is {loss}: the run diverged and has no LOSS_RESULT")
        failed = True
    if result.value < 0:
        extraction.notes.append(f"{sample.source.name} is negative, so it is not a speed")
        failed = True
    if failed:
        extraction.notes.append(
            f"the run failed: FINAL_RESULT is 0; the measured value was {result.value:g} "
            f"{result.unit}"
        )
    return failed


def _read_keyword(log: str, options: Options) -> _Extraction:
    """Return the values behind the user's keyword; a preset supplies what the user left out.

    A preset is the log format of a known trainer: it says behind which key the speed stands, what
    the number measures, and which key has the loss.

    Args:
        log: a path; ``-`` is standard input.
        options: of the user, who gives a keyword or the position of a word in its line.
    """
    lines = read_numbered_lines(log)
    choice = Choice()  # the speed that the preset finds; without a preset it stays empty
    if options.preset:
        # The first lines are enough to find the key of the preset's speed. They are kept in memory,
        # because standard input cannot be read twice.
        head = list(islice(lines, _MAX_HEAD_LINES))
        lines = chain(head, lines)  # the head is read again for the values
        choice = _choose_speed_of_head(head, options, options.preset)
    keyword = options.keyword
    if not keyword and choice.sample is not None:
        keyword = choice.sample.source.key
    if not keyword and options.position is None:
        fix = "set keyword=TEXT, as written in the log"
        raise UsageError("no keyword to search for", where="keyword", fix=fix)
    keyword_reader = _make_keyword_reader(keyword, options, choice.preset)
    keyword_reader.read(lines)
    sample = _take_keyword_sample(keyword_reader, options, choice)
    # Values of closing lines, such as a total, count if the log has no others.
    num_values = len(keyword_reader.values) or len(keyword_reader.closing_values)
    extraction = _Extraction(
        choice.preset,
        sample,
        keyword_reader.loss,
        num_malformed=keyword_reader.num_malformed,
        first_malformed_text=keyword_reader.first_malformed_text,
        num_values=num_values,
    )
    if keyword:
        extraction.reason = f"no value with {keyword!r}"
        extraction.advice = "set keyword=TEXT, as written before the value in the log"
    else:  # the preset found no key: the word at the position was read from every line
        extraction.reason = f"no number at position {options.position}"
        extraction.advice = "set position=N, the place of the value among the words of its line"
    if sample is None and num_values:  # there are values, but ``skip_steps`` skips all
        _blame_skipping(extraction, options.skip_steps, num_values)
    # A note on units is only for times, whose unit the user may have left out. The key or unit of
    # a rate says what it counts.
    if keyword_reader.quantity is not None and keyword_reader.quantity.kind == "step_time":
        _note_units(extraction, keyword_reader.quantity, options, has_preset=bool(choice.preset))
    return extraction


def _choose_speed_of_head(head: list[tuple[int, str]], options: Options, preset: str) -> Choice:
    """Return the speed that a preset, a known log format, finds in the first lines of a log.

    Args:
        head: number and text of each of these lines.
    """
    reader = LogReader(preset, skip=0)
    reader.read(head)
    # The head may have fewer values than the user skips in the whole log, so none is skipped.
    return choose_speed(reader, options.model_copy(update={"skip_steps": 0}))


def _make_keyword_reader(keyword: str, options: Options, preset: str) -> KeywordReader:
    """Return a reader of the values behind a keyword, or of words at a position.

    Args:
        keyword: of the user or the preset; empty: the user gives the position of a word.
        preset: name of the log format of a known trainer. ``PLAIN`` and an empty text are no such
            formats, and not in ``PRESETS``.
    """
    # Only the preset of a known trainer says which key has the loss.
    loss_key = PRESETS[preset].loss if preset in PRESETS else ""
    return KeywordReader(
        keyword=keyword,
        separator=options.separator,
        position=options.position,
        character_range=options.range,
        skip=options.skip_steps,
        loss_keyword=options.keyword_loss or loss_key,
    )


def _take_keyword_sample(reader: KeywordReader, options: Options, choice: Choice) -> Sample | None:
    """Return the values behind the keyword that count; None: there are none.

    Args:
        reader: it has read the whole log.
        choice: the speed that a preset, the format of a known trainer's log, finds. Its sample says
            what the number behind the keyword measures; None: no speed is found.
    """
    if choice.sample is not None:
        return reader.make_sample(choice.sample.source.quantity, choice.preset)
    # If the key does not say what the values are, only the user's mode does, the formula by which
    # the result follows from them.
    has_times = options.model_mode in {*STEP_TIME_MODES, Mode.EPOCH_TIME}
    return reader.make_sample(Quantity("step_time" if has_times else "speed"))


def _note_units(
    extraction: _Extraction, quantity: Quantity, options: Options, *, has_preset: bool
) -> None:
    """Add notes about units of times that the key names and the options leave out.

    Args:
        extraction: has the notes.
        quantity: of the times. Its ``time_unit_s`` is the length of the unit in seconds, 0.001 of
            milliseconds, and ``num_steps`` is how many steps a time covers.
        has_preset: the log is in a known format, whose unit is known and is converted to seconds.
    """
    if quantity.time_unit_s != 1.0 and options.time_unit is None and not has_preset:
        unit = "ms" if quantity.time_unit_s == 1e-3 else f"{quantity.time_unit_s:g} s"
        extraction.notes.append(
            f"the log counts in {unit}, but time_unit=s is assumed: set time_unit"
        )
    if quantity.num_steps > 1 and options.steps_per_value is None:
        extraction.notes.append(
            f"each value is the time of {quantity.num_steps} steps, as its key says"
        )


def _read_best_speed(log: str, options: Options) -> _Extraction:
    """Return the values of the best speed of a log, in the preset that the user names or in any.

    A preset is a known log format. If the log has no speed, the returned object says why.

    Args:
        log: a path; ``-`` is standard input.
        options: of the user, who gives no keyword.
    """
    preset = options.preset or AUTO  # AUTO: any preset
    reader = LogReader(preset, options.skip_steps, options.keyword_loss)
    reader.read(read_numbered_lines(log))
    is_event_preset = preset in MARK_OF_PRESET  # that of logs of events, such as MLPerf's
    event_speed = None  # none, or only other log formats are wanted
    if is_event_preset or preset == AUTO:
        event_speed = read_event_speed(reader.event_runs, preset)
    # With `auto`, events without a speed do not end the search: other lines may have one.
    if is_event_preset or (event_speed is not None and event_speed.sample is not None):
        return _extract_event_speed(event_speed, preset)
    choice = choose_speed(reader, options)  # its sample is the values of the speed; None: no speed
    # ``PRESETS`` has the formats of known trainers. If none of them is chosen, ``choice.preset`` is
    # ``PLAIN`` or empty. The key is then empty, which stands for the main loss.
    loss_key = PRESETS[choice.preset].loss if choice.preset in PRESETS else ""
    loss = reader.wanted_loss if options.keyword_loss else reader.last_loss_of.get(loss_key)
    extraction = _Extraction(
        choice.preset, choice.sample, loss, others=choice.others, devices=choice.devices
    )
    if reader.context.resumed_at:
        line = reader.context.resumed_at
        extraction.notes.append(f"line {line} says that the run resumed from a checkpoint")
    if choice.sample is not None:
        # Notes on trainers that print their speed only at the end, if the log lacks that line.
        extraction.notes += choice.missing_closings
        extraction.num_malformed = choice.sample.num_malformed
        extraction.first_malformed_text = choice.sample.first_malformed_text
        return extraction
    _describe_readings(extraction, reader, preset)
    extraction.reason = _explain_missing_speed(choice, preset)
    extraction.advice = _advise(reader, choice, has_events=event_speed is not None)
    # If the reason is not that several speeds are equally good (``ambiguous``), all values may be
    # skipped. That is so if there is a sample when none is skipped.
    if options.skip_steps and not choice.ambiguous:
        unskipped = choose_speed(reader, options.model_copy(update={"skip_steps": 0}))
        if unskipped.sample is not None:
            _blame_skipping(extraction, options.skip_steps, len(unskipped.sample.values))
    return extraction


def _describe_readings(extraction: _Extraction, reader: LogReader, preset: str) -> None:
    """Set the numbers of malformed lines and of values of a log in which no speed was chosen.

    They are the malformed lines of the first key that has some, and the most values that any key
    has. A line is malformed if no number stands behind the key. If the user names a preset, only
    its keys count.

    Args:
        reader: its ``readings`` are all values of each key.
        preset: the known log format that the user names; AUTO: any.
    """
    readings_of_preset = [
        readings for key, readings in reader.readings.items() if preset in (AUTO, key.preset)
    ]
    for readings in readings_of_preset:
        if readings.num_malformed:
            extraction.num_malformed = readings.num_malformed
            line = readings.first_malformed_line
            extraction.first_malformed_text = f"line {line}: {readings.first_malformed_text}"
            break
    extraction.num_values = max((x.num_lines for x in readings_of_preset), default=0)


def _blame_skipping(extraction: _Extraction, skip_steps: int, num_values: int) -> None:
    """Say that there is no result because all values of the speed are skipped.

    Args:
        num_values: number of values that are skipped.
    """
    extraction.num_values = num_values
    extraction.num_skipped = num_values
    extraction.reason = f"skip_steps={skip_steps} skips all values"
    extraction.advice = "use a smaller skip_steps, or the log of a longer run"


def _extract_event_speed(event_speed: EventSpeed | None, preset: str) -> _Extraction:
    """Return the speed of a log of events.

    Args:
        event_speed: what the events say; None: the log has no events, although the user named the
            preset of such logs.
        preset: that the user named.
    """
    if event_speed is None:
        advice = "choose a log that has them"
        return _Extraction(preset, reason=f"no {MARK_OF_PRESET[preset]} lines", advice=advice)
    extraction = _Extraction(
        event_speed.preset,
        event_speed.sample,
        event_speed.loss,
        devices=event_speed.devices,
        has_failed=event_speed.has_failed,
        notes=event_speed.notes,
    )
    if event_speed.sample is None:  # the events give no speed
        extraction.reason = "no run has samples with times"
        extraction.advice = "`trainmark import` reads the other figures of this log"
    return extraction


def _explain_missing_speed(choice: Choice, preset: str) -> str:
    """Return why no speed was found.

    Args:
        choice: its ``missing_closings`` are notes on trainers that print their speed only at the
            end, if the log lacks that line or the line gives no speed. Its ``ambiguous`` are the
            values of keys that are equally good but differ.
        preset: the known log format that the user names; AUTO: any.
    """
    if choice.missing_closings:
        return "no speed found: " + "; ".join(choice.missing_closings)
    if choice.ambiguous:
        keys = [f"{x.source.name} ({x.mean:g})" for x in choice.ambiguous[:_MAX_SHOWN_KEYS]]
        return f"no unique speed: several keys could be the speed: {', '.join(keys)}"
    if preset != AUTO:
        return f"no value with preset {preset}"
    return "unknown log format"


def _advise(reader: LogReader, choice: Choice, *, has_events: bool) -> str:
    """Return what the user can do with a log that has no known speed.

    Args:
        reader: has counted how often each key of a number stands in the first lines, and has the
            last value of each.
        choice: its ``ambiguous`` are keys that could equally well be the speed but differ; its
            ``missing_closings`` are notes on trainers that print their speed only at the end.
        has_events: the log has events, none of whose runs has a speed.
    """
    # The file may be a table of results instead of a log: it has several speeds, too.
    if choice.ambiguous:
        return "choose one with keyword=TEXT; `trainmark import` reads tables of results"
    if has_events:
        return "`trainmark import` reads the figures of these events"
    # The trainer prints its speed only at the end of a run. This log lacks that line, or the line
    # is of a resumed run and gives no speed.
    if choice.missing_closings:
        return "use the log of a whole run, or set keyword=TEXT of a value in it"
    advice = "set keyword=TEXT, as written before the value in the log"
    # Keys that stand on several lines; if there are none, all of them.
    repeated_keys = [key for key, count in reader.key_counts.most_common() if count > 1]
    shown_keys = (repeated_keys or list(reader.key_counts))[:_MAX_SHOWN_KEYS]
    if not shown_keys:
        return advice
    descriptions = [
        f"{key} ({reader.key_counts[key]} times, last {reader.last_value_of[key]:g})"
        for key in shown_keys
    ]
    return f"numeric keys in the log: {', '.join(descriptions)}; {advice}"


def _describe_missing_value(extraction: _Extraction) -> str:
    """Return why there is no value, and what the user can do."""
    counts = f"values: {extraction.num_values}, malformed lines: {extraction.num_malformed}"
    return f"{extraction.reason}: {counts}; {extraction.advice}"


def _collect_figures(sample: Sample, result: Result) -> dict[str, Any]:
    """Return the figures of the values and of the result.

    Args:
        sample: the values that count; ``num_left_out`` counts those that do not because they
            include other work than training, and ``weighted_by`` says how the mean is weighted.
        result: computed from the mean of the values; ``how`` is the formula as text.
    """
    percentiles = np.percentile(sample.values, list(PERCENTILES.values())).tolist()
    return {
        "values": len(sample.values),
        "values_skipped": sample.num_skipped,
        "values_left_out": sample.num_left_out,
        "first_value": sample.first_text or None,
        "read_from": sample.source.name,
        "mean": sample.mean,
        "mean_by": sample.weighted_by,
        **dict(zip(PERCENTILES, percentiles, strict=True)),
        "batch": result.batch,
        "how": result.how,
        "result": result.value,
        "result_of_median": result.apply_to_mean(float(np.median(sample.values))),
        "unit": result.unit,
        # Whose speed it is: that of a ``device``, a ``node`` or the ``job``; None: the log does not
        # say, or the values are not speeds.
        "scope": sample.source.quantity.scope or None,
    }


def _add_notes(extraction: _Extraction, sample: Sample, result: Result, options: Options) -> None:
    """Add notes about the values and the result that the user must know.

    Args:
        extraction: has the notes, and the number of devices that the log shows.
        sample: the values that count; ``batches`` are batch sizes printed with them, and
            ``weights`` the seconds that each covers. Both are empty if the log has none.
        result: computed from the mean of the values.
    """
    notes = extraction.notes
    notes += sample.notes  # in place: the figures already hold this list
    if len(sample.batches) and options.base_batch_size is None:
        notes.append(f"global batch size {result.batch:g}, the mean in the log")
    if sample.mean_of_all is not None:  # values were left out or corrected
        result_of_all = result.apply_to_mean(sample.mean_of_all)
        notes.append(
            f"with all values included, the result would be {result_of_all:g} {result.unit}"
        )
    if sample.slow.num_values:  # values that took far longer than usual
        result_of_median = result.apply_to_mean(float(np.median(sample.values)))
        notes.append(
            f"{sample.slow.num_values} of {len(sample.values)} values are more than twice "
            f"the median and account for {sample.slow.time_share:.0%} of the time: they may "
            "include an evaluation, a checkpoint or a warm-up; with the median, the result "
            f"would be {result_of_median:g} {result.unit}"
        )
    mean_by_value = float(sample.values.mean())  # in which each value has the same weight
    # A difference of less than 0.1% needs no note.
    if len(sample.weights) and not math.isclose(sample.mean, mean_by_value, rel_tol=1e-3):
        result_by_value = result.apply_to_mean(mean_by_value)
        notes.append(f"averaged over values, the result would be {result_by_value:g} {result.unit}")
    _add_note_about_devices(extraction, sample, options)


def _add_note_about_devices(extraction: _Extraction, sample: Sample, options: Options) -> None:
    """Add a note about the number of devices that the result assumes.

    No note is needed if the user gives the number and the log says whose speed it is: then it is
    clear whether the speed is multiplied by the number.

    Args:
        extraction: has the notes; ``devices`` is the number that the log shows; None: not known.
        sample: the values that count.
    """
    notes = extraction.notes
    # Whose speed it is: that of a ``device``, a ``node`` or the ``job``; empty: not known.
    scope = sample.source.quantity.scope
    if scope == "node":
        notes.append(
            "the speed is that of one node; multiply it by the number of nodes for the whole job"
        )
    elif options.gpu_num is None:
        if extraction.devices is not None:
            notes.append(f"gpu_num {extraction.devices}, from the log")
        elif scope == "device":
            notes.append("the speed is that of one device: set gpu_num=N to get that of the job")
        else:
            notes.append("gpu_num 1 is assumed: set gpu_num=N")
    # A speed is not multiplied if it counts as that of the whole job.
    elif options.gpu_num > 1 and not scope and is_of_job(sample, options):
        notes.append(
            "the log does not say whether the speed is that of one device: it is taken as "
            "that of the whole job; model_mode=-1 multiplies it by gpu_num"
        )


def _compare_other_speeds(
    extraction: _Extraction, result: Result, options: Options
) -> list[dict[str, Any]]:
    """Return the other speeds of the log; add a note for each that differs from the result.

    Args:
        extraction: has the notes, and as ``others`` the values of each speed that was not chosen.
        result: of the chosen speed.

    Returns:
        for each, what ``analyze --json`` prints of it.
    """
    # The user's batch size, unit, and mode (the formula of the result) are meant for the chosen
    # speed only; the number of devices and the skipped steps are those of all speeds.
    common_options = Options(gpu_num=options.gpu_num, skip_steps=options.skip_steps)
    others = []
    for sample in extraction.others:
        other = compute_result(sample, common_options, keyword_given=False)
        others.append(
            {
                "preset": sample.source.preset,
                "read_from": sample.source.name,
                "values": len(sample.values),
                "result": other.value,
                "unit": other.unit,
                "is_component": sample.source.is_component,
            }
        )
        # Units are compared in a common form, in which `img/sec` and `samples/s` are equal.
        is_same_unit = normalize_rate_unit(other.unit) == normalize_rate_unit(result.unit)
        differs = abs(other.value - result.value) > _MAX_DIFFERENCE * abs(result.value)
        if is_same_unit and differs:
            # The time of one component of a trainer may lack parts of a step.
            is_component = sample.source.is_component
            reason = "it is the timer of one component" if is_component else "not used"
            extraction.notes.append(
                f"{sample.source.name} ({sample.source.preset}) says {other.value:g} "
                f"{other.unit}, from {len(sample.values)} values: {reason}"
            )
    return others


def _make_record(
    log: str,
    options: Options,
    devices: int | None,
    *,
    loss: float | None,
    result: Result | None,
    failed: bool,
) -> IndexRecord:
    """Return the JSON record; the result of a failed run is 0, as in the public log analyzer.

    The names of its fields are those of that tool. ``index`` is the kind of the figure, such as a
    speed, ``direction_id`` the number of a category such as vision, and ``log_with_profiler`` the
    path of the log of a run under a profiler.

    Args:
        devices: number of devices of the job; None: not known, and taken as one.
        loss: None: not known.
        result: None: the log has no values.
    """
    num_devices = devices or 1
    # A negative speed is no result either: `_judge_run` has judged it as failed.
    value = 0.0 if failed or result is None else result.value
    return IndexRecord(
        log_file=log,
        model_name=options.model_name or Path(log).stem,
        mission_name=options.mission_name,
        direction_id=options.direction_id,
        # "sp": a single device, "mp": several.
        run_mode=options.run_mode or ("sp" if num_devices == 1 else "mp"),
        index=options.index,
        gpu_num=num_devices,
        FINAL_RESULT=value,
        JOB_FAIL_FLAG=get_fail_flag(value, failed=failed),
        UNIT=result.unit if result is not None else "",
        LOSS_RESULT=loss,
        log_with_profiler=options.log_with_profiler,
        profiler_path=options.profiler_path,
    )
