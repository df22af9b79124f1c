"""The performance table as published pages have it, their rows, and what was run where and how.

Owns which columns exist and how a record fills them. A case's ``reference.toml`` asks for another
set by naming its headers.
"""

from __future__ import annotations

import re
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

from trainmark.errors import RecordError, escape_controls, to_one_line
from trainmark.pages import cells
from trainmark.pages.charts import chart_case_curve
from trainmark.pages.document import (
    Block,
    Code,
    Columns,
    Facts,
    Paragraph,
    Section,
    Table,
    build_folded_section,
    build_table,
)
from trainmark.pages.texts import (
    Missing,
    Phrase,
    count_in_words,
    describe_configuration,
    describe_dataset,
    describe_label,
    describe_record_configuration,
    has_cards,
    join,
    or_none,
    or_unknown,
    pairs,
    phrase,
    term,
    translate_headings,
    translate_message,
)
from trainmark.plan.recipes import format_fix_hp
from trainmark.plan.witness import WITNESSED
from trainmark.record.work import count_parameters
from trainmark.results.store.columns import get_device_name
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainmark.events.schema import HangGroup
    from trainmark.plan.plan import Plan
    from trainmark.plan.reference import Reference, References
    from trainmark.record.record import Record
    from trainmark.spec import TableSpec

QUALITY = "<quality>"
PERFORMANCE = ("precision", "fix_hp", "e2e_time", "p_whole", "p_train", "p_core", QUALITY, "mem")
PUBLISHED_NOTHING = "/"  # in the table of published pages: not measured, nothing changed
_TRACEBACK_LINES = 16
_LONGEST_RANKS = 40  # characters
_BETWEEN_FIELDS = re.compile(r",(?=\w+=)")  # a value may hold commas of its own


def format_precision(record: Record) -> str:
    """Return the precision as the case's published pages call it: ``amp`` for fp16, say."""
    precision = str(record.plan.recipe["precision"])
    return record.plan.about.precision_labels.get(precision, precision)


_SHOWN: dict[str, Callable[[float], str]] = {
    "e2e_time": "{:.1f}".format,
    "train_time": "{:.1f}".format,
    "loss": "{:.3f}".format,
    **dict.fromkeys(("p_whole", "p_train", "p_core", "token/p/s"), cells.format_rate),
    "MFU": "{:.1f}%".format,
}


def _format_figure(name: str, record: Record) -> str | None:
    value = record.figure(name)
    return None if value is None else _SHOWN[name](value)


COLUMNS: dict[str, Callable[[Record], Phrase]] = {
    "precision": format_precision,
    "fix_hp": lambda record: format_fix_hp(record.plan.fix_hp),
    "mem": lambda record: cells.format_memory(record.figure("mem"), record.figure("mem_total")),
    **{name: partial(_format_figure, name) for name in _SHOWN},
    QUALITY: lambda record: cells.format_quality_and_target(
        record.quality.value, record.quality.target
    ),
}


def list_columns(references: References) -> tuple[str, ...]:
    """Return the columns a case's references are printed with; without any, the usual ones.

    Raises:
        RecordError: more than one header that no column is called.
    """
    strange = [name for name in references.columns if name not in COLUMNS]
    if len(strange) > 1:
        rule = f"columns must be the quality or one of {', '.join(sorted(COLUMNS))}"
        what = f"unknown columns {', '.join(strange)}"
        raise RecordError(what, where="reference.toml", rule=rule)
    return tuple(QUALITY if x in strange else x for x in references.columns) or PERFORMANCE


def _name_column(name: str, record: Record) -> str:
    """Return a column's header; the quality's as the references print it, else the metric."""
    if name != QUALITY:
        return name
    printed = record.plan.about.references.columns
    return next((name for name in printed if name not in COLUMNS), record.quality.metric)


def build_performance_table(records: Sequence[Record]) -> Table:
    """Return a row a record of one case, in their order, in the form of published pages.

    There ``/`` stands for what was not measured and for no changed field.
    """
    names = list_columns(records[0].plan.about.references)
    rows = (
        (
            (f"[{place}] " if len(records) > 1 else "", describe_record_configuration(record)),
            *(_format_published_cell(name, record) for name in names),
        )
        for place, record in enumerate(records, start=1)
    )
    return build_table(
        (phrase("head.configuration"), *(_name_column(name, records[0]) for name in names)), rows
    )


def _format_published_cell(name: str, record: Record) -> Phrase:
    cell = COLUMNS[name](record)
    if cell not in (None, "", cells.NOTHING):
        return cell
    reason = record.quality.reason
    if name != QUALITY:
        entry = record.figures.get(name)
        reason = entry.reason if entry else None
    if reason is None:
        return PUBLISHED_NOTHING
    return Missing(translate_message(record, reason), PUBLISHED_NOTHING)


def build_reference_table(references: References) -> Table:
    """Return published rows: in Chinese cell by cell as printed, in English in our words."""

    def shown(row: Reference) -> list[Phrase]:
        ours = describe_configuration(row.device, nnodes=row.nnodes, nproc=row.nproc)
        named = {"": row.configuration, **row.cells}
        english = {"": ours, **row.cells_en}
        return [
            phrase("reference.as_printed", printed=cell, ours=english.get(name, cell))
            for name, cell in named.items()
        ]

    return build_table(
        (phrase("head.configuration"), *references.columns), map(shown, references.rows)
    )


def build_published(record: Record) -> Section | None:
    """Return published rows as printed, whether a run compares with them, and their sources."""
    references, recipe = record.plan.about.references, record.plan.recipe_name
    if not references.rows:
        return None
    other = "other" if record.plan.data.origin == "generated" else "unlike"
    alike = other == "unlike" and recipe.startswith(("standard", "published"))
    warned = None if alike else Paragraph(phrase(f"reference.{other}", recipes=recipe), "warn")
    shown = build_reference_table(references), warned, list_sources(references)
    return build_folded_section(
        "references", *shown, gist=count_in_words("rows", len(references.rows))
    )


def list_sources(references: References) -> Facts:
    """Return where published rows come from."""
    items: list[tuple[Phrase, Phrase]] = []
    for source in {row.source.id: row.source for row in references.rows}.values():
        level = phrase(f"evidence.{source.evidence}")
        facts = (source.text, source.url, or_unknown(source.date), level, source.remark)
        names = translate_headings(
            *(f"reference.{x}" for x in ("source", "url", "date", "evidence", "remark"))
        )
        items += [(name, value) for name, value in zip(names, facts, strict=True) if value]
    return Facts(tuple(items))


def _list_known_facts(phrases: Mapping[str, Phrase]) -> Facts:
    """Return the facts that are known, by the keys of their names."""
    return Facts(
        tuple((phrase(name), value) for name, value in phrases.items() if value is not None)
    )


def build_cause(record: Record) -> Section | None:
    """Return how a run failed: exception, signal, stacks, traceback; None when it passed."""
    run_cause = record.cause
    if run_cause is None:
        return None
    names = ("type", "signal", "exit_code")
    told = {f"cause.{name}": getattr(run_cause, name) for name in names}
    stacks = f"stacks.rank<N>.txt ({len(run_cause.stacks)})" if run_cause.stacks else None
    facts = _list_known_facts(told | {"cause.stacks": stacks})
    blocks: list[Block] = [facts] if facts.items else []
    blocks += [_build_hang_table(run_cause.hang)] if run_cause.hang else []
    if run_cause.traceback:
        lines = run_cause.traceback.rstrip().splitlines()[-_TRACEBACK_LINES:]
        blocks.append(Paragraph(phrase("cause.traceback"), "muted"))
        blocks.append(
            Code("\n".join(escape_controls(line.expandtabs(4)).rstrip() for line in lines))
        )
    return build_folded_section("cause", *blocks, is_open=True)


def _build_hang_table(groups: Sequence[HangGroup]) -> Table:
    """Return where the ranks were when a run was stopped, a row for the ranks at one place."""
    rows = []
    for group in groups:
        ranks = group["ranks"]
        if len(ranks) > _LONGEST_RANKS:
            ranks = f"{ranks[:_LONGEST_RANKS]}…"
        state = (phrase(f"hang.{group['state']}"), f" {group['call']}" if group["call"] else "")
        rows.append((ranks, state, group["where"]))
    return build_table((phrase(f"hang.{name}") for name in ("ranks", "state", "place")), rows)


def build_run_facts(record: Record) -> Section:
    """Return what was trained by which rules, and what the case declares besides."""
    plan, job = record.plan, record.environment.get("job") or {}
    data, about = plan.data, plan.about
    parameters, trained = count_parameters(record), job.get("trainable_parameters")
    counted = or_unknown(parameters and cells.count(parameters))
    if trained not in (None, parameters):
        counted = phrase("parameters.trained", all=counted, trained=cells.count(trained))
    sentence = phrase(
        "general.data",
        train=cells.count(data.train_samples),
        eval=cells.count(data.eval_samples),
        layout=data.layout,
        content=data.content_id,
    )
    changed = phrase("def.fix_hp", standards=plan.compared_with)
    kernels = record.environment.get("attention_flags", {})
    facts: dict[str, Phrase] = {
        "fact.labels": join(map(describe_label, record.labels)) if record.labels else None,
        "name.task": about.task,
        "name.model": about.model,
        "name.dataset": (describe_dataset(record), " (", sentence, ")"),
        "name.sample": about.sample_note,
        "name.precision": join((format_precision(record), _explain_precision(record)), "colon"),
        "name.fix_hp": (or_none(format_fix_hp(plan.fix_hp)), " (", changed, ")"),
        "fact.rules": phrase(f"rules.{plan.rules if plan.witness is None else WITNESSED}"),
        "name.extra": or_none(format_fix_hp(plan.extra)),
        "fact.recipe": plan.recipe_name,
        "fact.recipe_fields": join(
            _BETWEEN_FIELDS.split(format_fix_hp(_list_recipe_fields(record)))
        ),
        "fact.parameters": counted,
        "fact.kernels": _describe_kernels(job.get("kernels") or {}),
        "fact.started": record.started,
        "fact.flags": pairs(record.environment.get("precision_flags")),
        "fact.attention": record.environment.get("attention"),
        "fact.attention_flags": ", ".join(name for name, on in kernels.items() if on) or None,
    }
    blocks = [block for spec in about.page.tables for block in _build_declared(record, spec)]
    return build_folded_section("facts", _list_known_facts(facts), *blocks, gist=plan.recipe_name)


def _describe_kernels(used: Mapping[str, str]) -> Phrase:
    """Return whose kernel computes each task; None if the job reported none."""
    if not used:
        return None
    return join((task, ": ", term("kernel", source)) for task, source in used.items())


def _list_recipe_fields(record: Record) -> dict[str, Any]:
    """Return the recipe's fields; a choice of kernels left open is in the kernels that ran."""
    fields = dict(record.plan.recipe)
    if fields.get("kernels") is None and (record.environment.get("job") or {}).get("kernels"):
        fields.pop("kernels", None)
    return fields


def _explain_precision(record: Record) -> Phrase:
    """Return what the precision means for weights and matmuls.

    A case whose frozen weights may be held in 16 bits says so in a field ``weights_dtype``.
    """
    recipe = record.plan.recipe
    held = str(recipe.get("weights_dtype", "fp32"))
    if held != "fp32":
        return message("weights_held_in", dtype=held)
    return message(f"precision_{recipe['precision']}")


def _build_declared(record: Record, spec: TableSpec) -> list[Block]:
    """Return the list or the table that a case declares, under its heading; none without rows."""
    recipe: Any = record.plan.recipe
    job: Any = record.environment.get("job") or {}
    a_rank = recipe["micro_batch_size"] * recipe["grad_accum_steps"]
    run = {"global_batch_size": a_rank * record.plan.world_size}
    places: dict[str, Any] = {"job": job, "recipe": recipe, "run": run}
    heading = Paragraph(spec.heading, "heading")
    if not spec.rows:
        values = ((x.name, _read_value(places, x.value, x.form)) for x in spec.entries)
        return [heading, Facts(tuple(values))]
    entries = job.get(spec.rows) or []
    if spec.curves:
        drawn = tuple(
            chart for shown in spec.entries[1:] if (chart := chart_case_curve(entries, shown))
        )
        return [heading, Columns(drawn)] if drawn else []
    rows = [[_read_value(row, x.value, x.form) for x in spec.entries] for row in entries]
    return [heading, build_table((x.name for x in spec.entries), rows)] if rows else []


def _read_value(places: Mapping[str, Any], place: str, form: str) -> Phrase:
    """Return the value at a path; "not known" if the run ended before reporting it."""
    value: Any = places
    for name in place.split("."):
        if value is None:  # the strategy of one rank, say: none, and so is all that is in it
            break
        if name not in value:
            return or_unknown(None)
        value = value[name]
    if form and isinstance(value, int | float):
        return format(value, form)
    return pairs(value) if isinstance(value, dict) else or_none(value)


def build_environment(record: Record) -> Section:
    """Return hardware and software; of several nodes, those of the first."""
    env, total = record.environment, record.environment.get("memory_total_bytes")
    names = [str(device.get("name")) for device in env.get("devices") or [] if device]
    cards = join(f"{name} x {names.count(name)}" for name in dict.fromkeys(names))
    container = [env.get(f"container{x}") for x in ("", "_version", "_image", "_digest")]
    always_shown = ("machine", "network", "driver", "collective")
    packages = env.get("packages") or {}
    facts = {f"env.{name}": env.get(name) for name in always_shown} | {
        "env.card": cards if names and has_cards(record) else get_device_name(record),
        "env.cpu": join(
            (or_unknown(env.get("cpu")), phrase("env.cores", n=env.get("cpu_cores") or "?"))
        ),
        "env.host_memory": or_unknown(total and f"{total / cells.GIB:.1f} GiB"),
        "env.os": join(map(or_unknown, (env.get("os"), env.get("kernel")))),
        "env.container": join(filter(None, container)) if any(container) else None,
        "env.packages": pairs({"Python": env.get("python")} | packages),
        "env.variables": pairs(env.get("variables")),
    }
    software = [packages.get("torch") and f"torch {packages['torch']}", env.get("driver")]
    gist = join(word for word in software if word)
    return build_folded_section("environment", _list_known_facts(facts), gist=gist)


def _describe_unproven(plan: Plan) -> Phrase:
    """Return what a device and a launcher without real runs yet were tested on."""
    if not plan.unproven:
        return None
    lines = [join((name, tested), "colon") for name, tested in plan.unproven.items()]
    return join(lines, "semicolon")


def build_provenance(records: Sequence[Record]) -> Section:
    """Return how the run was started, the version and the runs."""
    record = records[0]
    made_by = _list_known_facts(
        {
            "foot.suite": f"{record.suite.name} {record.suite.version}",
            "foot.commit": or_unknown(record.environment.get("commit")),
            "foot.run": join(launch.run_id for launch in records),
            "foot.key": record.plan.case_key,
            "foot.tested": _describe_unproven(record.plan),
        }
    )
    command = Code(to_one_line(shlex.join(record.argv)), copied=True)
    gist = f"{record.suite.name} {record.suite.version}"
    return build_folded_section("provenance", command, made_by, gist=gist)
