"""The columns of a record in lists, exports and the index of results.

Each column is a function of the record, with the type of its values; None stands for null. Owns the
index entries of a record, of an unreadable record, and of a row that others published.
"""

from __future__ import annotations

import json
import math
from hashlib import blake2b
from operator import attrgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from trainmark.errors import escape_controls
from trainmark.plan.recipes import format_fix_hp
from trainmark.record.figures import FIGURES
from trainmark.record.work import describe_work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainmark.record.record import Record
    from trainmark.record.work import Row

    Value = str | int | float | bool | None

IMPORTED = "imported"  # folder of files of others in a store; status of their rows
_MAX_TEXT = 1000  # characters; the record has the whole text
_MAX_SETTING = 100  # characters of a recipe field with its value; longer ones are left out


def get_device_name(record: Record) -> str:
    """Return the product name of the first device: as ranks reported it, else as planned.

    Without any name it is ``/``, which lists and pages show for what is not known.
    """
    reported = [entry.get("name") for entry in record.environment.get("devices") or [] if entry]
    names = [name for name in (*reported, *record.plan.device.product_names) if name]
    return escape_controls(" ".join(str(names[0]).split())) if names else "/"


# The path of an attribute in the record, or a function that computes the value.
_COLUMN_SOURCES: dict[str, str | Callable[[Record], Value]] = {
    "run_id": "run_id",
    "case_key": "plan.case_key",
    "case": "plan.case",
    "recipe": "plan.recipe_name",
    "started_utc": "started",
    "status": "status",
    "cause_kind": lambda record: None if record.cause is None else record.cause.kind,
    "trust": "trust.grade",
    "verification": "verification",
    "trust_reasons": lambda record: " ".join(x.code for x in record.trust.reasons) or None,
    "suite_version": "suite.version",
    "suite_commit": lambda record: record.environment.get("commit"),
    "vendor": "plan.device.vendor",
    "device": get_device_name,
    "nnodes": "plan.nnodes",
    "nproc": "plan.nproc",
    "repeat_index": "plan.repeat_index",
    "precision": lambda record: record.plan.recipe["precision"],
    "rules": "plan.rules",
    "compared_with": "plan.compared_with",
    "fix_hp": lambda record: format_fix_hp(record.plan.fix_hp) or None,
    "extra": lambda record: format_fix_hp(record.plan.extra) or None,
    "labels": lambda record: " ".join(record.labels) or None,
    "data_origin": "plan.data.origin",
    "data_content_id": "plan.data.content_id",
    "quality_metric": "quality.metric",
    "quality_value": "quality.value",
    "quality_target": "quality.target",
    "quality_reached": "quality.reached",
    "samples": "counts.samples",
    "sequences": "counts.sequences",
    "tokens": "counts.tokens",
    "tokens_padded": "counts.tokens_padded",
    "steps": "counts.steps",
    "epochs": "counts.epochs",
    "warmup_steps": "steps.warmup",
    "steady": "steps.steady",
    "monitor": lambda record: record.telemetry.monitor if record.telemetry else None,
    "final_result_unit": lambda record: record.figures["final_result"].unit,  # differs by case
}
COLUMNS: dict[str, Callable[[Record], Value]] = {
    name: attrgetter(source) if isinstance(source, str) else source
    for name, source in _COLUMN_SOURCES.items()
}
# The type of each column's values, which may also be null: text unless it is named here.
COLUMN_TYPES: dict[str, Any] = (
    dict.fromkeys(COLUMNS, str)
    | dict.fromkeys(("nnodes", "nproc", "repeat_index", "epochs", "steps", "warmup_steps"), int)
    | dict.fromkeys(("samples", "sequences", "tokens", "tokens_padded"), int)
    | dict.fromkeys(("quality_value", "quality_target"), float)
    | dict.fromkeys(("quality_reached", "steady"), bool)
)


# Further columns of the index. ``path`` is relative to the store's folder; ``unreadable`` is the
# reason why a record cannot be read, and then only its path is known; ``work`` is a digest of what
# was trained; ``settings`` are the fields of its recipe as a JSON object.
_INDEX_ONLY_COLUMNS: dict[str, type] = (
    dict.fromkeys(("path", "unreadable", "notes", "work", "comparable", "settings"), str)
    | dict.fromkeys(("torch", "driver", "cpu"), str)
    | dict.fromkeys(("bytes", "mtime_ns", "world"), int)
)
# Columns for the index itself, which no filter or list shows.
INTERNAL_COLUMNS = ("bytes", "mtime_ns", "unreadable", "comparable", "settings")
INDEX_COLUMNS: dict[str, type] = _INDEX_ONLY_COLUMNS | COLUMN_TYPES | dict.fromkeys(FIGURES, float)


def make_record_entry(record: Record) -> dict[str, Any]:
    """Return the index entry of a record."""
    environment = record.environment
    work = describe_work(record)
    entry = {
        "world": record.plan.world_size,
        # Digests, by which runs are found that did the same.
        "work": _digest(work),
        "comparable": _digest(work | {"device_products": None}),  # the same work on any device
        "torch": (environment.get("packages") or {}).get("torch"),
        "driver": environment.get("driver"),
        "cpu": environment.get("cpu"),
        "notes": " ".join(sorted({finding.code for finding in record.findings})),
    }
    entry |= {name: column(record) for name, column in COLUMNS.items()}
    # The settings are added last: they are JSON, which must not be shortened as other texts are.
    return _complete_entry(entry, record.figures) | {"settings": _dump_settings(record.plan.recipe)}


def _dump_settings(recipe: Mapping[str, Any]) -> str:
    """Return the fields of a recipe as JSON, without long ones and those no filter can compare."""
    fields = {
        name: value
        for name, value in recipe.items()
        if _is_setting(value) and len(f"{name}{value}") <= _MAX_SETTING
    }
    return json.dumps(fields)


def _is_setting(value: Any) -> bool:
    """Tell whether JSON can represent the value of a recipe field, and a filter compare it."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, int | str)


def make_row_entry(row: Row, file: str) -> dict[str, Any]:
    """Return the index entry of a row of a file below the store's folder."""
    entry = {
        "run_id": f"{file}:{row.line}",
        "status": IMPORTED,
        "world": row.world_size,
        "vendor": row.vendor,
        "device": row.device,
        "precision": row.precision,
        # The site has a page for each case. A row that names none stands on one for its model, or
        # else for its file, not together with all others that name none.
        "case": row.case or row.model or PurePath(file).name,
        "quality_metric": row.metric,
        "quality_value": row.figure(row.metric or ""),  # "": no metric, so no such figure
        # By this unit the site chooses the one speed that its list shows of each entry: the figure
        # ``token/p/s``, tokens per second of one device, if the unit is ``tokens/s``; otherwise
        # ``p_train``, samples per second. A row may have no final result; the unit is set all the
        # same, so that the list shows the speed that the row has.
        "final_result_unit": "tokens/s" if "token/p/s" in row.figures else None,
    }
    return _complete_entry(entry, row.figures)


def _complete_entry(entry: dict[str, Any], figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry with the figures that every case has, and text that any database takes.

    Args:
        entry: values by the name of their column; it is not changed itself.
        figures: by name; those that only some cases have are left out.
    """
    values = {name: figure.value for name, figure in figures.items() if name in FIGURES}
    return {
        key: _shorten(value) if isinstance(value, str) else value
        for key, value in (entry | values).items()
    }


def make_unreadable_entry(reason: str) -> dict[str, Any]:
    """Return the index entry of a record that cannot be read."""
    return {"unreadable": _shorten(reason)}


def _digest(value: Any) -> str:
    """Return a short digest of a document; equal documents have equal ones."""
    return blake2b(to_json(value), digest_size=8).hexdigest()


def _shorten(text: str) -> str:
    """Return a text without control characters (a database may refuse NUL), cut to a column's size.

    It is cut before it is escaped, so that no time is spent on characters that are cut off anyway,
    and again afterwards, because escapes lengthen it.
    """
    return escape_controls(text[:_MAX_TEXT])[:_MAX_TEXT]
