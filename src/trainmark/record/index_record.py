"""The JSON record of one case, one line that result collections import.

Owns its keys, codes and names, and the names of its files. Must not know where the numbers come
from: a run and a foreign log fill the same record.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, fields
from typing import Any

from trainmark.errors import UsageError, nearest

MISSIONS = (
    "图像分类", "目标检测", "图像分割", "人脸检测", "OCR", "图像生成", "视频分类", "语言模型",
    "语义匹配", "文本分类", "阅读理解", "机器翻译", "强化学习", "语义表示", "推荐模型",
    "文本生成", "语音合成", "词法分析", "推荐召回", "推荐排序",
)  # fmt: skip
DIRECTIONS = {0: "CV", 1: "NLP", 2: "Rec"}
INDEXES = {1: "speed", 2: "mem", 3: "profile", 6: "maxbs"}
RUN_MODES = ("sp", "mp")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9.\-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRecord:
    """One result of one case, its fields named and ordered as the keys of the JSON line.

    Args:
        log_file: the log from which it was read.
        model_name: what ran, as ``model_name`` builds it.
        mission_name: one of ``MISSIONS``; empty: no mission.
        direction_id: key of ``DIRECTIONS``.
        run_mode: ``sp`` one process, ``mp`` several.
        index: key of ``INDEXES``: what FINAL_RESULT is.
        gpu_num: devices of the job.
        FINAL_RESULT: the figure, of the whole job, in UNIT.
        JOB_FAIL_FLAG: 0 or 1; 1 whenever FINAL_RESULT is zero.
        UNIT: ``tokens/s``, ``samples/s``, ``MB``.
        LOSS_RESULT: the loss at the end; None: the key is omitted.

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

    def __post_init__(self) -> None:
        if self.mission_name:
            _check_member("mission_name", self.mission_name, MISSIONS)
        _check_member("direction_id", self.direction_id, DIRECTIONS)
        _check_member("run_mode", self.run_mode, RUN_MODES)
        _check_member("index", self.index, INDEXES)
        _check_member("JOB_FAIL_FLAG", self.JOB_FAIL_FLAG, (0, 1))
        _check("gpu_num", self.gpu_num, self.gpu_num >= 1, "at least one device")
        _check("model_name", self.model_name, bool(self.model_name), "a name")
        result, loss = self.FINAL_RESULT, self.LOSS_RESULT
        finite = math.isfinite(result) and result >= 0
        _check("FINAL_RESULT", result, finite, "a finite number, not negative")
        _check("LOSS_RESULT", loss, loss is None or math.isfinite(loss), "a finite number")
        flagged = result > 0 or self.JOB_FAIL_FLAG == 1
        _check("FINAL_RESULT", result, flagged, "above zero, or JOB_FAIL_FLAG is 1")

    def to_json(self) -> str:
        """Return the record as one line of JSON without a newline, keys in their order."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        if self.LOSS_RESULT is None:
            del values["LOSS_RESULT"]
        return json.dumps(values, ensure_ascii=False, allow_nan=False)


def rounded(result: float) -> float:
    """Return ``result`` rounded to three decimals; below 0.1 to three significant digits."""
    return round(result, 3) if abs(result) >= 0.1 else float(f"{result:.3g}")


def fail_flag(final_result: float, *, failed: bool = False) -> int:
    """Return JOB_FAIL_FLAG: 1 for a failed run or a result of zero."""
    return int(failed or final_result == 0)


def model_name(  # noqa: PLR0917 - the words of the name in their order
    repository: str, model: str, mode: str, micro_batch_size: int, precision: str, devices: int
) -> str:
    """Return the name of a piece of work, ``nlp_gpt_sp_bs8_fp32_1``.

    Raises:
        UsageError: for a word that does not fit a file name, an unknown mode, a count
            below one.
    """
    for key, word in (("repository", repository), ("precision", precision)):
        _check(key, word, _WORD.fullmatch(word) is not None, "letters, digits, . and -")
    words = model.split("_")  # a model's own name may have more than one word
    _check("model", model, all(map(_WORD.fullmatch, words)), "letters, digits, . - and _")
    _check_member("run_mode", mode, RUN_MODES)
    _check("micro_batch_size", micro_batch_size, micro_batch_size >= 1, "at least 1")
    _check("devices", devices, devices >= 1, "at least 1")
    return f"{repository}_{model}_{mode}_bs{micro_batch_size}_{precision}_{devices}"


def file_name(model_name: str, index: int) -> str:
    """Return the file name of a record, ``nlp_gpt_sp_bs8_fp32_1_speed`` for index 1."""
    _check_member("index", index, INDEXES)
    return f"{model_name}_{INDEXES[index]}"


def _check(key: str, value: object, right: bool, rule: str) -> None:
    if not right:
        raise UsageError(f"{key} is {value!r}", where="index record", rule=rule)


def _check_member(key: str, value: object, known: Any) -> None:
    if isinstance(value, bool) or value not in known:
        what = f"{key} {value!r} is unknown"
        raise UsageError(what, where="index record", remedy=nearest(str(value), map(str, known)))
