"""What the user says about a log, and the part of the record that follows from it alone.

Owns the options, their checks and the names and codes of the record. Must not know how
logs are read.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from trainmark.errors import UsageError, nearest
from trainmark.library.analysis import modes
from trainmark.library.analysis.events import READERS
from trainmark.library.analysis.numbers import LARGEST_COUNT, Rule
from trainmark.library.analysis.source import STDIN
from trainmark.record.index_record import (
    DIRECTIONS,
    INDEXES,
    MISSIONS,
    RUN_MODES,
    IndexRecord,
    fail_flag,
)

SPEED, MEMORY, LARGEST_BATCH = 1, 2, 6
LARGEST = {MEMORY, LARGEST_BATCH}  # the result is the largest value
_KNOWN = {
    "mission_name": MISSIONS,
    "direction_id": tuple(DIRECTIONS),
    "run_mode": RUN_MODES,
    "index": tuple(INDEXES),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says; none means not said."""

    keyword: str | None = None
    separator: str | None = None
    position: int | None = None
    cut: str = ""
    base_batch_size: int | None = None
    skip_steps: int = 0
    model_mode: int | None = None
    ips_unit: str | None = None
    time_unit: str | None = None
    gpu_num: int | None = None
    run_mode: str | None = None
    model_name: str | None = None
    mission_name: str = ""
    direction_id: int | None = None
    index: int = SPEED
    keyword_loss: str | None = None
    preset: str | None = None
    failed: bool = False
    robust: bool = False


def check(options: Options) -> None:
    """Refuse options that no log can satisfy, before any log is opened.

    Raises:
        UsageError: naming the option.
    """
    _check_text(options)
    for name, known in _KNOWN.items():
        value = getattr(options, name)
        if value not in {None, ""} and value not in known:
            remedy = nearest(str(value), map(str, known))
            raise UsageError(f"{name} {value!r} is unknown", where=f"--{name}", remedy=remedy)
    if options.preset is None:
        Rule(options.keyword or "", options.separator or "", options.position, options.cut)
    elif options.preset in READERS:
        check_events(options, options.preset)
    for name, least in (("base_batch_size", 1), ("gpu_num", 1), ("skip_steps", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UsageError(f"{name} is {value}", where=f"--{name}", rule=f"at least {least}")
    for name in ("base_batch_size", "gpu_num", "skip_steps", "position"):
        if abs(getattr(options, name) or 0) > LARGEST_COUNT:
            rule = f"at most {LARGEST_COUNT}"
            raise UsageError("the number is too large", where=f"--{name}", rule=rule)
    _check_index(options)


def _check_index(options: Options) -> None:
    """Refuse options that do not fit the result that is asked for."""
    if options.index == SPEED:
        if options.preset is None:
            modes.check_mode(options.model_mode or 0, options.base_batch_size)
        elif options.model_mode is not None:
            modes.check_mode(options.model_mode, options.base_batch_size or 1)
    elif options.ips_unit is None:
        rule = f"index {options.index} prints the log's own figure"
        raise UsageError("no unit", where="--ips_unit", rule=rule, remedy="give it, as MB")
    if options.robust and options.index in LARGEST:
        rule = f"index {options.index} is the largest value of the log"
        raise UsageError("does not apply", where="--robust", rule=rule, remedy="leave it out")


def _check_text(options: Options) -> None:
    """Refuse words that came as bytes and are no UTF-8: they can be neither sought nor printed."""
    for item in fields(options):
        value = getattr(options, item.name)
        if isinstance(value, str) and value != printable(value):
            spelt = "range" if item.name == "cut" else item.name
            what = f"{printable(value)!r} is not UTF-8"
            raise UsageError(what, where=f"--{spelt}", remedy="give text in UTF-8")


def printable(word: str) -> str:
    """Return a word of the command line with what is not UTF-8 in it replaced."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def check_events(options: Options, preset: str) -> None:
    """Refuse options about words of lines, for a preset that reads JSON events.

    Raises:
        UsageError: naming the option.
    """
    for name in ("keyword", "separator", "position", "cut", "time_unit", "keyword_loss"):
        if getattr(options, name) not in {None, ""}:
            spelt = "range" if name == "cut" else name
            rule = f"preset {preset} reads JSON events, which say this themselves"
            raise UsageError("does not apply", where=f"--{spelt}", rule=rule, remedy="leave it out")


def record(
    options: Options, log: str, result: float, unit: str, loss: float | None, *, failed: bool
) -> IndexRecord:
    """Return the record of ``log`` with a result in ``unit``.

    Raises:
        UsageError: for a name or code that the record does not know.
    """
    log = printable(log)
    stem = "stdin" if log == STDIN else Path(log).name.removesuffix(".gz").removesuffix(".log")
    direction = options.direction_id
    if direction is None:
        direction = _DIRECTION_OF.get(options.mission_name, 0)
    return IndexRecord(
        log_file=log,
        model_name=options.model_name or stem or log,
        mission_name=options.mission_name,
        direction_id=direction,
        run_mode=options.run_mode or ("sp" if (options.gpu_num or 1) == 1 else "mp"),
        index=options.index,
        gpu_num=options.gpu_num or 1,
        FINAL_RESULT=result,
        JOB_FAIL_FLAG=fail_flag(result, failed=failed),
        UNIT=unit,
        LOSS_RESULT=loss,
    )


_RECOMMENDING = {"推荐模型", "推荐召回", "推荐排序"}
_DIRECTION_OF = {
    name: 2 if name in _RECOMMENDING else 0 if place <= MISSIONS.index("视频分类") else 1
    for place, name in enumerate(MISSIONS)
}
