"""The columns of a record: what lists, exports and the index of results call its parts.

A function a column, with the type of its values; None where the record has null. Owns what the
index holds of a record, of one that cannot be read, and of a row that others published.
"""

from __future__ import annotations

import json
import math
import re
from hashlib import blake2b
from operator import attrgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from trainmark.errors import escaped
from trainmark.plan.overrides import fix_hp_text
from trainmark.record.figures import FIGURES
from trainmark.record.work import work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainmark.record.record import Record
    from trainmark.record.work import Row
    from trainmark.spec import FigureSpec

    Value = str | int | float | bool | None

IMPORTED = "imported"  # folder of files of others in a store; status of their rows
_MOST_TEXT = 1000  # characters: the index is for finding, the record has the whole
_MOST_SETTING = 100  # characters of a recipe field's value; longer ones are not in the index
_UNIT_WORDS = {"%": "percent", "/": "_per_"}


def short_device(record: Record) -> str:
    """Return the device's product name, as ranks saw it or else as planning did."""
    seen = [entry.get("name") for entry in record.environment.get("devices") or [] if entry]
    names = [name for name in (*seen, *record.plan.device.product_names) if name]
    return escaped(" ".join(str(names[0]).split())) if names else "/"


# Where a record has it, or what computes it.
_SOURCES: dict[str, str | Callable[[Record], Value]] = {
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
    "device": short_device,
    "nnodes": "plan.nnodes",
    "nproc": "plan.nproc",
    "repeat_index": "plan.repeat_index",
    "precision": lambda record: record.plan.recipe["precision"],
    "rules": "plan.rules",
    "compared_with": "plan.compared_with",
    "fix_hp": lambda record: fix_hp_text(record.plan.fix_hp) or None,
    "extra": lambda record: fix_hp_text(record.plan.extra) or None,
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
    "final_result_unit": lambda record: record.figures["final_result"].unit,  # the case's own
}
COLUMNS: dict[str, Callable[[Record], Value]] = {
    name: attrgetter(source) if isinstance(source, str) else source
    for name, source in _SOURCES.items()
}
# What columns hold; texts the others, or null.
KINDS: dict[str, Any] = (
    dict.fromkeys(COLUMNS, str)
    | dict.fromkeys(("nnodes", "nproc", "repeat_index", "epochs", "steps", "warmup_steps"), int)
    | dict.fromkeys(("samples", "sequences", "tokens", "tokens_padded"), int)
    | dict.fromkeys(("quality_value", "quality_target"), float)
    | dict.fromkeys(("quality_reached", "steady"), bool)
)


# Of a result, besides the columns of records: ``path`` is relative to the store's folder;
# ``unreadable`` is why a record cannot be read, which then has no more than its path;
# ``settings`` are the fields of its recipe as a JSON object.
_OTHERS: dict[str, type] = (
    dict.fromkeys(("path", "unreadable", "notes", "work", "comparable", "settings"), str)
    | dict.fromkeys(("torch", "driver", "cpu"), str)
    | dict.fromkeys(("bytes", "mtime_ns", "world"), int)
)
# What the index needs for itself, and no filter or list shows.
INTERNAL = ("bytes", "mtime_ns", "unreadable", "comparable", "settings")
INDEXED: dict[str, type] = _OTHERS | KINDS | dict.fromkeys(FIGURES, float)


def column_name(name: str, unit: str, spec: FigureSpec | None) -> str:
    """Return what a figure's column is called: as declared, or its name with its unit."""
    if spec is not None and spec.column:
        return spec.column
    for sign, word in _UNIT_WORDS.items():
        unit = unit.replace(sign, word)
    return re.sub(r"\W+", "_", f"{name}_{unit}").strip("_")


def of_record(found: Record) -> dict[str, Any]:
    """Return what the index holds of a record."""
    environment, done = found.environment, work(found)
    made = {
        "world": found.plan.world_size,
        "work": _digest(done),
        "comparable": _digest(done | {"device_products": None}),  # on whatever device
        "torch": (environment.get("packages") or {}).get("torch"),
        "driver": environment.get("driver"),
        "cpu": environment.get("cpu"),
        "notes": " ".join(sorted({x.code for x in found.findings})),
    }
    made |= {name: column(found) for name, column in COLUMNS.items()}
    return _stored(made, found.figures) | {"settings": _settings(found.plan.recipe)}


def _settings(recipe: Mapping[str, Any]) -> str:
    """Return the fields of a recipe as JSON; values that no recipe of ours has are left out."""
    fields = {
        name: value for name, value in recipe.items()
        if value is None or isinstance(value, int | str)
        or (isinstance(value, float) and math.isfinite(value))
    }  # fmt: skip
    short = {name: x for name, x in fields.items() if len(f"{name}{x}") <= _MOST_SETTING}
    return json.dumps(short)


def of_row(row: Row, file: str) -> dict[str, Any]:
    """Return what the index holds of a row of a file below the store's folder."""
    made = {name: getattr(row, name) for name in ("vendor", "device", "precision")} | {
        "run_id": f"{file}:{row.line}", "status": IMPORTED, "world": row.world_size,
        "case": row.case or row.model or PurePath(file).name, "quality_metric": row.metric,
        "quality_value": row.figure(row.metric or ""),
        "final_result_unit": "tokens/s" if "token/p/s" in row.figures else None,
    }  # fmt: skip
    return _stored(made, row.figures)


def _stored(made: dict[str, Any], figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns with the figures of all cases, and with text that any database takes."""
    made |= {name: figure.value for name, figure in figures.items() if name in FIGURES}
    return {key: _text(value) if isinstance(value, str) else value for key, value in made.items()}


def of_unread(why: str) -> dict[str, Any]:
    """Return what the index holds of a record that cannot be read."""
    return {"unreadable": _text(why)}


def _digest(value: Any) -> str:
    return blake2b(to_json(value), digest_size=8).hexdigest()


def _text(text: str) -> str:
    return escaped(text[:_MOST_TEXT])[:_MOST_TEXT]
