"""The page's first half: what was run, on what, by which rules, and what each column means."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainmark.library.store.columns import short_device
from trainmark.pages import cells
from trainmark.pages.document import Block, Code, Facts, Grid, Paragraph, Section, Table
from trainmark.pages.listing import joined, listed, sentence, shared
from trainmark.pages.tables import (
    COLUMNS,
    QUALITY,
    definition,
)
from trainmark.pages.texts import has, text
from trainmark.plan.overrides import fix_hp_text
from trainmark.record.figures import FIGURES
from trainmark.record.messages import way_out
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.plan.plan import PlannedCase
    from trainmark.record.record import Record
    from trainmark.record.shapes import HangGroup

_TRACEBACK_LINES = 16
_LONGEST_RANKS = 40  # characters
_BETWEEN_FIELDS = re.compile(r",(?=\w+=)")  # a value may hold commas of its own
_ON_STEADINESS = ("not_steady", "steadiness_unknown")
_SHOWN_UNITS = {"mem": "GiB"}  # of cells that are printed in another unit than records hold


def verdict(record: Record, lang: str) -> str:
    """Return the quality against the target as a sentence."""
    quality = record.quality
    if quality.value is None:
        reason = sentence(record, quality.reason, lang, none=text("fact.unknown", lang))
        return text("verdict.none", lang, metric=quality.metric, reason=reason)
    if quality.target is None:
        key = "verdict.no_target"
    else:
        key = "verdict.reached" if quality.reached else "verdict.missed"
    value = cells.quality(quality.value, target=quality.target)
    target = "" if quality.target is None else f"{quality.target:g}"
    said = text(key, lang, metric=quality.metric, value=value, target=target)
    if quality.best_possible is None:
        return said
    best = text("verdict.best", lang, best=f"{quality.best_possible:.3f}")
    return said + text("sep.semicolon", lang) + best


def label_text(label: str, lang: str) -> str:
    """Return a label with what it means."""
    key = f"label.{label}" if has(f"label.{label}") else f"label.{label.rpartition('-')[0]}"
    if not has(key):
        return label
    return text("label.form", lang, label=label, meaning=text(key, lang))


def _steady(record: Record, lang: str) -> str:
    steps = record.steps
    if steps.steady is None or steps.drift is None:
        return text("steady.unknown", lang)
    return text(
        "steady.yes" if steps.steady else "steady.no", lang, drift=f"{100 * steps.drift:+.1f}%"
    )


def _notes(record: Record, lang: str) -> list[str]:
    """Return the notes, without those that repeat the line on steadiness."""
    return [
        sentence(record, note, lang) for note in record.notes if note.code not in _ON_STEADINESS
    ]


def _recipe(record: Record, lang: str) -> str:
    world = record.plan.recipe.get("world")
    name = record.plan.recipe_name
    if world is None:
        return text("recipe.any", lang, name=name)
    return text("recipe.for", lang, name=name, world=world)


def facts(records: Sequence[Record], lang: str) -> Section:
    """Return how the runs ended, by which rules, and what a reader must know of them."""
    return Section(
        text("section.facts", lang), 3, "facts", (listed(records, lambda x: _facts(x, lang)),)
    )


def _facts(record: Record, lang: str) -> dict[str, str]:
    plan, none = record.plan, text("fact.none", lang)
    comma, stop = text("sep.comma", lang), text("sep.semicolon", lang)
    world = f"{plan.nnodes}x{plan.nproc}"
    job = record.environment.get("job") or {}
    predicted, kernels = job.get("predicted_peak_bytes"), job.get("kernels")
    found = {
        "status": text(f"status.{record.status}", lang),
        "verdict": verdict(record, lang),
        "labels": comma.join(label_text(label, lang) for label in record.labels) or none,
        "rules": text(f"rules.{plan.rules}", lang),
        "recipe": _recipe(record, lang),
        "recipe_fields": _BETWEEN_FIELDS.sub(comma, fix_hp_text(plan.recipe)),
        "parameters": _parameters(record, lang),
        # Few cases predict it.
        "predicted_memory": None if predicted is None else f"{predicted / cells.GIB:.3g} GiB",
        "world": text("world.text", lang, world=world, n=plan.world_size),
        "kernels": joined(kernels, lang) if kernels else None,
        "repeat": text("repeat.text", lang, index=plan.repeat_index, count=plan.repeat_count),
        "started": cells.clean(record.started),
        "flags": joined(record.environment.get("precision_flags"), lang),
        "steady": _steady(record, lang),
        "findings": stop.join(sentence(record, x, lang) for x in record.findings) or none,
        "notes": stop.join(_notes(record, lang)) or none,
    }
    return {text(f"fact.{name}", lang): value for name, value in found.items() if value is not None}


def _parameters(record: Record, lang: str) -> str:
    """Return the model's parameters as the job counted them."""
    job = record.environment.get("job") or {}
    found, trained = job.get("parameters"), job.get("trainable_parameters")
    if found is None:
        return text("fact.unknown", lang)
    if trained in (None, found):
        return cells.count(found)
    return text("parameters.trained", lang, all=cells.count(found), trained=cells.count(trained))


def _data(record: Record, lang: str) -> str:
    data = record.plan.data
    return text(
        "general.data",
        lang,
        train=cells.count(data.train_samples),
        eval=cells.count(data.eval_samples),
        layout=data.layout,
        origin=text(f"origin.{data.origin}", lang),
        content=data.content_id,
    )


def _precision_note(record: Record, lang: str) -> str:
    """Return what the precision means for weights and matmuls.

    A case whose frozen weights may be held in 16 bits says so in a field ``weights_dtype``.
    """
    recipe = record.plan.recipe
    held = recipe.get("weights_dtype", "fp32")
    if held != "fp32":
        return sentence(record, message("weights_held_in", dtype=str(held)), lang)
    return sentence(record, message(f"precision_{recipe['precision']}"), lang)


def _column(name: str, records: Sequence[Record], about: PlannedCase, lang: str) -> tuple[str, str]:
    """Return what a column of the performance table is called and what it means."""
    comma = text("sep.comma", lang)
    if name == QUALITY:
        return text("name.quality", lang), about.metric_note.in_language(lang)
    if name == "precision":
        used = dict.fromkeys(_precision_note(record, lang) for record in records)
        return text("name.precision", lang), text(
            "def.precision", lang, precisions=comma.join(used)
        )
    if name == "fix_hp":
        standards = dict.fromkeys(record.plan.compared_with for record in records)
        return text("name.fix_hp", lang), text("def.fix_hp", lang, standards=comma.join(standards))
    spec = FIGURES[name]
    meaning, unit = definition(spec, records, lang), _SHOWN_UNITS.get(name, spec.unit)
    if unit:
        meaning = text("figure.in_unit", lang, meaning=meaning, unit=unit)
    if name == "p_core":
        meaning += _sequence_lengths(records, lang)
    return spec.label.in_language(lang), meaning


def _sequence_lengths(records: Sequence[Record], lang: str) -> str:
    """Return ``(seq_length=512)`` as the founding pages do; nothing where a case has none."""
    lengths = [record.plan.recipe.get("seq_length") for record in records]
    known = dict.fromkeys(str(length) for length in lengths if length is not None)
    return text("def.seq_length", lang, lengths="/".join(known)) if known else ""


def columns_meaning(
    records: Sequence[Record], about: PlannedCase, lang: str, *, columns: Sequence[str], metric: str
) -> Section:
    """Return what each column of the performance table means."""
    items = []
    for name in columns if "precision" in columns else ("precision", *columns):
        printed = metric if name == QUALITY else name
        called, meaning = _column(name, records, about, lang)
        if called != printed:
            meaning = text("columns.form", lang, name=called, meaning=meaning)
        items.append((printed, meaning))
    names = text("sep.comma", lang).join(name for name, _ in items)
    heading = text("section.columns", lang)
    return Section(heading, 3, "columns", (Facts(tuple(items)),), drawer=names)


def general(records: Sequence[Record], about: PlannedCase, lang: str) -> Section:
    """Return the founding pages' table of what was trained on which device."""

    def extra(record: Record) -> str:
        changed = fix_hp_text(record.extra)
        return text("fact.none", lang) if changed == cells.NOTHING else changed

    def all_of(read: Callable[[Record], str]) -> str:
        return shared([read(record) for record in records])

    rows = (
        (text("name.task", lang), about.task.in_language(lang), ""),
        (text("name.model", lang), about.model, ""),
        (text("name.dataset", lang), about.dataset, all_of(lambda record: _data(record, lang))),
        (text("name.sample", lang), about.sample_note.in_language(lang), ""),
        (
            text("name.precision", lang),
            all_of(COLUMNS["precision"]),
            all_of(lambda record: _precision_note(record, lang)),
        ),
        (text("name.device", lang), all_of(short_device), ""),
        (text("name.extra", lang), all_of(extra), text("def.extra", lang)),
    )
    names = tuple(text(f"head.{name}", lang) for name in ("name", "value", "remark"))
    return Section(text("section.general", lang), 3, "general", (Grid(Table(names, rows)),))


def cause(record: Record, lang: str, *, number: str = "") -> Section | None:
    """Return why a run did not pass and what to do; None when it passed."""
    found = record.cause
    if found is None:
        return None
    items = [
        (text("fact.status", lang), text(f"status.{record.status}", lang)),
        (text("cause.kind", lang), found.kind),
        (text("cause.message", lang), cause_text(record, lang)),
        (text("cause.remedy", lang), remedy(record, lang)),
    ]
    for key in ("rank", "place", "type", "signal", "exit_code"):
        value = getattr(found, key)
        if value is not None:
            items.append((text(f"cause.{key}", lang), str(value)))
    if found.stacks:
        items.append((text("cause.stacks", lang), f"stacks.rank<N>.txt ({len(found.stacks)})"))
    blocks: list[Block] = [Facts(tuple(items))]
    blocks += [Grid(hang_table(found.hang, lang))] if found.hang else []
    if found.traceback:
        lines = found.traceback.rstrip().splitlines()[-_TRACEBACK_LINES:]
        blocks.append(Paragraph(text("cause.traceback", lang), "muted"))
        blocks.append(Code("\n".join(cells.clean_line(line) for line in lines)))
    return Section(text("section.cause", lang) + number, 2, "cause", tuple(blocks))


def hang_table(groups: Sequence[HangGroup], lang: str) -> Table:
    """Return where the ranks were when a run was stopped, a row for the ranks at one place."""
    rows = []
    for group in groups:
        ranks, steps = group["ranks"], "–".join(map(str, group["steps"]))
        if len(ranks) > _LONGEST_RANKS:
            ranks = f"{ranks[:_LONGEST_RANKS]}… ({group['count']})"
        state = text(f"hang.{group['state']}", lang)
        rows.append((ranks, f"{state} {group['call'] or ''}".rstrip(), group["where"], steps))
    heads = (text(f"hang.{name}", lang) for name in ("ranks", "state", "place", "step"))
    return Table(tuple(heads), tuple(rows))


def cause_text(record: Record, lang: str) -> str:
    """Return what the cause says."""
    return "" if record.cause is None else sentence(record, record.cause.message, lang)


def remedy(record: Record, lang: str) -> str:
    """Return what to do about a run that did not pass."""
    return "" if record.cause is None else sentence(record, way_out(record.cause), lang)
