"""What was run, on which hardware and software, and how it was started."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from trainmark.errors import escaped
from trainmark.library.store.columns import short_device
from trainmark.pages import cells
from trainmark.pages.document import Block, Code, Facts, Paragraph, Section, folded, table
from trainmark.pages.phrases import hang_table, has_cards, label_text, num_parameters
from trainmark.pages.sections.performance import precision_label
from trainmark.pages.texts import Phrase, join, known, pairs, t, worded
from trainmark.plan.overrides import fix_hp_text
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.record.record import Record
    from trainmark.spec import TableSpec

_TRACEBACK_LINES = 16
_BETWEEN_FIELDS = re.compile(r",(?=\w+=)")  # a value may hold commas of its own


def _facts(found: Mapping[str, Phrase]) -> Facts:
    """Return the facts that are known, by the keys of their names."""
    return Facts(tuple((t(name), value) for name, value in found.items() if value is not None))


def cause(record: Record) -> Section | None:
    """Return where a run failed: place, exception, stacks, traceback; None when it passed."""
    found = record.cause
    if found is None:
        return None
    names = ("kind", "place", "type", "signal", "exit_code")
    told = {f"cause.{name}": getattr(found, name) for name in names}
    stacks = f"stacks.rank<N>.txt ({len(found.stacks)})" if found.stacks else None
    blocks: list[Block] = [_facts(told | {"cause.stacks": stacks})]
    blocks += [hang_table(found.hang)] if found.hang else []
    if found.traceback:
        lines = found.traceback.rstrip().splitlines()[-_TRACEBACK_LINES:]
        blocks.append(Paragraph(t("cause.traceback"), "muted"))
        blocks.append(Code("\n".join(escaped(line.expandtabs(4)).rstrip() for line in lines)))
    return folded("cause", *blocks)


def run(record: Record) -> Section:
    """Return what was trained by which rules, and what the case declares besides."""
    plan, job = record.plan, record.environment.get("job") or {}
    data, about = plan.data, plan.about
    parameters, trained = num_parameters(record), job.get("trainable_parameters")
    counted = known(parameters and cells.count(parameters))
    if trained not in (None, parameters):
        counted = t("parameters.trained", all=counted, trained=cells.count(trained))
    told = t(
        "general.data", train=cells.count(data.train_samples),
        eval=cells.count(data.eval_samples), layout=data.layout,
        origin=t(f"origin.{data.origin}"), content=data.content_id,
    )  # fmt: skip
    changed = t("def.fix_hp", standards=plan.compared_with)
    found: dict[str, Phrase] = {
        "fact.labels": join(map(label_text, record.labels)) if record.labels else None,
        "name.task": about.task,
        "name.model": about.model,
        "name.dataset": (about.dataset, " (", told, ")"),
        "name.sample": about.sample_note,
        "name.precision": join((precision_label(record), _precision_note(record)), "colon"),
        "name.fix_hp": join((fix_hp_text(record.fix_hp), changed), "colon"),
        "fact.rules": t(f"rules.{plan.rules}"),
        "name.extra": worded(fix_hp_text(record.extra) if record.extra else None),
        "fact.recipe": plan.recipe_name,
        "fact.recipe_fields": join(_BETWEEN_FIELDS.split(fix_hp_text(plan.recipe))),
        "fact.parameters": counted,
        "fact.kernels": pairs(job["kernels"]) if job.get("kernels") else None,
        "fact.started": record.started,
        "fact.flags": pairs(record.environment.get("precision_flags")),
    }
    blocks = [block for spec in about.page.tables for block in _declared(record, spec)]
    return folded("facts", _facts(found), *blocks)


def _precision_note(record: Record) -> Phrase:
    """Return what the precision means for weights and matmuls.

    A case whose frozen weights may be held in 16 bits says so in a field ``weights_dtype``.
    """
    recipe = record.plan.recipe
    held = str(recipe.get("weights_dtype", "fp32"))
    if held != "fp32":
        return message("weights_held_in", dtype=held)
    return message(f"precision_{recipe['precision']}")


def _declared(record: Record, spec: TableSpec) -> list[Block]:
    """Return the list or the table that a case declares, under its heading; none without rows."""
    recipe: Any = record.plan.recipe
    job: Any = record.environment.get("job") or {}
    a_rank = recipe["micro_batch_size"] * recipe["grad_accum_steps"]
    run = {"global_batch_size": a_rank * record.plan.world_size}
    places: dict[str, Any] = {"job": job, "recipe": recipe, "run": run}
    heading = Paragraph(spec.heading, "heading")
    if not spec.rows:
        values = ((x.name, _value(places, x.value, x.form)) for x in spec.entries)
        return [heading, Facts(tuple(values))]
    told = job.get(spec.rows) or []
    rows = [[_value(row, x.value, x.form) for x in spec.entries] for row in told]
    return [heading, table((x.name for x in spec.entries), rows)] if rows else []


def _value(places: Mapping[str, Any], place: str, form: str) -> Phrase:
    """Return the value at a path; "not known" if the run ended before reporting it."""
    found: Any = places
    for name in place.split("."):
        if found is None:  # the strategy of one rank, say: none, and so is all that is in it
            break
        if name not in found:
            return known(None)
        found = found[name]
    if form and isinstance(found, int | float):
        return format(found, form)
    return pairs(found) if isinstance(found, dict) else worded(found)


def environment(record: Record) -> Section:
    """Return hardware and software; of several nodes, those of the first."""
    env, total = record.environment, record.environment.get("memory_total_bytes")
    names = [str(one.get("name")) for one in env.get("devices") or [] if one]
    cards = join(f"{name} x {names.count(name)}" for name in dict.fromkeys(names))
    container = [env.get(f"container{x}") for x in ("", "_version", "_image", "_digest")]
    cpu = (
        known(env.get("cpu")), t("env.cores", n=env.get("cpu_cores") or "?"),
        t("env.numa", n=env.get("numa_nodes") or "?"),
    )  # fmt: skip
    told = ("machine", "network", "driver", "collective")
    facts = {f"env.{name}": env.get(name) for name in told} | {
        "env.card": cards if names and has_cards(record) else short_device(record),
        "env.cpu": join(cpu),
        "env.host_memory": known(total and f"{total / cells.GIB:.1f} GiB"),
        "env.os": join(map(known, (env.get("os"), env.get("kernel")))),
        "env.container": join(filter(None, container)) if any(container) else None,
        "env.packages": pairs({"Python": env.get("python")} | (env.get("packages") or {})),
        "env.variables": pairs(env.get("variables")),
    }
    return folded("environment", _facts(facts))


def provenance(records: Sequence[Record]) -> Section:
    """Return how the run was started, the version and the runs."""
    record = records[0]
    made_by = _facts({
        "foot.suite": f"{record.suite.name} {record.suite.version}",
        "foot.commit": known(record.environment.get("commit")),
        "foot.run": join(one.run_id for one in records),
        "foot.key": record.case_key,
    })  # fmt: skip
    return folded(
        "provenance",
        Code(cells.clean(shlex.join(record.argv)), copied=True),
        made_by,
    )
