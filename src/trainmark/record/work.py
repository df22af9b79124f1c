"""What the same work is, of launches and of rows.

A row has figures that other programs or pages printed, as they were read. Units and names are those
of a record's figures, so that rows and records are compared and audited by the same rules.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import Field, PositiveInt

from trainmark.data.documents import Frozen
from trainmark.errors import UsageError
from trainmark.plan.overrides import fix_hp_text
from trainmark.plan.reference import EvidenceLevel  # noqa: TC001 - pydantic reads it
from trainmark.recipe import FIELD_ALIASES, PRECISION_ALIASES
from trainmark.record.shapes import Count, Number  # noqa: TC001 - likewise
from trainmark.spec import Message  # noqa: TC001 - likewise

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainmark.plan.plan import Plan
    from trainmark.record.record import Record

FAILURES = ("run_not_successful", "run_not_converged", "run_aborted")
# Notes of a row that was read from a log of events which contradicts itself.
LOG_CONTRADICTIONS = frozenset({
    "log_time_falls", "log_samples_fall", "log_samples_and_steps", "log_samples_and_epochs",
    "log_batch_and_devices", "log_speeds_differ", "log_ends_twice",
})  # fmt: skip
# A different seed or time limit is the same work done again.
_NOT_WORK = ("seed", "timeout_s")


class Reading(Frozen):
    """A figure of a row.

    Args:
        value: in ``unit``, which is the unit of the record's figure of that name; None: the text
            says that there is none, such as ``OOM`` or ``/``.
        raw: the text it was read from, unchanged.
    """

    value: Number | None
    unit: str
    raw: str


class Row(Frozen):
    """The figures of one configuration, with the place where they are printed.

    Args:
        file: as the user named it; in a folder, the folder's name and the path below it.
        line: the row's line in the file, from 1; 0: the file has no lines.
        table: line at which the row's table begins: rows of one table stand side by side.
        section: the headings above the table, outermost first.
        form: form of the file: ``flagperf``, ``perflog``, ``mlperf``, ``index``, ``csv`` …
        raw: the text of the row, unchanged.
        cells: the text of each column under its header, unchanged.
        configuration: as printed, ``A100单机8卡（1x8）``.
        case: name of the case of ours that is the same workload; None: none is known.
        changes: changed hyper-parameters and settings by their name.
        data_origin: ``real`` or ``generated``, where the row tells it.
        metric: name of the quality among ``figures``.
        notes: what is odd about the row itself: a duplicate, a label that contradicts another.
    """

    file: str
    line: Count
    table: Count = 0
    section: str = ""
    form: str
    raw: str
    cells: dict[str, str] = Field({})
    configuration: str
    case: str | None = None
    model: str = ""
    framework: str = ""
    vendor: str | None = None
    device: str | None = None
    nnodes: PositiveInt | None = None
    nproc: PositiveInt | None = Field(default=None, description="devices of one node")
    precision: str | None = None
    data_origin: str | None = None
    changes: dict[str, str] = Field({})
    figures: dict[str, Reading]
    metric: str | None = None
    evidence: EvidenceLevel = "unverified"
    notes: list[Message] = Field([])

    def figure(self, name: str) -> float | None:
        """Return a figure's value; None if the row does not have it."""
        entry = self.figures.get(name)
        return None if entry is None else entry.value

    @property
    def failure(self) -> Message | None:
        """The note that the row itself says that it does not count; None: it says no such thing."""
        return next((note for note in self.notes if note.code in FAILURES), None)

    @property
    def world_size(self) -> int | None:
        """Devices over all nodes; None if unknown."""
        return None if self.nnodes is None or self.nproc is None else self.nnodes * self.nproc


class Unread(Frozen):
    """Something that could not be read, which is never dropped.

    Args:
        kind: ``file``, ``table``, ``row`` or ``cell``.
        reason: why, as a code with arguments.
    """

    file: str
    line: Count
    kind: Literal["file", "table", "row", "cell"]
    reason: Message
    raw: str = ""


if TYPE_CHECKING:
    Result: TypeAlias = Record | Row  # a launch of ours, or a row that others published


def planned_work(plan: Plan) -> dict[str, Any]:
    """Return what must be equal for two launches to be of the same work, by name.

    The keys added here differ from all recipe fields, which include ``world`` and ``data``, so
    that neither overwrites the other. The same training under another given peak has another MFU.
    """
    recipe = {name: value for name, value in plan.recipe.items() if name not in _NOT_WORK}
    return recipe | {
        "case": plan.case,
        "peak_tflops": plan.peak_tflops,
        "device_products": ", ".join(sorted(set(plan.device.product_names))),
        "ran_world": f"{plan.nnodes}x{plan.nproc}",
        "content_id": plan.data.content_id,
        "resumed_after": plan.resumed and plan.resumed.progress.steps,
        "suite_version": major_minor(plan.suite_version),
    }


def major_minor(version: str) -> str:
    """Return the part of a version within which the same events give the same record."""
    return ".".join(version.split(".")[:2])


def work(record: Record) -> dict[str, Any]:
    """Return what must be equal for two launches to be of the same work, by name.

    As planned, but for the devices and the program that were really there.
    """
    return planned_work(record.plan) | {
        "device_products": _products(record),
        "suite_version": major_minor(record.suite.version),
    }


def _products(record: Record) -> str:
    """Return each product once, as the ranks saw it; as planned where not all of them told."""
    entries = record.environment.get("devices") or []
    names = [name for entry in entries if entry and (name := entry.get("name"))]
    planned = record.plan.device.product_names
    return ", ".join(sorted(set(names if len(names) == record.plan.world_size else planned)))


def differing(first: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names under which two pieces of work differ, sorted."""
    return sorted(key for key in first.keys() | other.keys() if first.get(key) != other.get(key))


def each_once(names: Iterable[str]) -> None:
    """Refuse a launch or a row that is given twice.

    Args:
        names: run ids, or places of rows.

    Raises:
        UsageError: one of them is there again.
    """
    for name, times in Counter(names).items():
        if times > 1:
            raise UsageError("the same run is given twice", where=name, remedy="name it once")


def name_of(result: Result) -> str:
    """Return the run id of a launch, or the place of a row."""
    return f"{result.file}:{result.line}" if isinstance(result, Row) else result.run_id


def groups(records: Sequence[Record]) -> list[list[Record]]:
    """Return the records of the same work together, in order of first appearance."""
    found: dict[str, list[Record]] = {}
    for record in records:
        key = json.dumps(work(record), sort_keys=True, default=str)
        found.setdefault(key, []).append(record)
    return list(found.values())


def printed_work(result: Record | Row) -> dict[str, Any]:
    """Return what a published row tells of its work, by name; of a record, the same of its own.

    Published rows were trained on real data unless they say otherwise, and name the fields that
    they change of the case's standard recipe. A model that is no case of ours is one by its name.
    """
    if isinstance(result, Row):
        case = result.case or result.model.casefold() or None
        precision, changed = result.precision, result.changes
        origin = result.data_origin or "real"
    else:
        plan = result.plan
        case, precision, origin = plan.case, plan.recipe["precision"], plan.data.origin
        changed = plan.fix_hp | plan.extra
    nnodes, nproc = (getattr(getattr(result, "plan", result), x) for x in ("nnodes", "nproc"))
    fields = {FIELD_ALIASES.get(name, name): _number(text) for name, text in changed.items()
              if text != precision}  # fmt: skip
    printed = {
        "case": case,
        "ran_world": f"{nnodes}x{nproc}" if nnodes and nproc else None,
        "precision": PRECISION_ALIASES.get(str(precision), precision),
        "fix_hp": fix_hp_text(dict(sorted(fields.items()))),
        "data": origin,
    }
    return {name: value for name, value in printed.items() if value is not None}


def _number(value: Any) -> Any:
    """Return a printed number as one, so that 0.00015 and 1.5e-4 are the same."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value
