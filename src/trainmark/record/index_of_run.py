"""The JSON records of a run: its speed and its memory, as result collections import them.

Owns which figure of a record becomes which line, and their folder beside ``record.json``.
Must not know events: these records are computed from the run's record alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.data.json_documents import written_whole
from trainmark.rank.events import rank_file
from trainmark.record.index_record import IndexRecord, fail_flag, file_name, model_name, rounded
from trainmark.record.trust import refuted

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.plan.plan import Plan
    from trainmark.record.record import Record
    from trainmark.spec import Mission

INDEX_DIR = "index"
_SPEED, _MEMORY = 1, 2
_BYTES_PER_MIB = 2**20
_LOSS_DIGITS = 7  # significant ones; record.json has them all


def index_records(record: Record) -> list[IndexRecord]:
    """Return the speed record in work per second of the whole job, and the memory record in MiB.

    A run that did not pass, or whose evidence contradicts its record, is flagged and its
    results are 0, so that a reader who overlooks the flag does not quote a speed. So is a run
    that passed without a step after its warm-up: it has no speed. ``record.json`` has the
    measured figures.

    Returns:
        The records; an empty list for a case without a mission.

    Raises:
        UsageError: the case's mission does not fit the form.
    """
    plan = record.plan
    mission = plan.about.mission
    if mission is None:
        return []
    mode = "sp" if plan.world_size == 1 else "mp"
    name = model_name(
        mission.repository,
        _model(mission, plan),
        mode,
        plan.recipe["micro_batch_size"],
        plan.recipe["precision"],
        plan.world_size,
    )
    speed, memory = record.figures["final_result"], record.figures["mem"]
    results = (
        (_SPEED, speed.value, speed.unit, record.figure("final_loss")),
        (_MEMORY, None if memory.value is None else memory.value / _BYTES_PER_MIB, "MiB", None),
    )
    valid = record.passed and not refuted(record.trust)
    found = []
    for index, value, unit, final_loss in results:
        result = rounded(value or 0.0) if valid else 0.0
        loss = final_loss if result > 0.0 else None
        found.append(
            IndexRecord(
                log_file=f"{record.run_id}/{rank_file(0)}",
                model_name=name,
                mission_name=mission.name,
                direction_id=mission.direction_id,
                run_mode=mode,
                index=index,
                gpu_num=plan.world_size,
                FINAL_RESULT=result,
                JOB_FAIL_FLAG=fail_flag(result, failed=not valid),
                UNIT=unit,
                LOSS_RESULT=None if loss is None else float(f"{loss:.{_LOSS_DIGITS}g}"),
            )
        )
    return found


def _model(mission: Mission, plan: Plan) -> str:
    """Return the model's name, marked if the run trained a variant of that model.

    Collections compare records by name, but the tiny recipe is another model, and a recipe
    changed beyond the closed rules is other work.
    """
    word = mission.model
    if plan.recipe_name == "tiny":
        word += "-tiny"
    return word if plan.rules == "closed" else f"{word}-open"


def write_index(record: Record, run_dir: Path) -> list[Path]:
    """Write the records under ``index/`` atomically; return their paths.

    An existing file is not changed: records never change.

    Raises:
        OSError: the disk is full or the folder read-only.
        UsageError: the case's mission does not fit the form.
    """
    folder = run_dir / INDEX_DIR
    paths = []
    for item in index_records(record):
        folder.mkdir(exist_ok=True)
        path = folder / file_name(item.model_name, item.index)
        paths.append(path)
        if not path.exists():
            with written_whole(path) as file:
                file.write(f"{item.to_json()}\n".encode())
    return paths
