"""Extract figures from training logs that other programs wrote: the record of one case.

A log is read once. Its values come from the user's keyword, from the format of a known trainer, or
from any key that names a speed; those of a log of events come from its runs. The modes of the
public tool compute the result from their mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.errors import UsageError
from trainmark.published.analysis.choice import Choice, choose
from trainmark.published.analysis.event_logs import MARKS, read_event_speed
from trainmark.published.analysis.keywords import KeywordReader
from trainmark.published.analysis.options import AUTO, Options, parse_options
from trainmark.published.analysis.quantities import Quantity, unit_class
from trainmark.published.analysis.readings import LogReader
from trainmark.published.analysis.results import TIME_MODES, compute_result, is_of_job
from trainmark.published.analysis.sources import PRESETS
from trainmark.published.analysis.summary import SHARES, Analysis, summarize
from trainmark.published.log import read_numbered_lines
from trainmark.record.index_record import IndexRecord, get_fail_flag

if TYPE_CHECKING:
    from trainmark.published.analysis.event_logs import EventSpeed
    from trainmark.published.analysis.results import Result
    from trainmark.published.analysis.samples import Sample

__all__ = ["PRESETS", "Analysis", "Options", "analyze", "parse_options", "summarize"]

_MAX_HEAD_LINES = 50_000  # in which a preset is recognised for a keyword of the user
_MAX_DIFFERENCE = 0.1  # of the result; another speed that differs more gets a note
_MAX_KEYS = 8


@dataclass
class _Extraction:
    """The values extracted from a log, and what the reader must know of them.

    Args:
        preset: name of the format; empty: only the user's keyword was used.
        sample: the values that count; None: there are none.
        others: other speeds in the log.
        devices: of the job, by the log; None: not known.
        has_failed: the log says that the run failed.
        reason: why there is no value.
        advice: what the user can do about it.
    """

    preset: str = ""
    sample: Sample | None = None
    loss: float | None = None
    others: list[Sample] = field(default_factory=list)
    devices: int | None = None
    has_failed: bool = False
    malformed: int = 0
    malformed_text: str = ""
    values: int = 0
    notes: list[str] = field(default_factory=list)
    reason: str = ""
    advice: str = ""


def analyze(log: str, options: Options) -> Analysis:
    """Read ``log``, a path or ``-``, once and return its figures; without values it has failed.

    Raises:
        UsageError: for options that do not fit together, or a name that the record does not know.
        DataError: for a log that cannot be read.
    """
    options.check()
    has_keyword = bool(options.keyword) or options.reads_words
    extraction = _read_keyword(log, options) if has_keyword else _read_any(log, options)
    if extraction.preset:
        extraction.notes.insert(0, f"preset {extraction.preset}")
    figures: dict[str, Any] = {
        "log_file": log,
        "preset": extraction.preset or None,
        "values": 0,
        "values_skipped": extraction.values,
        "values_left_out": 0,
        "lines_malformed": extraction.malformed,
        "first_malformed": extraction.malformed_text or None,
        "first_value": None,
        "notes": extraction.notes,
    }
    devices = options.gpu_num or extraction.devices
    sample = extraction.sample
    if sample is None:
        extraction.notes.insert(0, _describe_missing_value(extraction))
        loss = (
            extraction.loss
            if extraction.loss is not None and math.isfinite(extraction.loss)
            else None
        )
        record = _make_record(log, options, devices, loss=loss or 0.0, result=None, failed=True)
        return Analysis(record, figures | {"loss": loss})
    result = compute_result(sample, options, keyword_given=has_keyword)
    figures |= _collect_figures(sample, result)
    _add_notes(extraction, sample, result, options)
    figures["others"] = _compare_other_speeds(extraction, result, options)
    loss, failed = extraction.loss, options.failed or extraction.has_failed
    if loss is not None and not math.isfinite(loss):
        extraction.notes.append(f"the last loss is {loss}: the run diverged, no LOSS_RESULT")
        loss, failed = None, True
    elif loss is None and (failed or result.value <= 0):
        loss = 0.0
    if result.value < 0:
        extraction.notes.append(f"{sample.source.name} is below zero: it is no speed")
        failed = True
    if failed:
        extraction.notes.append(
            f"the run failed: FINAL_RESULT is 0, measured was {result.value:g} {result.unit}"
        )
    record = _make_record(log, options, devices, loss=loss, result=result, failed=failed)
    is_known = extraction.loss is not None and math.isfinite(extraction.loss)
    return Analysis(record, figures | {"loss": extraction.loss if is_known else None})


def _read_keyword(log: str, options: Options) -> _Extraction:
    """Return the values behind the user's keyword; a preset supplies what the user left out."""
    lines = read_numbered_lines(log)
    preset, keyword, quantity = "", options.keyword, None
    if options.preset:
        head = list(islice(lines, _MAX_HEAD_LINES))
        lines = chain(head, lines)
        reader = LogReader(options.preset, 0)
        reader.read(head)
        choice = choose(reader, options.model_copy(update={"skip_steps": 0}))
        preset = choice.preset
        if choice.sample is not None:
            quantity = choice.sample.source.quantity
            keyword = keyword or choice.sample.source.key
    if not keyword and options.position is None:
        fix = "give keyword=TEXT, as in the log"
        raise UsageError("no keyword to look for", where="keyword", fix=fix)
    loss_key = PRESETS[preset].loss if preset in PRESETS else ""
    keyword_reader = KeywordReader(
        keyword=keyword,
        separator=options.separator,
        position=options.position,
        cut=options.range,
        skip=options.skip_steps,
        loss_keyword=options.keyword_loss or loss_key,
    )
    keyword_reader.read(lines)
    is_time = options.model_mode is not None and options.model_mode in {*TIME_MODES, 4}
    unknown = quantity or Quantity("step_time" if is_time else "speed")
    sample = keyword_reader.make_sample(unknown, preset if quantity is not None else "")
    extraction = _Extraction(
        preset, sample, keyword_reader.loss, reason=f"no value with {keyword!r}"
    )
    extraction.malformed = keyword_reader.malformed
    extraction.malformed_text = keyword_reader.malformed_text
    extraction.values = len(keyword_reader.values)
    extraction.advice = "give keyword=TEXT, as it stands before the value in the log"
    if keyword_reader.quantity is not None and keyword_reader.quantity.reads == "step_time":
        _note_units(extraction, keyword_reader.quantity, options, has_preset=bool(preset))
    return extraction


def _note_units(
    extraction: _Extraction, quantity: Quantity, options: Options, *, has_preset: bool
) -> None:
    """Add notes about units that the key names and the options leave out."""
    if quantity.seconds != 1.0 and options.time_unit is None and not has_preset:
        unit = "ms" if quantity.seconds == 1e-3 else f"{quantity.seconds:g} s"
        extraction.notes.append(f"the log counts in {unit}, time_unit=s is assumed: give time_unit")
    if quantity.steps > 1 and options.steps_per_value is None:
        extraction.notes.append(
            f"each value is the time of {quantity.steps} steps, as its key says"
        )


def _read_any(log: str, options: Options) -> _Extraction:
    """Return the values of the best speed of a log, of the named preset or of any."""
    preset = options.preset or AUTO
    reader = LogReader(preset, options.skip_steps, options.keyword_loss)
    reader.read(read_numbered_lines(log))
    events = None
    if preset in {AUTO, *MARKS}:
        events = read_event_speed(reader.event_runs, preset)
    if preset in MARKS or (events is not None and events.sample is not None):
        return _extract_events(events, preset)
    choice = choose(reader, options)
    loss_key = PRESETS[choice.preset].loss if choice.preset in PRESETS else ""
    loss = reader.wanted_loss if options.keyword_loss else reader.losses.get(loss_key)
    extraction = _Extraction(choice.preset, choice.sample, loss, choice.others, choice.devices)
    if reader.context.resumed_at:
        line = reader.context.resumed_at
        extraction.notes.append(f"line {line} says that the run resumed from a checkpoint")
    if choice.sample is not None:
        extraction.notes += choice.reasons
        extraction.malformed = choice.sample.malformed
        extraction.malformed_text = choice.sample.malformed_text
        return extraction
    malformed = [x for x in reader.readings.values() if x.malformed]
    if malformed:
        extraction.malformed = malformed[0].malformed
        text = malformed[0].malformed_text
        extraction.malformed_text = f"line {malformed[0].malformed_line}: {text}"
    extraction.values = max((x.lines for x in reader.readings.values()), default=0)
    extraction.reason = _reason(choice, preset)
    extraction.advice = _advice(reader, choice, has_events=events is not None)
    return extraction


def _extract_events(events: EventSpeed | None, preset: str) -> _Extraction:
    """Return the speed of a log of events."""
    if events is None:
        advice = "name the log that has them"
        return _Extraction(preset, reason=f"no {MARKS[preset]} lines", advice=advice)
    extraction = _Extraction(
        events.preset,
        events.sample,
        events.loss,
        devices=events.devices,
        has_failed=events.has_failed,
        notes=events.notes,
    )
    if events.sample is None:
        extraction.reason = "no run has samples with times"
        extraction.advice = "`trainmark import` reads its other figures"
    return extraction


def _reason(choice: Choice, preset: str) -> str:
    """Return why no speed was found."""
    if choice.reasons:
        return "no speed: " + "; ".join(choice.reasons)
    if choice.ambiguous:
        keys = [f"{x.source.name} ({x.mean:g})" for x in choice.ambiguous[:_MAX_KEYS]]
        return f"no single speed: several keys may be it: {', '.join(keys)}"
    if preset != AUTO:
        return f"no value with preset {preset}"
    return "no known log format recognised"


def _advice(reader: LogReader, choice: Choice, *, has_events: bool) -> str:
    """Return what the user can do with a log without a known speed."""
    if choice.ambiguous:
        return "name one with keyword=TEXT; `trainmark import` reads tables of results"
    if has_events:
        return "`trainmark import` reads the figures of its events"
    if choice.reasons:
        return "give the log of a whole run, or keyword=TEXT of a value in it"
    repeated = [key for key, count in reader.keys.most_common() if count > 1]
    shown = (repeated or list(reader.keys))[:_MAX_KEYS]
    keys = ", ".join(
        f"{key} ({reader.keys[key]} times, last {reader.last_value_of[key]:g})" for key in shown
    )
    numeric = f"numeric keys in the log: {keys}; " if keys else ""
    return f"{numeric}give keyword=TEXT, as it stands before the value in the log"


def _describe_missing_value(extraction: _Extraction) -> str:
    """Return why there is no value, and what the user can do."""
    counts = f"{extraction.values} values and {extraction.malformed} malformed lines"
    return f"{extraction.reason}: {counts}; {extraction.advice}"


def _collect_figures(sample: Sample, result: Result) -> dict[str, Any]:
    """Return the figures of the values and of the result."""
    shares = np.percentile(sample.values, [*SHARES.values()]).tolist()
    return {
        "values": len(sample.values),
        "values_skipped": sample.skipped,
        "values_left_out": sample.left_out,
        "first_value": sample.first_text or None,
        "read_from": sample.source.name,
        "mean": sample.mean,
        "mean_by": sample.weighted_by,
        **dict(zip(SHARES, shares, strict=True)),
        "batch": result.batch,
        "how": result.how,
        "result": result.value,
        "result_of_median": result.of_mean(float(np.median(sample.values))),
        "unit": result.unit,
        "scope": sample.source.quantity.scope or None,
    }


def _add_notes(extraction: _Extraction, sample: Sample, result: Result, options: Options) -> None:
    """Add notes about the values and the result that the user must know."""
    notes = extraction.notes
    notes += sample.notes
    if len(sample.batches) and options.base_batch_size is None:
        notes.append(f"global batch size {result.batch:g}, the mean in the log")
    if sample.mean_of_all is not None:
        all_values = result.of_mean(sample.mean_of_all)
        notes.append(f"with the whole of all values it would be {all_values:g} {result.unit}")
    count, share = sample.slow
    if count:
        of_median = result.of_mean(float(np.median(sample.values)))
        notes.append(
            f"{count} of {len(sample.values)} values are over twice the median and make "
            f"{share:.0%} of the time: they may hold an evaluation, a checkpoint or a warm-up; "
            f"with the median the result is {of_median:g} {result.unit}"
        )
    if len(sample.weights) and not math.isclose(
        sample.mean, float(sample.values.mean()), rel_tol=1e-3
    ):
        by_value = result.of_mean(float(sample.values.mean()))
        notes.append(f"averaged by value the result would be {by_value:g} {result.unit}")
    if sample.source.quantity.scope == "node":
        notes.append("the speed is of one node: that of the job is as many times as much")
    elif options.gpu_num is None:
        if extraction.devices is not None:
            notes.append(f"gpu_num {extraction.devices}, as the log says")
        elif sample.source.quantity.scope == "device":
            notes.append("the speed is of one device: give gpu_num=N for that of the job")
        else:
            notes.append("gpu_num 1 assumed: give gpu_num=N")
    elif options.gpu_num > 1 and not sample.source.quantity.scope and is_of_job(sample, options):
        notes.append(
            "the log does not say whether the speed is of one device: it is taken as the job's; "
            "model_mode=-1 multiplies it by gpu_num"
        )


def _compare_other_speeds(
    extraction: _Extraction, result: Result, options: Options
) -> list[dict[str, Any]]:
    """Return the other speeds of the log; add a note for each that differs from the result."""
    plain = Options(gpu_num=options.gpu_num, skip_steps=options.skip_steps)
    others = []
    for sample in extraction.others:
        other = compute_result(sample, plain, keyword_given=False)
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
        is_same_unit = unit_class(other.unit) == unit_class(result.unit)
        differs = abs(other.value - result.value) > _MAX_DIFFERENCE * abs(result.value)
        if is_same_unit and differs:
            why = "the timer of one component" if sample.source.is_component else "not used"
            extraction.notes.append(
                f"{sample.source.name} ({sample.source.preset}) says {other.value:g} "
                f"{other.unit}, from {len(sample.values)} values: {why}"
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
    """Return the JSON record; that of a failed log has 0, which is the public tool's default."""
    count = devices or 1
    value = 0.0 if failed or result is None else result.value
    return IndexRecord(
        log_file=log,
        model_name=options.model_name or Path(log).stem,
        mission_name=options.mission_name,
        direction_id=options.direction_id,
        run_mode=options.run_mode or ("sp" if count == 1 else "mp"),
        index=options.index,
        gpu_num=count,
        FINAL_RESULT=value,
        JOB_FAIL_FLAG=get_fail_flag(value, failed=failed),
        UNIT=result.unit if result is not None else "",
        LOSS_RESULT=loss,
        log_with_profiler=options.log_with_profiler,
        profiler_path=options.profiler_path,
    )
