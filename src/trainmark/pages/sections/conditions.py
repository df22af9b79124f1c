"""What was run and how it ended: the cause of a failure, facts, general figures, the case's own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trainmark.library.store.columns import short_device
from trainmark.pages import cells
from trainmark.pages.document import Block, Code, Facts, Paragraph, Section, Table, table
from trainmark.pages.phrases import (
    hang_table,
    heads,
    label_text,
    listed,
    sentence,
    verdict,
)
from trainmark.pages.sections.performance import precision_label, precision_note
from trainmark.pages.texts import Phrase, join, known, pairs, shared, t, worded
from trainmark.plan.overrides import fix_hp_text
from trainmark.record.messages import way_out

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainmark.record.record import Record
    from trainmark.spec import TableSpec, Text

_TRACEBACK_LINES = 16
_BETWEEN_FIELDS = re.compile(r",(?=\w+=)")  # a value may hold commas of its own
_ON_STEADINESS = ("not_steady", "steadiness_unknown")


def cause(record: Record, number: str, place: int) -> Section | None:
    """Return why a run did not pass and what to do; None when it passed."""
    found = record.cause
    if found is None:
        return None
    items = [
        (t("fact.status"), t(f"status.{record.status}")),
        (t("cause.kind"), found.kind),
        (t("cause.message"), sentence(record, found.message)),
        (t("cause.remedy"), sentence(record, way_out(found))),
    ]
    for key in ("rank", "place", "type", "signal", "exit_code"):
        value = getattr(found, key)
        if value is not None:
            items.append((t(f"cause.{key}"), value))
    if found.stacks:
        items.append((t("cause.stacks"), f"stacks.rank<N>.txt ({len(found.stacks)})"))
    blocks: list[Block] = [Facts(tuple(items))]
    blocks += [hang_table(found.hang)] if found.hang else []
    if found.traceback:
        lines = found.traceback.rstrip().splitlines()[-_TRACEBACK_LINES:]
        blocks.append(Paragraph(t("cause.traceback"), "muted"))
        blocks.append(Code("\n".join(cells.clean_line(line) for line in lines)))
    return Section((t("section.cause"), number), f"cause{place}", tuple(blocks))


def facts(records: Sequence[Record]) -> Section:
    """Return how the runs ended, by which rules, and what a reader must know of them."""
    return Section(t("section.facts"), "facts", (listed(records, _facts),), 3)


def _facts(record: Record) -> Mapping[str | Text, Phrase]:
    plan, job = record.plan, record.environment.get("job") or {}
    predicted, kernels = job.get("predicted_peak_bytes"), job.get("kernels")
    world, name = plan.recipe.get("world"), plan.recipe_name
    notes = [note for note in record.notes if note.code not in _ON_STEADINESS]
    parameters, trained = job.get("parameters"), job.get("trainable_parameters")
    counted = known(parameters and cells.count(parameters))
    if trained not in (None, parameters):
        counted = t("parameters.trained", all=counted, trained=cells.count(trained))
    found: dict[str | Text, Phrase] = {
        "fact.status": t(f"status.{record.status}"),
        "fact.verdict": verdict(record),
        "fact.labels": _several([label_text(label) for label in record.labels], "comma"),
        "fact.rules": t(f"rules.{plan.rules}"),
        "fact.recipe": t(f"recipe.{'for' if world else 'any'}", name=name, world=world),
        "fact.recipe_fields": join(_BETWEEN_FIELDS.split(fix_hp_text(plan.recipe))),
        "fact.parameters": counted,
        # Few cases predict it.
        "fact.predicted_memory": predicted and f"{predicted / cells.GIB:.3g} GiB",
        "fact.world": t("world.text", world=f"{plan.nnodes}x{plan.nproc}", n=plan.world_size),
        "fact.kernels": kernels and pairs(kernels),
        "fact.repeat": t("repeat.text", index=plan.repeat_index, count=plan.repeat_count),
        "fact.started": record.started,
        "fact.flags": pairs(record.environment.get("precision_flags")),
        "fact.steady": _steady(record),
        "fact.findings": _several([sentence(record, x) for x in record.findings], "semicolon"),
        "fact.notes": _several([sentence(record, x) for x in notes], "semicolon"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _several(said: Sequence[Phrase], by: str) -> Phrase:
    return join(said, by) if said else worded(None)


def _steady(record: Record) -> Phrase:
    steps = record.steps
    if steps.steady is None or steps.drift is None:
        return t("steady.unknown")
    return t(f"steady.{'yes' if steps.steady else 'no'}", drift=f"{100 * steps.drift:+.1f}%")


def general(records: Sequence[Record]) -> Section:
    """Return the founding pages' table of what was trained on which device."""
    about = records[0].plan.about

    def all_of(read: Callable[[Record], Phrase]) -> Phrase:
        return shared([read(record) for record in records])

    rows = (
        (t("name.task"), about.task, ""),
        (t("name.model"), about.model, ""),
        (t("name.dataset"), about.dataset, all_of(_data)),
        (t("name.sample"), about.sample_note, ""),
        (t("name.precision"), all_of(precision_label), all_of(precision_note)),
        (t("name.device"), all_of(short_device), ""),
        (t("name.extra"), all_of(_extra), t("def.extra")),
    )
    shown = table(heads("name", "value", "remark"), rows)
    return Section(t("section.general"), "general", (shown,), 3)


def _extra(record: Record) -> Phrase:
    return fix_hp_text(record.extra) if record.extra else worded(None)


def _data(record: Record) -> Phrase:
    data = record.plan.data
    return t(
        "general.data", train=cells.count(data.train_samples), eval=cells.count(data.eval_samples),
        layout=data.layout, origin=t(f"origin.{data.origin}"), content=data.content_id,
    )  # fmt: skip


def declared(records: Sequence[Record]) -> list[Section]:
    """Return a section for each list and table that a case declares; none without rows."""
    found = []
    for place, spec in enumerate(records[0].plan.about.page.tables, start=1):
        blocks: list[Block] = []
        if spec.rows:
            for made in (declared_table(record, spec) for record in records):
                blocks += [made] if made is not None and made not in blocks else []
        else:
            blocks = [listed(records, lambda record, spec=spec: _entries(record, spec))]  # type: ignore[misc]
        if blocks:
            found.append(Section(spec.heading, f"own{place}", tuple(blocks), 3))
    return found


def declared_table(record: Record, spec: TableSpec) -> Table | None:
    """Return the table of the rows that a run's job reported; None without rows."""
    reported = (record.environment.get("job") or {}).get(spec.rows)
    rows = [row for row in reported if isinstance(row, dict)] if isinstance(reported, list) else []
    if not rows:
        return None
    return table(
        (entry.name for entry in spec.entries),
        ([_shown(row.get(entry.value), entry.form) for entry in spec.entries] for row in rows),
    )


def _entries(record: Record, spec: TableSpec) -> Mapping[str | Text, Phrase]:
    """Return the values of a list by their names."""
    plan = record.plan
    a_rank = plan.recipe["micro_batch_size"] * plan.recipe["grad_accum_steps"]
    places = {
        "job": record.environment.get("job") or {},
        "recipe": plan.recipe,
        "run": {"global_batch_size": a_rank * plan.world_size},
    }
    return {x.name: _value(places, x.value, x.form) for x in spec.entries}


def _value(places: Mapping[str, Any], place: str, form: str) -> Phrase:
    """Return the value at a path; "not known" if the run ended before reporting it."""
    found: Any = places
    for name in place.split("."):
        if found is None:  # the strategy of one rank, say: none, and so is all that is in it
            break
        if not isinstance(found, dict) or name not in found:
            return known(None)
        found = found[name]
    return _shown(found, form)


def _shown(value: Any, form: str) -> Phrase:
    if isinstance(value, dict):
        return pairs(value)
    if form and isinstance(value, int | float) and not isinstance(value, bool):
        return format(value, form)
    return worded(value)
