"""The JSON record of one case: one line, which result collections import.

Owns its keys, codes and names, the names of its files and which figure of a record becomes which
line. A run and a foreign log fill the same record.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from trainmark.documents import write_atomically
from trainmark.errors import UsageError
from trainmark.events.schema import name_rank_file
from trainmark.record.trust import is_refuted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from trainmark.plan.plan import Plan
    from trainmark.record.record import Record
    from trainmark.spec import Mission

MISSIONS = (
    "图像分类", "目标检测", "图像分割", "人脸检测", "OCR", "图像生成", "视频分类", "语言模型",
    "语义匹配", "文本分类", "阅读理解", "机器翻译", "强化学习", "语义表示", "推荐模型",
    "文本生成", "语音合成", "词法分析", "推荐召回", "推荐排序",
)  # fmt: skip
DIRECTIONS = {0: "CV", 1: "NLP", 2: "Rec"}
INDEXES = {1: "speed", 2: "mem", 3: "profile", 6: "maxbs"}
RUN_MODES = ("sp", "mp")
INDEX_DIR = "index"
_SPEED = 1  # keys of ``INDEXES``
_MEMORY = 2
_BYTES_PER_MIB = 2**20
_LOSS_DIGITS = 7  # significant ones; record.json has them all


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRecord:
    """One result of a run, as one line of JSON that public collections of results import.

    The fields have the names and the order of the keys of that line.

    Args:
        log_file: the log from which it was read.
        model_name: what ran, such as ``nlp_gpt_sp_bs8_fp32_1``.
        mission_name: the kind of task, one of ``MISSIONS``, such as 语言模型 (language model);
            empty: it is not stated.
        direction_id: the field of research, a key of ``DIRECTIONS``, such as 1 for NLP.
        run_mode: ``sp`` one process, ``mp`` several.
        index: what FINAL_RESULT is, a key of ``INDEXES``, such as 1 for the speed.
        gpu_num: devices of the job.
        FINAL_RESULT: the value, of the whole job, in UNIT.
        JOB_FAIL_FLAG: 0 or 1; 1 whenever FINAL_RESULT is zero.
        UNIT: ``tokens/s``, ``samples/s``, ``MiB``.
        LOSS_RESULT: the loss at the end; like the next ones, None: the key is omitted.
        log_with_profiler: path of the log of a run under a profiler.
        profiler_path: path of what that profiler wrote.

    Raises:
        UsageError: for a code or name that is not in the tables, a number that is not
            finite, or a zero result without the flag.
    """

    log_file: str
    model_name: str
    mission_name: str
    direction_id: int
    run_mode: str
    index: int
    gpu_num: int
    FINAL_RESULT: float
    JOB_FAIL_FLAG: int
    UNIT: str
    LOSS_RESULT: float | None = None
    log_with_profiler: str | None = None
    profiler_path: str | None = None

    def __post_init__(self) -> None:
        """Refuse values that the public form of these records does not allow."""
        _refuse_unknown("mission_name", self.mission_name, ("", *MISSIONS))  # "": no mission
        _refuse_unknown("direction_id", self.direction_id, DIRECTIONS)
        _refuse_unknown("run_mode", self.run_mode, RUN_MODES)
        _refuse_unknown("index", self.index, INDEXES)
        _refuse_unknown("JOB_FAIL_FLAG", self.JOB_FAIL_FLAG, (0, 1))
        result = self.FINAL_RESULT
        loss = self.LOSS_RESULT
        are_finite = math.isfinite(result) and (loss is None or math.isfinite(loss))
        is_flagged_if_zero = result > 0 or self.JOB_FAIL_FLAG == 1
        is_possible = self.gpu_num >= 1 and result >= 0 and is_flagged_if_zero
        if not (self.model_name and are_finite and is_possible):
            raise UsageError(
                f"the record {self.model_name!r} is not valid: FINAL_RESULT {result}, "
                f"LOSS_RESULT {loss}, gpu_num {self.gpu_num}, JOB_FAIL_FLAG {self.JOB_FAIL_FLAG}",
                where="index record",
                rule=(
                    "an index record needs a name, finite numbers, at least one device, and "
                    "JOB_FAIL_FLAG if the result is 0"
                ),
            )

    def to_json(self) -> str:
        """Return the record as one line of JSON without a newline.

        Keys have the order of the fields; those whose value is None are left out.
        """
        values = {key: value for key, value in asdict(self).items() if value is not None}
        return json.dumps(values, ensure_ascii=False, allow_nan=False)


def _refuse_unknown(key: str, value: object, allowed_values: Collection[object]) -> None:
    """Refuse a value that is not among those that its key may have.

    Raises:
        UsageError: with the allowed values.
    """
    if value not in allowed_values:
        raise UsageError(
            f"{key} {value!r} is unknown",
            where="index record",
            rule=f"{key} must be one of {', '.join(map(str, allowed_values))}",
        )


def parse_record(values: Mapping[str, Any]) -> IndexRecord:
    """Return the record that a JSON line holds, written by this program or by the public tool.

    The public tool is the published log analyzer of training benchmarks. It writes the loss as the
    text of its log, and 0 if it looked for none; a job that it could not analyze has no unit.

    Raises:
        TypeError, ValueError: a value has another type.
        UsageError: as of ``IndexRecord``.
    """
    loss_text = values.get("LOSS_RESULT")
    loss = None if loss_text is None else float(loss_text)
    if loss is not None and (loss == 0 or not math.isfinite(loss)):
        loss = None  # none was looked for, or the training diverged: ``IndexRecord`` refuses NaN
    fields_of_record = {"UNIT": "", **values, "LOSS_RESULT": loss}
    return IndexRecord(**fields_of_record)


def round_result(result: float) -> float:
    """Return ``result`` rounded to three decimals; below 0.1 to three significant digits.

    Three decimals of a small result, such as 0.0005, would have only one digit that says anything.
    """
    if abs(result) >= 0.1:
        return round(result, 3)
    return float(f"{result:.3g}")


def get_fail_flag(final_result: float, *, failed: bool = False) -> int:
    """Return JOB_FAIL_FLAG: 1 for a failed run or a result of zero."""
    return int(failed or final_result == 0)


def list_index_records(record: Record) -> list[IndexRecord]:
    """Return the results of a run in the form in which public collections of results import them.

    They are two: the speed of the whole job in work per second, such as tokens/s, and the peak
    memory in use in MiB.

    A run that did not pass, or whose evidence contradicts its record, is flagged and its results
    are 0, so that a reader who overlooks the flag does not quote a speed. Of a run that passed
    without a step after its warm-up, only the speed is flagged and 0, because it is not known.
    ``record.json`` has the measured figures.

    Returns:
        Speed, then memory; an empty list for a case that states no mission, which is the kind of
        task by which collections sort results.

    Raises:
        UsageError: the collections know no mission of this name.
    """
    plan = record.plan
    mission = plan.about.mission
    if mission is None:
        return []
    is_valid = record.passed and not is_refuted(record.trust)
    speed = record.figures["final_result"]  # work per second of the whole job
    speed_result = round_result(speed.value or 0.0) if is_valid else 0.0
    # A memory use that is not known becomes 0, which is flagged.
    memory_mib = (record.figures["mem"].value or 0.0) / _BYTES_PER_MIB
    memory_result = round_result(memory_mib) if is_valid else 0.0
    final_loss = record.figure("final_loss")
    # The loss stands in the record of the speed alone. If the speed is 0, which flags the run, no
    # loss is stated either, so that nobody quotes it.
    loss = None
    if speed_result > 0.0 and final_loss is not None:
        loss = float(f"{final_loss:.{_LOSS_DIGITS}g}")
    run_mode = "sp" if plan.world_size == 1 else "mp"  # one process, or several
    speed_record = IndexRecord(
        log_file=f"{record.run_id}/{name_rank_file(0)}",
        model_name=_name_work(mission, plan, run_mode),
        mission_name=mission.name,
        direction_id=mission.direction_id,
        run_mode=run_mode,
        index=_SPEED,
        gpu_num=plan.world_size,  # each rank counts as a device
        FINAL_RESULT=speed_result,
        JOB_FAIL_FLAG=get_fail_flag(speed_result, failed=not is_valid),
        UNIT=speed.unit,
        LOSS_RESULT=loss,
    )
    memory_record = replace(
        speed_record,
        index=_MEMORY,
        FINAL_RESULT=memory_result,
        JOB_FAIL_FLAG=get_fail_flag(memory_result, failed=not is_valid),
        UNIT="MiB",
        LOSS_RESULT=None,
    )
    return [speed_record, memory_record]


def _name_work(mission: Mission, plan: Plan, run_mode: str) -> str:
    """Return the name of what a run trained, such as ``nlp_gpt_sp_bs8_fp32_1``.

    Its parts: repository, model, run mode, batch size of a rank, precision, number of ranks.

    Args:
        mission: what collections of results call the case.
        run_mode: ``sp`` one process, ``mp`` several.
    """
    model = f"{mission.repository}_{_name_model(mission, plan)}"
    batch_size = plan.recipe["micro_batch_size"]
    precision = plan.recipe["precision"]
    return f"{model}_{run_mode}_bs{batch_size}_{precision}_{plan.world_size}"


def _name_model(mission: Mission, plan: Plan) -> str:
    """Return the model's name, marked if the run trained a variant of that model.

    Collections compare records by name, but the tiny recipe is another model, and a recipe
    changed beyond the closed rules is other work.
    """
    name = mission.model
    if plan.recipe_name == "tiny":
        name += "-tiny"
    if plan.rules == "open":
        name += "-open"
    return name


def write_index(record: Record, run_dir: Path) -> list[Path]:
    """Write the index records of a run under ``index/`` atomically; return their paths.

    An index record is one result in the form in which public collections of results import it. Its
    ``index`` is the number of what the result is, such as 1 for the speed.

    A file is named after what the run trained and what the result is, such as
    ``nlp_gpt_sp_bs8_fp32_1_speed``. An existing file is not changed: records never change.

    Raises:
        OSError: the disk is full or the folder read-only.
        UsageError: the collections do not know the mission, the kind of task, of the case.
    """
    folder = run_dir / INDEX_DIR
    paths = []
    for index_record in list_index_records(record):
        folder.mkdir(exist_ok=True)  # in the loop: without index records there is no folder
        path = folder / f"{index_record.model_name}_{INDEXES[index_record.index]}"
        paths.append(path)
        if not path.exists():
            with write_atomically(path) as file:
                file.write(f"{index_record.to_json()}\n".encode())
    return paths
