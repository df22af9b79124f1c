"""What was run, on which hardware and software, how to run it again, and from which files."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from trainmark.library.store.columns import short_device
from trainmark.pages import cells
from trainmark.pages.document import Block, Code, Facts, Paragraph, Section, table
from trainmark.pages.phrases import hang_table, has_cards, heads, label_text
from trainmark.pages.sections.performance import precision_label, precision_note
from trainmark.pages.texts import Phrase, join, known, pairs, t, worded
from trainmark.plan.overrides import fix_hp_text
from trainmark.recipe import FIELD_ALIASES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainmark.record.record import Record
    from trainmark.spec import TableSpec

_TRACEBACK_LINES = 16
_BETWEEN_FIELDS = re.compile(r",(?=\w+=)")  # a value may hold commas of its own
_MOST_NODES = 24  # that differ
_DATA = "DATA"  # in place of the folder, which records do not name


def _facts(found: Mapping[str, Phrase]) -> Facts:
    """Return the facts that are known, by the keys of their names."""
    return Facts(tuple((t(name), value) for name, value in found.items() if value is not None))


def cause(record: Record) -> Section | None:
    """Return where a run failed: place, exception, stacks, traceback; None when it passed."""
    found = record.cause
    if found is None:
        return None
    told = {
        f"cause.{x}": getattr(found, x) for x in ("kind", "place", "type", "signal", "exit_code")
    }
    stacks = f"stacks.rank<N>.txt ({len(found.stacks)})" if found.stacks else None
    blocks: list[Block] = [_facts(told | {"cause.stacks": stacks})]
    blocks += [hang_table(found.hang)] if found.hang else []
    if found.traceback:
        lines = found.traceback.rstrip().splitlines()[-_TRACEBACK_LINES:]
        blocks.append(Paragraph(t("cause.traceback"), "muted"))
        blocks.append(Code("\n".join(cells.clean_line(line) for line in lines)))
    return Section(t("section.cause"), "cause", tuple(blocks), folded=True)


def run(record: Record) -> Section:
    """Return what was trained by which rules, and what the case declares besides."""
    plan, job = record.plan, record.environment.get("job") or {}
    data, about = plan.data, plan.about
    predicted, kernels = job.get("predicted_peak_bytes"), job.get("kernels")
    parameters, trained = job.get("parameters"), job.get("trainable_parameters")
    counted = known(parameters and cells.count(parameters))
    if trained not in (None, parameters):
        counted = t("parameters.trained", all=counted, trained=cells.count(trained))
    labels = join(map(label_text, record.labels)) if record.labels else None
    found: dict[str, Phrase] = {
        "fact.labels": labels,
        "name.task": about.task,
        "name.model": about.model,
        "name.dataset": (about.dataset, " (", t(
            "general.data", train=cells.count(data.train_samples),
            eval=cells.count(data.eval_samples), layout=data.layout,
            origin=t(f"origin.{data.origin}"), content=data.content_id,
        ), ")"),
        "name.sample": about.sample_note,
        "name.precision": join((precision_label(record), precision_note(record)), "colon"),
        "fact.rules": t(f"rules.{plan.rules}"),
        "name.extra": fix_hp_text(record.extra) if record.extra else worded(None),
        "fact.recipe": plan.recipe_name,
        "fact.recipe_fields": join(_BETWEEN_FIELDS.split(fix_hp_text(plan.recipe))),
        "fact.parameters": counted,
        "fact.predicted_memory": predicted and f"{predicted / cells.GIB:.3g} GiB",
        "fact.kernels": kernels and pairs(kernels),
        "fact.repeat": f"{plan.repeat_index}/{plan.repeat_count}",
        "fact.started": record.started,
        "fact.flags": pairs(record.environment.get("precision_flags")),
    }  # fmt: skip
    blocks = [block for spec in about.page.tables for block in _declared(record, spec)]
    return Section(t("section.facts"), "facts", (_facts(found), *blocks), folded=True,
                   in_terminal=False)  # fmt: skip


def _declared(record: Record, spec: TableSpec) -> Iterator[Block]:
    """Yield the list or the table that a case declares, under its heading; none without rows."""
    plan, job = record.plan, record.environment.get("job") or {}
    a_rank = plan.recipe["micro_batch_size"] * plan.recipe["grad_accum_steps"]
    run = {"global_batch_size": a_rank * plan.world_size}
    places = {"job": job, "recipe": plan.recipe, "run": run}
    names, reported = [one.name for one in spec.entries], job.get(spec.rows)
    made: Block = Facts(tuple((x.name, _value(places, x.value, x.form)) for x in spec.entries))
    if spec.rows:
        rows = (
            [row for row in reported if isinstance(row, dict)] if isinstance(reported, list) else []
        )
        if not rows:
            return
        made = table(
            names, ([_shown(row.get(x.value), x.form) for x in spec.entries] for row in rows)
        )
    yield Paragraph(spec.heading, "heading")
    yield made


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


def environment(record: Record) -> Section:
    """Return hardware and software."""
    env, total, found = record.environment, record.environment.get("memory_total_bytes"), None
    devices = [one for one in env.get("devices") or [] if one]
    names = [str(one.get("name")) for one in devices]
    cards = join(f"{name} x {names.count(name)}" for name in dict.fromkeys(names))
    detail = {name: value for name, value in (devices or [{}])[0].items()
              if name not in ("name", "vendor", "memory_total_bytes")}  # fmt: skip
    if record.compilation is not None and record.compilation.graphs is not None:
        found = record.compilation.graphs, record.compilation.graph_breaks
    container = [env.get(f"container{x}") for x in ("", "_version", "_image", "_digest")]
    facts = _facts({
        "env.machine": env.get("machine"),
        "env.nodes": _nodes(record) if env.get("nodes") else None,
        "env.card": cards if names and has_cards(record) else short_device(record),
        "env.card_detail": pairs(detail) if detail else None,
        "env.cpu": join((known(env.get("cpu")), t("env.cores", n=env.get("cpu_cores") or "?"),
                         t("env.numa", n=env.get("numa_nodes") or "?"))),
        "env.host_memory": known(total and f"{total / cells.GIB:.1f} GiB"),
        "env.network": env.get("network"),
        "env.os": join(map(known, (env.get("os"), env.get("kernel")))),
        "env.driver": env.get("driver"),
        "env.container": join(filter(None, container)) if any(container) else None,
        "env.packages": pairs({"Python": env.get("python")} | (env.get("packages") or {})),
        "env.collective": env.get("collective"),
        "env.variables": pairs(env.get("variables")),
        "env.compiled": found and t("env.compiled_told", graphs=found[0], breaks=found[1]),
    })  # fmt: skip
    return Section(t("section.environment"), "environment", (facts,), folded=True,
                   in_terminal=False)  # fmt: skip


def _nodes(record: Record) -> Phrase:
    """Return in what the nodes of a run differ from the first, and how far their clocks do."""
    nodes = record.environment["nodes"]
    differs = [
        (f"{place}:", *((" ", pairs(node["differs"])) if node["differs"] else ()),
         *(() if node["finished"] else (" ", lost)))
        for lost in [t("env.node_lost")] for place, node in enumerate(nodes)
        if node["differs"] or not node["finished"]
    ]  # fmt: skip
    skews = [node["skew_s"] or 0.0 for node in nodes]
    clocks = t("env.clocks", skew=f"{max(skews) - min(skews):.3f}")
    return join([str(len(nodes)), *differs[:_MOST_NODES], clocks], "semicolon")


def command(record: Record) -> str:
    """Return a line that runs the same work again, on as many devices of the same vendor.

    Fields that no rule counts as a change are in it as far as the command line of the run had them.
    """
    plan = record.plan
    changed = {
        name: fix_hp_text({name: value}) for name, value in (plan.fix_hp | plan.extra).items()
    }
    if record.argv[1:2] == ["run"]:
        for word in record.argv[3:]:
            name = FIELD_ALIASES.get(word.partition("=")[0], word.partition("=")[0])
            if "=" in word and name in plan.recipe:
                changed.setdefault(name, word)
    options: dict[str, Any] = {
        "--data": _DATA if plan.data.origin == "real" else None,
        "--device": plan.device.vendor,
        "--nnodes": plan.nnodes if plan.nnodes > 1 else None,
        "--nproc": plan.nproc,
        "--launcher": plan.launcher if plan.launcher != "local" else None,
        "--repeat": plan.repeat_count if plan.repeat_count > 1 else None,
        "--seed": None if "seed" in changed else plan.recipe.get("seed"),
        "--peak-tflops": plan.peak_tflops,
    }
    words = ["trainmark", "run", plan.case, "--recipe", plan.recipe_name, *changed.values()]
    words += [str(word) for pair in options.items() if pair[1] is not None for word in pair]
    return cells.clean(shlex.join(words))


def provenance(records: Sequence[Record]) -> Section:
    """Return the command that repeats the run, the version, the runs, and the evidence files."""
    record = records[0]
    blocks: list[Block] = [Code(command(record), copied=True)]
    if record.plan.data.origin == "real":
        blocks.append(Paragraph(t("repeat.data"), "muted"))
    # As a module, the program's name is that of a file.
    typed = ["trainmark", *record.argv[1:]] if record.argv[:1] == ["__main__.py"] else record.argv
    made_by = _facts({
        "repeat.started": shlex.join(typed),
        "foot.suite": f"{record.suite.name} {record.suite.version}",
        "foot.commit": known(record.environment.get("commit")),
        "foot.run": join(one.run_id for one in records),
        "foot.key": record.case_key,
    })  # fmt: skip
    rows = ((x.name, cells.count(x.bytes), x.sha256) for one in records for x in one.evidence)
    files = table([*heads("file", "bytes"), "SHA-256"], rows, short=True)
    blocks += [made_by, Paragraph(t("foot.content"), "muted"), files]
    return Section(t("section.footer"), "provenance", tuple(blocks), folded=True,
                   in_terminal=False)  # fmt: skip
