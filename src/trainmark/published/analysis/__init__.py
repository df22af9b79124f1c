"""Extract figures from training logs that other programs wrote, and make the record of one case.

A log is read once. Its values stand behind the user's keyword, in the format of a known trainer, or
behind any key that names a speed; a log of events has them in its runs. The result is computed from
their mean by a mode of the public tool: the published log analyzer of training benchmarks, whose
options, modes and record this package keeps.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.published.analysis.extraction import (
    Extraction,
    describe_missing_value,
    read_best_speed,
    read_keyword,
)
from trainmark.published.analysis.options import Options, parse_options
from trainmark.published.analysis.quantities import normalize_rate_unit
from trainmark.published.analysis.results import compute_result, is_of_job
from trainmark.published.analysis.sources import PRESETS
from trainmark.published.analysis.summary import PERCENTILES, Analysis, summarize
from trainmark.published.log import describe_value_count, require_log
from trainmark.record.index_record import IndexRecord, get_fail_flag

if TYPE_CHECKING:
    from trainmark.published.analysis.results import Result
    from trainmark.published.analysis.samples import Sample

__all__ = ["PRESETS", "Analysis", "Options", "analyze", "parse_options", "summarize"]

_MAX_DIFFERENCE = 0.1  # relative to the result; another speed that differs more gets a note


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
    require_log(log)  # first, because a log that is missing is named before an option is
    options.check()  # raises a UsageError
    # The user says where the value of a line stands: behind a keyword, or as a word at a position
    # (``reads_words``). ``read_keyword`` reads both; without either, the speed is searched for.
    has_keyword = bool(options.keyword) or options.reads_words
    # The values of the log with its last loss, its number of devices and notes for the user.
    extraction = read_keyword(log, options) if has_keyword else read_best_speed(log, options)
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
        extraction.notes.insert(0, describe_missing_value(extraction))
        # As in the public tool that docs/analyze.md refers to, the record of a failed run has a
        # loss in any case; 0: the log has none.
        loss = 0.0 if finite_loss is None else finite_loss
        record = _make_record(log, options, devices, loss=loss, result=None, failed=True)
        return Analysis(record, figures | {"loss": finite_loss})
    result = compute_result(sample, options, keyword_given=has_keyword)
    figures |= _collect_figures(sample, result)
    _add_notes(extraction, sample, result, options)
    figures["others"] = _compare_other_speeds(extraction, result, options)
    failed = _judge_run(extraction, sample, result, options)
    recorded_loss = finite_loss  # None: there is no loss, or it is not finite
    # Here too, the record of a failed run has a loss. A run with a result of 0 has failed.
    if extraction.loss is None and (failed or result.value <= 0):
        recorded_loss = 0.0
    record = _make_record(log, options, devices, loss=recorded_loss, result=result, failed=failed)
    return Analysis(record, figures | {"loss": finite_loss})


def _judge_run(extraction: Extraction, sample: Sample, result: Result, options: Options) -> bool:
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


def _add_notes(extraction: Extraction, sample: Sample, result: Result, options: Options) -> None:
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


def _add_note_about_devices(extraction: Extraction, sample: Sample, options: Options) -> None:
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
            notes.append(
                "the speed is that of one device; set gpu_num=N to get the speed of the job"
            )
        else:
            notes.append("gpu_num=1 is assumed; set gpu_num=N")
    # A speed is not multiplied if it counts as that of the whole job.
    elif options.gpu_num > 1 and not scope and is_of_job(sample, options):
        notes.append(
            "the log does not show whether the speed is that of one device, so it is treated as "
            "the speed of the whole job; model_mode=-1 multiplies it by gpu_num"
        )


def _compare_other_speeds(
    extraction: Extraction, result: Result, options: Options
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
                f"{sample.source.name} ({sample.source.preset}) reports {other.value:g} "
                f"{other.unit}, from {describe_value_count(len(sample.values))}: {reason}"
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
