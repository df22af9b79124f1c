"""Extract figures from training logs that other programs wrote: the record of one case.

Owns the public tool's modes, which mode, batch and unit follow from options, preset and log, and
the logs of well-known trainers (``analysis.toml``).
"""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le
from pydantic import TypeAdapter, ValidationError

from trainmark.data.documents import Frozen, usage_error
from trainmark.errors import UsageError, nearest
from trainmark.library import log as logs
from trainmark.record.index_record import IndexRecord, fail_flag, rounded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.library.log import Values

AUTO = "auto"
_PLAIN = "plain"  # the preset of no trainer
_HEAD_LINES = 50_000  # in which a preset is recognised
_MODES = {
    -2: ("batch x devices / mean", ""),
    -1: ("devices x mean", ""),
    0: ("batch x devices / mean", "samples/s"),
    1: ("mean", "steps/s"),
    2: ("1 / mean", "steps/s"),
    3: ("batch x devices x mean", "samples/s"),
    4: ("mean", "s/epoch"),
}  # by number: formula and unit of the result; empty: the log's
_MODE_OF = {"step_time": (2, -2), "steps": (1, 3), "speed": (-1, -1)}  # without, with a batch
_LARGEST = {2, 6}  # an index of memory or batch: the result is the largest value
_SHARES = {"min": 0, "p50": 50, "p90": 90, "p99": 99, "max": 100}
Count = Annotated[int, Ge(1), Le(10**15)]  # below it floats count exactly


class Form(Frozen):
    """One way in which a trainer prints its speed; ``analysis.toml`` says what a field is."""

    keyword: str = ""
    reads: Literal["step_time", "steps", "speed", ""] = ""
    time_unit: str = "s"
    per_device: bool = False
    unit: str | None = None
    batch: str = ""
    loss: str = ""


class Preset(Frozen):
    """A trainer's log; ``analysis.toml`` says what a field is."""

    signature: str
    sample: str
    forms: tuple[Form, ...]


PRESETS = TypeAdapter(dict[str, Preset]).validate_python(
    tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
)


class Options(Frozen):
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
    try:
        return Options.model_validate(values)
    except ValidationError as error:
        raise usage_error(error, Options, "") from None


@dataclass(frozen=True, slots=True)
class Analysis:
    """A log's record, and all its figures by name: values are in the log's own unit."""

    record: IndexRecord
    figures: dict[str, Any]


def analyze(log: str, said: Options) -> Analysis:
    """Read ``log``, a path or ``-``, once and return its figures; without values it has failed.

    Raises:
        UsageError: for options that do not fit together, or a name that the record does not know.
        DataError: for a log that cannot be read.
    """
    if said.preset not in {None, AUTO, *PRESETS}:
        remedy = nearest(str(said.preset), [*PRESETS, AUTO])
        raise UsageError(f"no preset {said.preset!r}", where="preset", remedy=remedy)
    if not (said.keyword or said.preset):
        remedy = "give keyword=TEXT, as in the log, or preset=auto"
        raise UsageError("no keyword to look for", where="keyword", remedy=remedy)
    found = _read(log, said)
    values, notes, loss = np.frombuffer(found.values)[said.skip_steps :], found.notes, found.loss
    figures: dict[str, Any] = {
        "log_file": log, "values": len(values), "values_skipped": len(found.values) - len(values),
        "lines_malformed": found.malformed,
        "first_malformed": f"line {found.malformed_at}: {found.first_malformed[:300]}"
        if found.malformed else None,
        "first_value": found.first or None, "notes": notes,
    }  # fmt: skip
    result, unit, failed = 0.0, said.ips_unit or "", said.failed
    if len(values):
        how, result, unit, batch = _result(values, found, said)
        shares = np.percentile(values, [*_SHARES.values()]).tolist()
        figures |= {"mean": float(values.mean()), **dict(zip(_SHARES, shares, strict=True))}
        figures |= {"batch": batch, "how": how, "result": result, "unit": unit}
        if said.gpu_num is None:
            notes.append("gpu_num 1 assumed: give gpu_num=N")
        if loss is not None and not math.isfinite(loss):
            notes.append(f"the last loss is {loss}: the run diverged, no LOSS_RESULT")
            loss, failed = None, True
        if failed:
            notes.append(f"the run failed: FINAL_RESULT is 0, measured was {result:g} {unit}")
    else:
        lines = f"{len(found.values)} values and {found.malformed} malformed lines"
        way_out = "give keyword=TEXT, as stands before the value in the log; for [PerfLog] and "
        way_out += ":::MLLOG lines `trainmark import`"
        looked = found.keyword or "a keyword of any preset"
        notes.insert(0, f"no value with {looked!r}: {lines}; {way_out}")
        loss, failed = None, True
    devices = said.gpu_num or 1
    record = IndexRecord(
        log_file=log,
        model_name=said.model_name or Path(log).stem,
        mission_name=said.mission_name,
        direction_id=said.direction_id,
        run_mode=said.run_mode or ("sp" if devices == 1 else "mp"),
        index=said.index,
        gpu_num=devices,
        FINAL_RESULT=0.0 if failed else result,
        JOB_FAIL_FLAG=fail_flag(result, failed=failed),
        UNIT=unit,
        LOSS_RESULT=loss,
        log_with_profiler=said.log_with_profiler,
        profiler_path=said.profiler_path,
    )
    return Analysis(record, figures | {"loss": loss})


def _read(log: str, said: Options) -> Values:
    """Return the values of a log, and what its preset says of them."""
    source = logs.lines(log)
    head = list(islice(source, _HEAD_LINES)) if said.preset else []
    name, form = _chosen(said.preset, "".join(head)) if said.preset else ("", Form())
    found = logs.Values(
        keyword=said.keyword or form.keyword, skip=said.skip_steps, reads=form.reads,
        time_unit=form.time_unit, whole_job=not form.per_device,
        unit=None if said.keyword else form.unit, notes=[f"preset {name}"] if name else [],
    )  # fmt: skip
    source = chain(head, source)
    if said.separator or said.position is not None or said.range:
        found.read_words(source, said.separator, said.position, said.range)
    elif found.keyword:
        batch = "" if said.keyword or said.base_batch_size else form.batch
        found.read(source, batch, said.keyword_loss or form.loss)
    return found


def _chosen(name: str, head: str) -> tuple[str, Form]:
    """Return the preset, and its form, of most lines with which a log begins; empty: of no line.

    Args:
        name: of the preset, or ``auto``.
    """
    wanted = PRESETS if name == AUTO else [name]
    counts = {one: len(re.findall(PRESETS[one].signature, head)) for one in wanted}
    # The one of no trainer fits lines of many, and counts where no other does.
    best = max(counts, key=lambda one: (counts[one] > 0, one != _PLAIN, counts[one]))
    if not counts[best]:
        return "", Form()
    forms = PRESETS[best].forms
    told = (one for one in forms if one.keyword in head and one.batch in head)
    return best, next(told, forms[0])


def _result(
    values: np.ndarray[Any, Any], found: Values, said: Options
) -> tuple[str, float, str, float | None]:
    """Return how the result follows from the values, itself, its unit, and the batch size.

    What is said comes first, then what preset and log know.
    """
    batch: float | None = said.base_batch_size
    of_log = batch is None and len(found.batches) == len(found.values)
    if of_log:  # all samples over all seconds stays exact
        batch = float(np.mean(found.batches[said.skip_steps :]))
        found.notes.append(f"global batch size {batch:g}, the mean in the log")
    if said.index != 1:
        name, value = (
            ("largest", values.max()) if said.index in _LARGEST else ("mean", values.mean())
        )
        how = f"the {name} of the log's values, as it is"
        return how, rounded(float(value)), said.ips_unit or "", batch
    own = _MODE_OF[found.reads][batch is not None] if found.reads else -1
    mode = own if said.model_mode is None else said.model_mode
    formula, unit = _MODES[mode]
    if batch is None and "batch" in formula:
        rule, remedy = f"mode {mode} is {formula}", "give base_batch_size=N, of one device"
        raise UsageError("no batch size", where="base_batch_size", rule=rule, remedy=remedy)
    whole_job = found.reads == "speed" and found.whole_job and said.model_mode is None
    devices = 1 if of_log or whole_job else said.gpu_num or 1
    factor = 1.0
    if batch is not None and "batch" in formula:
        factor *= batch
    if "devices" in formula:
        factor *= devices
    mean = float(values.mean()) / (1000 if (said.time_unit or found.time_unit) == "ms" else 1)
    result = factor * mean if "/" not in formula else factor / mean if mean else 0.0
    unit = unit or _unit(found.unit if mode == -1 else "samples/s" * of_log, mode, said)
    return f"mode {mode}: {formula}", rounded(result), unit, batch


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
