"""What the user says about a log, and the part of the record that follows from it alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import TypeAdapter, ValidationError

from trainmark.errors import UsageError, nearest
from trainmark.library.analysis.lines import STDIN
from trainmark.library.analysis.modes import check_mode
from trainmark.library.analysis.numbers import Rule
from trainmark.library.analysis.presets import AUTO, EVENT_LOGS, PRESETS
from trainmark.record.index_record import MISSIONS, IndexRecord, fail_flag

if TYPE_CHECKING:
    from collections.abc import Mapping

SPEED, MEMORY, LARGEST_BATCH = 1, 2, 6
LARGEST = (MEMORY, LARGEST_BATCH)  # the result is the largest value
_RECOMMENDING = ("推荐模型", "推荐召回", "推荐排序")


Count = Annotated[int, Ge(1), Le(10**15)]  # below it floats count exactly


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user says as ``KEY=VALUE``; None: the log or the preset says it."""

    keyword: str | None = None
    separator: str | None = None
    position: Annotated[int, Ge(-(10**6)), Le(10**6)] | None = None
    range: str = ""
    base_batch_size: Count | None = None
    skip_steps: Annotated[int, Ge(0), Le(10**15)] = 0
    model_mode: int | None = None
    ips_unit: str | None = None
    time_unit: Literal["s", "ms"] | None = None
    gpu_num: Count | None = None
    run_mode: Literal["sp", "mp"] | None = None
    model_name: str | None = None
    mission_name: str = ""
    direction_id: int | None = None
    index: int = SPEED
    keyword_loss: str | None = None
    preset: str | None = None
    failed: bool = False
    robust: bool = False

    def rule(self, keyword: str) -> Rule:
        """Return the rule by which values stand behind ``keyword``."""
        return Rule(keyword, self.separator or "", self.position, self.range)


def read(values: Mapping[str, str]) -> Options:
    """Return the options that ``KEY=VALUE`` words say.

    Raises:
        UsageError: an unknown key, or a value outside its type or bounds.
    """
    known = Options.__dataclass_fields__
    for name in values:
        if name not in known:
            raise UsageError(f"unknown key {name!r}", remedy=nearest(name, known))
    kind: Any = Options  # mypy takes a dataclass's hash for that of its class
    try:
        options: Options = TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what, key = f"{first['input']!r} does not fit", str(first["loc"][0])
        raise UsageError(what, where=key, rule=first["msg"]) from None
    return options


def check(options: Options) -> None:
    """Refuse options that no log can satisfy, before any log is opened.

    Raises:
        UsageError: naming the option.
    """
    record(options, STDIN, 1.0, "", None, failed=False)  # refuses names and codes that are unknown
    if options.preset is None:
        options.rule(options.keyword or "")
    elif options.preset not in {AUTO, *PRESETS}:
        remedy = nearest(options.preset, [*PRESETS, AUTO])
        raise UsageError(f"no preset {options.preset!r}", where="preset", remedy=remedy)
    elif options.preset in EVENT_LOGS:
        check_events(options, options.preset)
    if options.index != SPEED and options.ips_unit is None:
        rule = f"index {options.index} prints the log's own figure"
        raise UsageError("no unit", where="ips_unit", rule=rule, remedy="give it, as MB")
    if options.index == SPEED and (options.preset is None or options.model_mode is not None):
        known = options.base_batch_size or (1 if options.preset else None)  # the log may have it
        check_mode(options.model_mode or 0, known)
    if options.robust and options.index in LARGEST:
        rule = f"index {options.index} is the largest value of the log"
        raise UsageError("does not apply", where="robust", rule=rule, remedy="leave it out")


def check_events(options: Options, preset: str) -> None:
    """Refuse options about words of lines, for a preset that reads JSON events.

    Raises:
        UsageError: naming the option.
    """
    for name in ("keyword", "separator", "position", "range", "time_unit", "keyword_loss"):
        if getattr(options, name) not in (None, ""):
            rule = f"preset {preset} reads JSON events, which say this themselves"
            raise UsageError("does not apply", where=name, rule=rule, remedy="leave it out")


def record(
    options: Options, log: str, result: float, unit: str, loss: float | None, *, failed: bool
) -> IndexRecord:
    """Return the record of ``log`` with a result in ``unit``.

    Raises:
        UsageError: for a name or code that the record does not know.
    """
    log = log.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    stem = "stdin" if log == STDIN else Path(log).name.removesuffix(".gz").removesuffix(".log")
    direction, mission = options.direction_id, options.mission_name
    if direction is None and mission in MISSIONS:
        vision = MISSIONS.index(mission) <= MISSIONS.index("视频分类")
        direction = 2 if mission in _RECOMMENDING else 0 if vision else 1
    return IndexRecord(
        log_file=log,
        model_name=options.model_name or stem or log,
        mission_name=mission,
        direction_id=direction or 0,
        run_mode=options.run_mode or ("sp" if (options.gpu_num or 1) == 1 else "mp"),
        index=options.index,
        gpu_num=options.gpu_num or 1,
        FINAL_RESULT=result,
        JOB_FAIL_FLAG=fail_flag(result, failed=failed),
        UNIT=unit,
        LOSS_RESULT=loss,
    )
