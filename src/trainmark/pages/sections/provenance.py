"""What was trained and by which rules, on what hardware and software, and by which command."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from trainmark.errors import to_one_line
from trainmark.pages import cells
from trainmark.pages.charts import chart_case_curve
from trainmark.pages.document import (
    Block,
    Code,
    Columns,
    Facts,
    Paragraph,
    Section,
    build_folded_section,
    build_table,
    list_known_facts,
)
from trainmark.pages.sections.performance_table import format_precision
from trainmark.pages.texts import (
    Phrase,
    describe_dataset,
    describe_label,
    format_named_values,
    has_cards,
    join,
    or_none,
    or_unknown,
    phrase,
    term,
)
from trainmark.plan.recipes import compute_step_samples, format_fix_hp
from trainmark.plan.witness import WITNESSED
from trainmark.record.work import count_parameters
from trainmark.results.store.columns import get_device_name
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.plan.plan import Plan
    from trainmark.record.record import Record
    from trainmark.spec import TableSpec


def build_run_facts(record: Record) -> Section:
    """Return what was trained and by which rules, and the tables that only this case has.

    A fact whose value is None is not shown. Precision flags that are not known are shown as "none".
    """
    plan = record.plan
    # What the job reported of itself, such as its own ``kernels``; None: nothing.
    job = record.environment.get("job") or {}
    about = plan.about  # facts of the case
    # ``plan.fix_hp`` and ``plan.extra`` below are changes to fields of the recipe
    # ``compared_with``. The rules of the closed division allow those in ``fix_hp`` alone.
    changed = phrase("def.fix_hp", standards=plan.compared_with)
    # Each field as ``NAME=VALUE``. They are joined below by the separator of the page's language.
    recipe_fields = [
        format_fix_hp({name: value}) for name, value in _list_recipe_fields(record).items()
    ]
    # Whether PyTorch may use each of its attention kernels. A record has no such key if the ranks
    # did not report it. The key ``attention`` has the kernels that ran in the first step, as text.
    attention_flags = record.environment.get("attention_flags", {})
    attention_kernels = [name for name, is_allowed in attention_flags.items() if is_allowed]
    facts: dict[str, Phrase] = {
        "fact.labels": join(map(describe_label, record.labels)) if record.labels else None,
        "name.task": about.task,
        "name.model": about.model,
        "name.dataset": _describe_data(record),
        "name.sample": about.sample_note,
        "name.precision": join((format_precision(record), _explain_precision(record)), "colon"),
        "name.fix_hp": (or_none(format_fix_hp(plan.fix_hp)), " (", changed, ")"),
        # A user's own program, which the plan has as ``witness``, is bound by no rules.
        "fact.rules": phrase(f"rules.{plan.rules if plan.witness is None else WITNESSED}"),
        "name.extra": or_none(format_fix_hp(plan.extra)),
        "fact.recipe": plan.recipe_name,
        "fact.recipe_fields": join(recipe_fields),
        "fact.parameters": _describe_parameters(record),
        "fact.kernels": _describe_kernels(job.get("kernels") or {}),
        "fact.started": record.started,
        "fact.flags": format_named_values(record.environment.get("precision_flags")),
        "fact.attention": record.environment.get("attention"),
        "fact.attention_flags": ", ".join(attention_kernels) or None,
    }
    blocks = [block for spec in about.page.tables for block in _build_declared(record, spec)]
    return build_folded_section("facts", list_known_facts(facts), *blocks, gist=plan.recipe_name)


def _describe_data(record: Record) -> Phrase:
    """Return the name of the data set with its sizes, its file format and a digest of its content.

    The sizes are numbers of samples; ``layout`` is the format and ``content_id`` the digest.
    """
    data = record.plan.data
    details = phrase(
        "general.data",
        train=cells.format_integer(data.train_samples),
        eval=cells.format_integer(data.eval_samples),
        layout=data.layout,
        content=data.content_id,
    )
    return (describe_dataset(record), " (", details, ")")


def _describe_parameters(record: Record) -> Phrase:
    """Return the number of the model's parameters, and of the trained ones if they are fewer."""
    parameters = count_parameters(record)
    job = record.environment.get("job") or {}
    num_trained = job.get("trainable_parameters")
    counted = or_unknown(None if parameters is None else cells.format_integer(parameters))
    if num_trained in (None, parameters):  # not reported, or all
        return counted
    return phrase("parameters.trained", all=counted, trained=cells.format_integer(num_trained))


def _describe_kernels(used: Mapping[str, str]) -> Phrase:
    """Return who made the kernel of each computation; None if the job reported none.

    Args:
        used: ``own``, a kernel of Trainmark, or ``library``, one of PyTorch, by the name of what
            the kernel computes, for example ``cross_entropy``.
    """
    if not used:
        return None
    return join((name, ": ", term("kernel", maker)) for name, maker in used.items())


def _list_recipe_fields(record: Record) -> dict[str, Any]:
    """Return the recipe's fields, without ``kernels`` if it is None and the job reported them.

    None lets the job choose the kernels. Those that it chose are a fact of their own on the page.
    """
    fields = dict(record.plan.recipe)
    if fields.get("kernels") is None and (record.environment.get("job") or {}).get("kernels"):
        fields.pop("kernels", None)
    return fields


def _explain_precision(record: Record) -> Phrase:
    """Return a sentence on what the precision means for weights and matmuls.

    The recipe of a case whose frozen weights may be held in 16 bits has a field ``weights_dtype``.
    If it is not fp32, the sentence is about these weights.
    """
    recipe = record.plan.recipe
    weights_dtype = str(recipe.get("weights_dtype", "fp32"))
    if weights_dtype != "fp32":
        return message("weights_held_in", dtype=weights_dtype)
    return message(f"precision_{recipe['precision']}")


def _build_declared(record: Record, spec: TableSpec) -> list[Block]:
    """Return a list, a table or curves that a case declares for its pages, with a heading.

    A table or curves without rows are left out: the result is then empty.

    Args:
        spec: what the case declares. ``rows`` is the name of a fact, a list of rows, that the job
            reported; empty for a list. Each of ``entries`` is a column of the table, or a line of
            the list: ``name`` is its heading, ``value`` the key or the path of its value and
            ``form`` the format of a number. ``curves``: draw the rows in place of a table.
    """
    recipe: Any = record.plan.recipe
    job: Any = record.environment.get("job") or {}
    # What a list can show of the run itself.
    run = {"global_batch_size": compute_step_samples(recipe, record.plan.world_size)}
    heading = Paragraph(spec.heading, "heading")
    if not spec.rows:  # each entry is a single value
        sources: dict[str, Any] = {"job": job, "recipe": recipe, "run": run}
        values = ((x.name, _read_value(sources, x.value, x.form)) for x in spec.entries)
        return [heading, Facts(tuple(values))]
    job_rows = job.get(spec.rows) or []  # each a dict of values by key
    if spec.curves:
        # The first column is the step, over which the other columns are drawn.
        charts = [chart_case_curve(job_rows, column) for column in spec.entries[1:]]
        drawn = tuple(chart for chart in charts if chart is not None)
        return [heading, Columns(drawn)] if drawn else []
    rows = [[_read_value(row, x.value, x.form) for x in spec.entries] for row in job_rows]
    return [heading, build_table((x.name for x in spec.entries), rows)] if rows else []


def _read_value(source: Mapping[str, Any], path: str, form: str) -> Phrase:
    """Return the value at a path: "not known" if the run ended before it was reported.

    A value that was reported as None is "none".

    Args:
        source: what the path begins in.
        path: nested keys, separated by points: ``run.global_batch_size``.
        form: format of a number, as of Python's ``format``; empty: as it is.
    """
    value: Any = source
    for name in path.split("."):
        if value is None:  # the job reported that it has no such part: the value is "none"
            break
        if name not in value:
            return or_unknown(None)
        value = value[name]
    if form and isinstance(value, int | float):
        return format(value, form)
    return format_named_values(value) if isinstance(value, dict) else or_none(value)


def build_environment(record: Record) -> Section:
    """Return hardware and software; of several nodes, those of the first.

    A fact whose value is None is left out. Environment variables that are not known are shown as
    "none".
    """
    env = record.environment
    host_bytes = env.get("memory_total_bytes")
    host_memory = f"{host_bytes / cells.GIB:.1f} GiB" if host_bytes else None
    # The product name of each rank's device. The page shows each name once, with how many ranks
    # have it: `A100 x 8`.
    names = [str(device.get("name")) for device in env.get("devices") or [] if device]
    cards = join(f"{name} x {names.count(name)}" for name in dict.fromkeys(names))
    container_parts = [
        env.get("container"),  # the program that runs it, such as docker
        env.get("container_version"),
        env.get("container_image"),
        env.get("container_digest"),
    ]
    container = [part for part in container_parts if part]
    cores = phrase("env.cores", n=env.get("cpu_cores") or "?")
    packages = env.get("packages") or {}
    facts: dict[str, Phrase] = {
        "env.machine": env.get("machine"),
        "env.network": env.get("network"),  # between machines
        "env.driver": env.get("driver"),
        "env.collective": env.get("collective"),  # library with its version
        "env.card": cards if names and has_cards(record) else get_device_name(record),
        "env.cpu": join((or_unknown(env.get("cpu")), cores)),
        "env.host_memory": or_unknown(host_memory),
        # The operating system and its kernel.
        "env.os": join((or_unknown(env.get("os")), or_unknown(env.get("kernel")))),
        "env.container": join(container) if container else None,
        "env.packages": format_named_values({"Python": env.get("python")} | packages),
        "env.variables": format_named_values(env.get("variables")),
    }
    software = []  # what the section's heading shows while it is folded
    if packages.get("torch"):
        software.append(f"torch {packages['torch']}")
    driver = env.get("driver")
    if driver:
        software.append(driver)
    gist = join(software)
    return build_folded_section("environment", list_known_facts(facts), gist=gist)


def _describe_unproven(plan: Plan) -> Phrase:
    """Return what Trainmark's code for the vendor and for the launcher was tested on.

    Only code that has done no real runs yet is listed. None: both have done real runs.

    Args:
        plan: ``unproven`` has what the code was tested on, such as a simulated card, by the name
            of the vendor or launcher. It lacks those that have done real runs.
    """
    if not plan.unproven:
        return None
    lines = [join((name, tested), "colon") for name, tested in plan.unproven.items()]
    return join(lines, "semicolon")


def build_provenance(records: Sequence[Record]) -> Section:
    """Return the command that started the run, the version of Trainmark, and the run ids.

    Args:
        records: launches of one work. The command and the versions are those of the first.
    """
    record = records[0]
    made_by = list_known_facts(
        {
            "foot.suite": f"{record.suite.name} {record.suite.version}",  # Trainmark itself
            "foot.commit": or_unknown(record.environment.get("commit")),
            "foot.run": join(launch.run_id for launch in records),
            # One text with the case, the framework, the vendor and the numbers of nodes and ranks.
            "foot.key": record.plan.case_key,
            # A device or a launcher that no real run has tested yet.
            "foot.tested": _describe_unproven(record.plan),
        }
    )
    # A page offers to copy the command.
    command = Code(to_one_line(shlex.join(record.argv)), copied=True)
    gist = f"{record.suite.name} {record.suite.version}"
    return build_folded_section("provenance", command, made_by, gist=gist)
