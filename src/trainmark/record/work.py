"""Describe the work of launches and rows, and find in what it differs.

A row has figures that other programs or pages printed, as they were read. Units and names are those
of a record's figures, so that rows and records are compared and audited by the same rules.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import Field, PositiveInt

from trainmark.documents import Frozen
from trainmark.errors import UsageError
from trainmark.events.values import Count, Number  # noqa: TC001 - likewise
from trainmark.plan.plan import BALANCED_BOUND
from trainmark.plan.recipes import format_fix_hp
from trainmark.plan.reference import EvidenceLevel  # noqa: TC001 - pydantic reads it
from trainmark.recipe import FIELD_ALIASES, PRECISION_ALIASES
from trainmark.spec import Message  # noqa: TC001 - likewise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainmark.plan.plan import Plan
    from trainmark.record.record import Record

FAILURES = ("run_not_successful", "run_not_converged", "run_aborted")
# Notes of a row that was read from a log of events which contradicts itself.
LOG_CONTRADICTIONS = frozenset(
    {
        "log_time_falls",
        "log_samples_fall",
        "log_samples_above_steps",
        "log_samples_below_steps",
        "log_samples_and_epochs",
        "log_batch_and_devices",
        "log_speeds_differ",
        "log_ends_twice",
    }
)
_SIZE_TOLERANCE = 0.01  # relative difference of models of one size, which may have another head
# Names of differences between a run and a published row.
_MOST_SERIOUS_FIRST = (
    "case",
    "data",
    "bound",
    "parameters",
    "seq_length",
    "precision",
    "micro_batch_size",
    "sample_count",
    "fix_hp",
    "ran_world",
    "train_samples",
)
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


class StatedWork(Frozen):
    """What a reference file states of a row's work in addition to its cells; None: nothing.

    Args:
        precision: the one in which the row was really trained, if another one is printed.
        micro_batch_size: samples of a device in a micro-batch.
        train_samples: rows of the data set.
        sample_count: how many times the printed throughput counts each sample.
    """

    parameters: PositiveInt | None = None
    seq_length: PositiveInt | None = None
    micro_batch_size: PositiveInt | None = None
    train_samples: PositiveInt | None = None
    precision: str | None = None
    sample_count: PositiveInt = 1


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
        stated: what its reference file says of its work; None: no reference file has it.
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
    nproc: PositiveInt | None = Field(default=None, description="devices per node")
    precision: str | None = None
    data_origin: str | None = None
    changes: dict[str, str] = Field({})
    figures: dict[str, Reading]
    metric: str | None = None
    evidence: EvidenceLevel = "unverified"
    stated: StatedWork | None = None
    notes: list[Message] = Field([])

    def figure(self, name: str) -> float | None:
        """Return the value of a figure; None if the row has no such figure, or says it has none."""
        entry = self.figures.get(name)
        return None if entry is None else entry.value

    @property
    def failure(self) -> Message | None:
        """The row's first note whose code says that the run failed; None: there is no such note."""
        failures = [note for note in self.notes if note.code in FAILURES]
        return failures[0] if failures else None

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


def describe_planned_work(plan: Plan) -> dict[str, Any]:
    """Return what must be equal for two launches to be of the same work, by name.

    These are the recipe fields except seed and time limit, and facts of the launch. No fact has the
    name of a recipe field: ``world`` and ``data`` are such fields, and are not used for facts.
    """
    recipe = {name: value for name, value in plan.recipe.items() if name not in _NOT_WORK}
    return recipe | {
        "case": plan.case,
        # Peak of one device, if the user gave one: the MFU is relative to it.
        "peak_tflops": plan.peak_tflops,
        "device_products": ", ".join(sorted(set(plan.device.product_names))),
        "ran_world": f"{plan.nnodes}x{plan.nproc}",
        # Identifies the content of the data. With ``--witness`` a user's own program reads its data
        # itself, so that they are not known.
        "content_id": plan.data.content_id if plan.witness is None else None,
        # Whether the run is no real training, but shows how fast a training could be at most.
        "bound": BALANCED_BOUND in plan.labels,
        # Command of the user's own program, and what the user states of its work.
        "witnessed": None if plan.witness is None else plan.witness.describe_work(),
        # Number of steps at the checkpoint from which the launch continues.
        "resumed_after": None if plan.resumed is None else plan.resumed.progress.steps,
        "suite_version": shorten_version(plan.suite_version),
    }


def shorten_version(version: str) -> str:
    """Return the part of a version within which the same events give the same record."""
    return ".".join(version.split(".")[:2])


def describe_work(record: Record) -> dict[str, Any]:
    """Return what must be equal for two launches to be of the same work, by name.

    It is the work of the plan, but with the devices that the ranks reported, and with the version
    of Trainmark that computed the record.
    """
    return describe_planned_work(record.plan) | {
        "device_products": _format_product_names(record),
        "suite_version": shorten_version(record.suite.version),
    }


def _format_product_names(record: Record) -> str:
    """Return the product names of the devices as one text, each once.

    They are those that the ranks reported, if all did; else the planned ones.
    """
    entries = record.environment.get("devices") or []  # of each rank; None: it reported none
    reported = [entry["name"] for entry in entries if entry and entry.get("name")]
    have_all_reported = len(reported) == record.plan.world_size
    names = reported if have_all_reported else record.plan.device.product_names
    return ", ".join(sorted(set(names)))


def find_differences(first: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names of the properties in which two pieces of work differ, sorted.

    A property that one of them does not have counts as None.
    """
    return sorted(key for key in first.keys() | other.keys() if first.get(key) != other.get(key))


def find_differing_settings(runs: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return the recipe fields in which runs of the same kind differ, in the recipe's order.

    Args:
        runs: kind and recipe of each run. Only runs of the same kind, such as the same case, are
            compared with each other.
    """
    names: dict[str, None] = {}  # keys alone, in the order of their appearance
    # By kind and field: all values of the field among the runs of the kind, as text.
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for kind, recipe in runs:
        names |= dict.fromkeys(recipe)
        for name, value in recipe.items():
            values[kind, name].add(json.dumps(value, default=str))
    differing = {name for (_, name), texts in values.items() if len(texts) > 1}
    # A different seed or time limit is the same work.
    return [name for name in names if name in differing and name not in _NOT_WORK]


def reject_duplicates(run_ids: Iterable[str], places: Iterable[object] | None = None) -> None:
    """Refuse a run that is given twice.

    Args:
        run_ids: ids of all given runs.
        places: path of each, which the error names; None: they are not known.

    Raises:
        UsageError: a run id occurs twice.
    """
    ids = list(run_ids)
    paths = ["" for _ in ids] if places is None else [str(place) for place in places]
    paths_by_id: dict[str, list[str]] = {}
    for run_id, path in zip(ids, paths, strict=True):
        paths_by_id.setdefault(run_id, []).append(path)
    for run_id, paths_of_run in paths_by_id.items():
        if len(paths_of_run) == 1:
            continue
        what = "the same run is given twice"
        first, second = paths_of_run[:2]
        if first != second:  # copies of one run
            what = f"the same run is given twice, as {first} and {second}"
            raise UsageError(what, where=run_id, fix="pass only one of the copies")
        raise UsageError(what, where=run_id, fix="pass the run only once")


def identify_result(result: Result) -> str:
    """Return the run id of a launch, or the place of a row."""
    return f"{result.file}:{result.line}" if isinstance(result, Row) else result.run_id


def group_by_work(records: Sequence[Record]) -> list[list[Record]]:
    """Return the records of the same work together, in order of first appearance."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        key = json.dumps(describe_work(record), sort_keys=True, default=str)
        groups.setdefault(key, []).append(record)
    return list(groups.values())


def describe_printed_work(result: Record | Row) -> dict[str, Any]:
    """Return the facts of the work that published tables print, by name, of a row or a record.

    Unknown facts are left out.

    Args:
        result: a record of ours, or a row that others published. A row names the recipe fields in
            which it differs from the case's standard recipe.
    """
    if isinstance(result, Row):
        # If no case of ours trains the row's model, the model's name stands for the case.
        case = result.case or result.model.casefold() or None
        precision = result.precision
        origin = result.data_origin or "real"  # real data, unless the row says otherwise
        nnodes = result.nnodes
        nproc = result.nproc
    else:
        plan = result.plan
        case = plan.case
        precision = plan.recipe["precision"]
        origin = plan.data.origin
        nnodes = plan.nnodes
        nproc = plan.nproc
    printed = {
        "case": case,
        "ran_world": f"{nnodes}x{nproc}" if nnodes and nproc else None,
        # A row may have the word ``amp`` of its table, which becomes ``fp16``, as records have it.
        "precision": PRECISION_ALIASES.get(str(precision), precision),
        # The column of published tables with the changed fields, such as ``bs=96,lr=0.00015``.
        "fix_hp": format_fix_hp(_list_changed_fields(result)),
        "data": origin,
    }
    return {name: value for name, value in printed.items() if value is not None}


def _list_changed_fields(result: Record | Row) -> dict[str, Any]:
    """Return the values of the fields that a result changes in its standard recipe, by full names.

    The precision is left out, because it is compared separately.

    Args:
        result: a record of ours, or a row that others published.
    """
    if isinstance(result, Row):
        changes = result.changes
        precision = result.precision
    else:
        # ``fix_hp``: changes that the closed rules allow; ``extra``: changes that only the open
        # rules, which are less strict, allow.
        changes = result.plan.fix_hp | result.plan.extra
        precision = result.plan.recipe["precision"]
    # The precision may be among the changes under several names, such as ``precision`` or
    # ``dtype``. So it is found by its value: each change to this value is left out. That leaves out
    # another field with the same value, too, such as the type of weights, ``weights_dtype=bf16``.
    return {
        FIELD_ALIASES.get(name, name): _parse_setting(value)
        for name, value in sorted(changes.items())
        if value != precision
    }


def find_row_differences(record: Record, row: Row) -> dict[str, tuple[object, object]]:
    """Return in what the work of a published row differs from a record's: both values by name.

    The most serious difference comes first. A row from a reference file has ``stated``: facts that
    the file adds to the printed cells of the row, or corrects in them. For any other row, the facts
    that all published rows of the case share are taken instead. A fact that the row does not print
    and that nothing states of it is not compared. One that the record does not know, such as the
    number of parameters of a run that ended early, counts as different.
    """
    ours = describe_printed_work(record)
    theirs = describe_printed_work(row)
    stated = row.stated or _get_stated_work(record, row)
    if stated.precision is not None:
        theirs["precision"] = stated.precision
    for name, value in _describe_stated_work(stated).items():
        theirs[name] = value
        ours[name] = _get_value_of_record(record, name)
    # Models of the same size may differ a little in their number of parameters. Then the numbers
    # are made equal, so that they are not returned as a difference.
    if is_same_size(count_parameters(record), stated.parameters):
        theirs["parameters"] = ours["parameters"]
    # If the micro-batch is stated, it is compared itself. The batch size among the printed changes
    # is left out, because it may be that of all devices together.
    if stated.micro_batch_size is not None:
        ours["fix_hp"] = _format_changes_without_batch(record)
        theirs["fix_hp"] = _format_changes_without_batch(row)
    # A run with this label is no real training, but shows how fast one could be at most. Published
    # runs really trained.
    if BALANCED_BOUND in record.plan.labels:
        ours["bound"] = True
        theirs["bound"] = False
    return {
        name: (ours[name], theirs[name])
        for name in _MOST_SERIOUS_FIRST
        if name in ours and name in theirs and ours[name] != theirs[name]
    }


def _describe_stated_work(stated: StatedWork) -> dict[str, int]:
    """Return the numbers that are stated of a row's work, by the names that differences have.

    Numbers that are not stated are left out.
    """
    numbers = {
        "parameters": stated.parameters,
        "seq_length": stated.seq_length,
        "micro_batch_size": stated.micro_batch_size,
        "train_samples": stated.train_samples,
        "sample_count": stated.sample_count,  # how often the throughput counts each sample
    }
    return {name: number for name, number in numbers.items() if number is not None}


def _get_value_of_record(record: Record, name: str) -> int | None:
    """Return a number of a record's work, to compare it with that of a published row.

    None: unknown.

    Args:
        name: of the number, as ``_describe_stated_work`` returns it.
    """
    match name:
        case "parameters":
            return count_parameters(record)
        case "train_samples":
            return record.plan.data.train_samples
        case "sample_count":
            # How often the throughput counts each sample. Some published ones count it several
            # times; that of a record counts it once.
            return 1
    # The other numbers are recipe fields of the same name.
    value: int | None = record.plan.recipe.get(name)
    return value


def _format_changes_without_batch(result: Record | Row) -> str:
    """Return the changed recipe fields of a result as one text, without the micro-batch.

    The text has the form of published tables, such as ``lr=0.00015``.
    """
    changes = _list_changed_fields(result)
    changes.pop("micro_batch_size", None)
    return format_fix_hp(changes)


def _get_stated_work(record: Record, row: Row) -> StatedWork:
    """Return the facts of work that all published rows of the record's case share.

    They are empty if the row is of another case, or was trained on generated data.
    """
    published = record.plan.about.references  # all published rows of the case
    if row.case != record.plan.case or row.data_origin == "generated":
        return StatedWork()
    return StatedWork(
        parameters=published.parameters,
        # A row with a changed sequence length does not share it.
        seq_length=None if "seq_length" in _list_changed_fields(row) else published.seq_length,
        # A pass goes over the whole data set once.
        train_samples=published.samples_per_pass,
    )


def count_parameters(record: Record) -> int | None:
    """Return the number of the model's parameters; None if the run ended before it was reported."""
    # ``job``: the facts that rank 0 reported of the training; None or absent: it reported none.
    number: int | None = (record.environment.get("job") or {}).get("parameters")
    return number


def is_same_size(parameters: int | None, published: int | None) -> bool:
    """Tell whether two models are of the same size: their numbers of parameters hardly differ.

    A difference up to a small share of the published number is tolerated, because a model may have
    another head, or adapters. False if a number is not known.

    Args:
        parameters: number of a model that was trained here; None: not known.
        published: number of the published model; None: not known.
    """
    if parameters is None or published is None:
        return False
    return abs(parameters - published) <= _SIZE_TOLERANCE * published


def _parse_setting(value: Any) -> Any:
    """Return the number or truth value of a recipe field, which a published row has as text.

    So the texts ``0.00015`` and ``1.5e-4`` are the same, and ``true`` is ``True``. Any other value
    is returned unchanged.
    """
    if isinstance(value, bool):  # ``float`` would take it for a number
        return value
    if value in ("true", "false"):
        return value == "true"
    try:
        return float(value)
    except (TypeError, ValueError):
        return value
