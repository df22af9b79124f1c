"""Compute the figures and the record of one case from a log and options.

Owns the public tool's modes, and which mode, batch and unit follow from options, preset and log.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le
from pydantic import TypeAdapter, ValidationError

from trainmark.errors import UsageError, nearest
from trainmark.library.analysis import log as logs
from trainmark.library.analysis.events import MARKS, EventValues
from trainmark.library.analysis.presets import AUTO, PRESETS, choose
from trainmark.record.index_record import IndexRecord, fail_flag, rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainmark.library.analysis.log import Values

_HEAD_BLOCKS = 8  # in which a preset is recognised
_MODES: dict[int, tuple[str, str, Callable[[float, float, int], float]]] = {
    -2: ("batch x devices / mean", "", lambda mean, batch, devices: batch * devices / mean),
    -1: ("devices x mean", "", lambda mean, _, devices: devices * mean),
    0: ("batch x devices / mean", "samples/s", lambda mean, batch, devices: batch * devices / mean),
    1: ("mean", "steps/s", lambda mean, *_: mean),
    2: ("1 / mean", "steps/s", lambda mean, *_: 1 / mean),
    3: ("batch x devices x mean", "samples/s", lambda mean, batch, devices: batch * devices * mean),
    4: ("mean", "s/epoch", lambda mean, *_: mean),
}  # by number: formula, unit of the result (empty: the log's), and the formula as a function
_MODE_OF = {"step_time": (2, -2), "steps": (1, 3), "speed": (-1, -1)}  # without, with a batch
_LARGEST = {2, 6}  # an index of memory or batch: the result is the largest value
_SHARES = {"min": 0, "p50": 50, "p90": 90, "p99": 99, "max": 100}
Count = Annotated[int, Ge(1), Le(10**15)]  # below it floats count exactly


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user says, by the public tool's names; None: the log or the preset says it."""

    keyword: str = ""
    separator: str = ""
    position: int | None = None
    range: str = ""
    base_batch_size: Count | None = None
    skip_steps: Annotated[int, Ge(0)] = 0
    model_mode: Annotated[int, Ge(-2), Le(4)] | None = None
    ips_unit: str | None = None
    time_unit: Literal["s", "ms"] | None = None
    gpu_num: Count | None = None
    run_mode: Literal["sp", "mp"] | None = None
    model_name: str | None = None
    mission_name: str = ""
    direction_id: int = 0
    index: int = 1
    keyword_loss: str = ""
    log_with_profiler: str | None = None
    profiler_path: str | None = None
    preset: str | None = None
    failed: bool = False


def options(values: Mapping[str, str]) -> Options:
    """Return the options that words say.

    Raises:
        UsageError: an unknown key, or a value outside its type or bounds.
    """
    known = Options.__dataclass_fields__
    for name in values:
        if name not in known:
            raise UsageError(f"unknown key {name!r}", remedy=nearest(name, known))
    kind: Any = Options  # mypy takes a dataclass's hash for that of its class
    try:
        found: Options = TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what, key = f"{first['input']!r} does not fit", str(first["loc"][0])
        raise UsageError(what, where=key, rule=first["msg"]) from None
    return found


@dataclass(frozen=True, slots=True)
class Analysis:
    """A log's record, and all its figures by name: values are in the log's own unit."""

    record: IndexRecord
    figures: dict[str, Any]


def analyze(log: str, said: Options) -> Analysis:
    """Read ``log``, a path or ``-``, once and return its figures; without values it has failed.

    Raises:
        UsageError: for options that do not fit together.
        DataError: for a log that cannot be read.
    """
    if said.preset not in {None, AUTO, *PRESETS}:
        remedy = nearest(str(said.preset), [*PRESETS, AUTO])
        raise UsageError(f"no preset {said.preset!r}", where="preset", remedy=remedy)
    if not (said.keyword or said.preset) or "\n" in said.keyword:
        remedy = "give keyword=TEXT, as in the log, or preset=auto"
        raise UsageError("no keyword to look for", where="keyword", remedy=remedy)
    found = _read(log, said)
    if len(found.values) > said.skip_steps:
        return _computed(log, found, said)
    lines = f"{len(found.values)} values and {found.malformed} malformed lines"
    notes = [f"no value with {found.keyword or 'a keyword of any preset'!r}: {lines}", *found.notes]
    record = _record(said, log, 0.0, said.ips_unit or "", None, failed=True)
    return Analysis(record, _figures(record, found, {"notes": notes}))


def _read(log: str, said: Options) -> Values:
    """Return the values of a log, and what its preset says of them."""
    source = logs.blocks(log)
    head = list(islice(source, _HEAD_BLOCKS)) if said.preset else []
    chosen = choose(said.preset, b"".join(head).decode("utf-8", "replace")) if said.preset else None
    preset, form = chosen or (None, None)
    notes, source = [f"preset {preset.name}"] if preset else [], chain(head, source)
    if preset and form is None:
        events = EventValues(keyword=MARKS[preset.name], skip=said.skip_steps, notes=notes)
        for number, line in logs.lines(source, events.keyword):
            events.feed(number, line)
        return events
    keyword = said.keyword or (form.keyword if form else "")
    found = logs.Values(keyword=keyword, skip=said.skip_steps, notes=notes)
    batch, loss = "", said.keyword_loss
    if form is not None:
        found.reads, found.time_unit = form.reads, form.time_unit
        found.whole_job, loss = not form.per_device, loss or form.loss
        if not said.keyword:
            batch, found.unit = form.batch * (said.base_batch_size is None), form.unit
    if said.separator or said.position is not None or said.range:
        found.read_words(source, said.separator, said.position, said.range)
    elif keyword:
        found.read(source, batch, loss)
    return found


def _computed(log: str, found: Values, said: Options) -> Analysis:
    """Choose mode, batch and units: what is said first, then what preset and log know."""
    values = np.frombuffer(found.values)[said.skip_steps :]
    mean, largest, notes = float(values.mean()), float(values.max()), found.notes
    batch: float | None = said.base_batch_size
    of_log = batch is None and len(found.batches) == len(found.values)
    if of_log:  # all samples over all seconds stays exact
        batch = float(np.mean(found.batches[said.skip_steps :]))
        notes.append(f"global batch size {batch:g}, the mean in the log")
    own = _MODE_OF[found.reads][batch is not None] if found.reads else -1
    mode = own if said.model_mode is None else said.model_mode
    of_speed = found.reads == "speed" and found.whole_job and said.model_mode is None
    devices = 1 if of_log or of_speed else said.gpu_num or 1
    time_unit = said.time_unit or found.time_unit
    if said.index == 1:
        formula, unit, compute = _MODES[mode]
        if batch is None and "batch" in formula:
            rule, remedy = f"mode {mode} is {formula}", "give base_batch_size=N, of one device"
            raise UsageError("no batch size", where="base_batch_size", rule=rule, remedy=remedy)
        unit = unit or _unit(found.unit if mode == -1 else "samples/s" * of_log, mode, said)
        base = mean / 1000 if time_unit == "ms" else mean
        result = compute(base, batch or 0.0, devices) if base else 0.0
        how = f"mode {mode}: {formula}"
    else:
        statistic, result = ("largest", largest) if said.index in _LARGEST else ("mean", mean)
        how, unit = f"the {statistic} of the log's values, as it is", said.ips_unit or ""
    result = rounded(result)
    if said.gpu_num is None:
        notes.append("gpu_num 1 assumed: give gpu_num=N")
    failed, loss = said.failed or found.failed, found.loss
    if loss is not None and not math.isfinite(loss):
        notes.append(f"the last loss is {loss}: the run diverged, no LOSS_RESULT")
        loss, failed = None, True
    if failed:
        notes.append(f"the run failed: FINAL_RESULT is 0, measured was {result:g} {unit}")
    record = _record(said, log, 0.0 if failed else result, unit, loss, failed=failed)
    shares = np.percentile(values, [*_SHARES.values()], overwrite_input=True)  # in place: many
    own_figures = {
        "mean": mean, **dict(zip(_SHARES, shares.tolist(), strict=True)),
        "batch": batch, "how": how, "result": result, "unit": unit, "loss": loss, "notes": notes,
    }  # fmt: skip
    return Analysis(record, _figures(record, found, own_figures))


def _figures(record: IndexRecord, found: Values, own: dict[str, Any]) -> dict[str, Any]:
    skipped = min(found.skip, len(found.values))
    return {
        "log_file": record.log_file, "values": len(found.values) - skipped,
        "values_skipped": skipped, "lines_malformed": found.malformed,
        "first_malformed": f"line {found.malformed_at}: {found.first_malformed[:300]}"
        if found.malformed else None, "first_value": found.first or None, **own,
    }  # fmt: skip


def _unit(counted: str | None, mode: int, said: Options) -> str:
    """Return the unit of the result; refuse one that would only rename what the log counts."""
    wanted = said.ips_unit
    if wanted and counted and wanted.removesuffix("ec") != counted:
        rule = f"the log counts {counted}, and a unit does not convert them"
        remedy = "leave ips_unit out, or read step times with model_mode=-2 and base_batch_size=N"
        raise UsageError(
            f"{wanted} would rename the result", where="ips_unit", rule=rule, remedy=remedy
        )
    return wanted or counted or ("samples/s" if mode == -2 else "")


def _record(
    said: Options, log: str, result: float, unit: str, loss: float | None, *, failed: bool
) -> IndexRecord:
    """Return the record of ``log`` with a result in ``unit``.

    Raises:
        UsageError: for a name or code that the record does not know.
    """
    devices = said.gpu_num or 1
    return IndexRecord(
        log_file=log,
        model_name=said.model_name or Path(log).stem,
        mission_name=said.mission_name,
        direction_id=said.direction_id,
        run_mode=said.run_mode or ("sp" if devices == 1 else "mp"),
        index=said.index,
        gpu_num=devices,
        FINAL_RESULT=result,
        JOB_FAIL_FLAG=fail_flag(result, failed=failed),
        UNIT=unit,
        LOSS_RESULT=loss,
        log_with_profiler=said.log_with_profiler,
        profiler_path=said.profiler_path,
    )


def text(analysis: Analysis) -> str:
    """Return the summary that a person reads."""
    record, all_ = analysis.record, analysis.figures
    lines = [
        f"{record.log_file}: {all_['values']} values, {all_['values_skipped']} skipped, "
        f"{all_['lines_malformed']} malformed lines"
    ]
    if "mean" in all_:
        lines.append(f"  first value in {all_['first_value']}")
        lines.append("  " + "  ".join(f"{name} {all_[name]:.6g}" for name in ("mean", *_SHARES)))
    if all_["first_malformed"]:
        lines.append(f"  first malformed is {all_['first_malformed']}")
    lines += [f"  note: {note}" for note in all_["notes"]]
    if "how" in all_:
        loss = "" if record.LOSS_RESULT is None else f", loss {record.LOSS_RESULT:g}"
        unit = record.UNIT or "(no unit: give ips_unit)"
        lines.append(f"  result {all_['result']:.12g} {unit} ({all_['how']}){loss}")
    return "\n".join(lines) + (", FAILED" if record.JOB_FAIL_FLAG else "")
