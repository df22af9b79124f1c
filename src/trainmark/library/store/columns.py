"""The columns of a record: what lists, exports and the index of results call its parts.

A function a column, with the type of its values; None where the record has null.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trainmark.errors import escaped
from trainmark.plan.overrides import fix_hp_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.record.record import Record
    from trainmark.spec import FigureSpec

_UNIT_WORDS = {"%": "percent", "/": "_per_"}


def short_device(record: Record) -> str:
    """Return the device's product name, as ranks saw it or else as planning did."""
    seen = [entry.get("name") for entry in record.environment.get("devices") or [] if entry]
    names = [name for name in (*seen, *record.plan.device.product_names) if name]
    return escaped(" ".join(str(names[0]).split())) if names else "/"


def _changes(values: dict[str, Any]) -> str | None:
    return fix_hp_text(values) if values else None


COLUMNS: dict[str, Callable[[Record], str | int | float | bool | None]] = {
    "run_id": lambda record: record.run_id,
    "case_key": lambda record: record.case_key,
    "case": lambda record: record.plan.case,
    "recipe": lambda record: record.plan.recipe_name,
    "started_utc": lambda record: record.started,
    "status": lambda record: record.status,
    "cause_kind": lambda record: None if record.cause is None else record.cause.kind,
    "trust": lambda record: record.trust.grade,
    "verification": lambda record: record.verification,
    "trust_reasons": lambda record: " ".join(x.code for x in record.trust.reasons) or None,
    "suite_version": lambda record: record.suite.version,
    "suite_commit": lambda record: record.environment.get("commit"),
    "vendor": lambda record: record.plan.device.vendor,
    "device": short_device,
    "nnodes": lambda record: record.plan.nnodes,
    "nproc": lambda record: record.plan.nproc,
    "repeat_index": lambda record: record.plan.repeat_index,
    "precision": lambda record: record.plan.recipe["precision"],
    "rules": lambda record: record.plan.rules,
    "compared_with": lambda record: record.plan.compared_with,
    "fix_hp": lambda record: _changes(record.fix_hp),
    "extra": lambda record: _changes(record.extra),
    "labels": lambda record: " ".join(record.labels) or None,
    "data_origin": lambda record: record.plan.data.origin,
    "data_content_id": lambda record: record.plan.data.content_id,
    "quality_metric": lambda record: record.quality.metric,
    "quality_value": lambda record: record.quality.value,
    "quality_target": lambda record: record.quality.target,
    "quality_reached": lambda record: record.quality.reached,
    "samples": lambda record: record.counts.samples,
    "sequences": lambda record: record.counts.sequences,
    "tokens": lambda record: record.counts.tokens,
    "tokens_padded": lambda record: record.counts.tokens_padded,
    "steps": lambda record: record.counts.steps,
    "epochs": lambda record: record.counts.epochs,
    "warmup_steps": lambda record: record.steps.warmup,
    "steady": lambda record: record.steps.steady,
    "monitor": lambda record: record.telemetry.monitor if record.telemetry else None,
    "final_result_unit": lambda record: record.figures["final_result"].unit,  # the case's own
}
# What columns hold; texts the others, or null.
KINDS: dict[str, Any] = (
    dict.fromkeys(COLUMNS, str)
    | dict.fromkeys(("nnodes", "nproc", "repeat_index", "epochs", "steps", "warmup_steps"), int)
    | dict.fromkeys(("samples", "sequences", "tokens", "tokens_padded"), int)
    | dict.fromkeys(("quality_value", "quality_target"), float)
    | dict.fromkeys(("quality_reached", "steady"), bool)
)


def column_name(name: str, unit: str, spec: FigureSpec | None) -> str:
    """Return what a figure's column is called: as declared, or its name with its unit."""
    if spec is not None and spec.column:
        return spec.column
    for sign, word in _UNIT_WORDS.items():
        unit = unit.replace(sign, word)
    return re.sub(r"\W+", "_", f"{name}_{unit}").strip("_")
