"""``trainmark list``: what there is, and what is present here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trainmark.cli.output import say, say_faults, say_json
from trainmark.errors import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.spec import Case

EXAMPLES = """\
  trainmark list                    everything
  trainmark list recipes            each case's recipes with their main fields
  trainmark list fields --json      what KEY=VALUE can change
  trainmark list launchers --site site.yaml    what can start runs from here
  trainmark list divisions          what the closed and the open rules of each case ask
  trainmark list schema > record.schema.json
"""

Rows = list[dict[str, Any]]
What = Literal[
    "cases", "recipes", "fields", "devices", "launchers", "divisions", "audit-rules", "schema",
]  # fmt: skip


def _cases(loaded: Sequence[Case]) -> Rows:
    return [
        {
            "name": case.name,
            "task": case.task.en,
            "model": case.model,
            "data": case.dataset,
            "quality": case.metric,
            "aliases": ", ".join(case.aliases),
        }
        for case in loaded
    ]


def _recipes(loaded: Sequence[Case]) -> Rows:
    return [
        {
            "case": case.name,
            "recipe": name,
            "data": recipe.data,
            "world": recipe.world or "any",
            "batch": recipe.micro_batch_size,
            "accumulation": recipe.grad_accum_steps,
            "lr": recipe.learning_rate,
            "precision": recipe.precision,
            "target": recipe.target_value,
        }
        for case in loaded
        for name, recipe in case.recipes.items()
    ]


def _fields(loaded: Sequence[Case]) -> Rows:
    from dataclasses import fields

    from trainmark.spec import FIELD_ALIASES

    short = {full: alias for alias, full in reversed(FIELD_ALIASES.items())}
    return [
        {
            "case": case.name,
            "field": item.name,
            "short": short.get(item.name, ""),
            "rule": item.metadata["rule"],
            "meaning": item.metadata["doc"],
        }
        for case in loaded
        for item in fields(case.recipe_type)
    ]


def _devices(_: Sequence[Case]) -> Rows:
    from trainmark import devices

    known, faults = devices.load_all()
    say_faults([*faults, *devices.unusable()])
    return [
        {
            "name": vendor.name,
            "torch": vendor.torch_type,
            "present": vendor.count(),
            "taken": "only if named" if devices.named_only(vendor) else "if the first present",
            "products": ", ".join(products) or "-",
            "collectives": vendor.collective_backend,
            "dense_tflops": "; ".join(filter(None, map(_peaks, products))) or "-",
        }
        for vendor in known.values()
        for products in [sorted(set(vendor.product_names()))]
    ]


def _launchers(chosen: Path | None) -> Rows:
    from trainmark.launch import launchers
    from trainmark.launch.launchers import LOCAL, NAMES
    from trainmark.launch.site import default_file, read_site

    site, file = read_site(chosen), chosen or default_file()
    return [
        {
            "name": name,
            "here": "yes" if why is None else f"no: {why}",
            "taken": "by default" if name == site.launcher else "if named",
            "site": "-" if file is None else str(file),
        }
        for name in NAMES
        for why in [None if name == LOCAL else launchers.load(name).absent(site)]
    ]


def _divisions(loaded: Sequence[Case]) -> Rows:
    import json

    from trainmark.plan.divisions import of_case
    from trainmark.spec import fields_under

    found = []
    for case in loaded:
        rules = of_case(case).model_dump(mode="json", exclude_unset=True)
        tunable = dict.fromkeys(sorted(fields_under(case.recipe_type, "closed")), "any value")
        rules["values"] = tunable | rules.get("values", {})
        for part, asked in rules.items():
            for key, value in asked.items():
                text = value if isinstance(value, str) else json.dumps(value)
                found.append({"case": case.name, "division": part, "key": key, "value": text})
    return found


def _audit_rules(_: Sequence[Case]) -> Rows:
    from trainmark.judge import audit
    from trainmark.record.messages import render
    from trainmark.spec import message

    rules = audit.RULES
    return [
        {
            "rule": name,
            "severity": rule.severity,
            "definition": render(message(f"audit_rule.{name}"), "en"),
        }
        for name, rule in rules.items()
    ]


def _peaks(product: str) -> str:
    """Return the published dense peaks of a product, with the evidence of each."""
    from trainmark.devices.peaks import dense_peaks

    found = dense_peaks(product)
    rates = (f"{one.precision} {one.flops_per_second / 1e12:g} ({one.evidence})" for one in found)
    return f"{product}: {', '.join(rates)}" if found else ""


_SECTIONS = {
    "cases": _cases, "recipes": _recipes, "fields": _fields, "devices": _devices,
    "divisions": _divisions, "audit-rules": _audit_rules,
}  # fmt: skip


def _gather(names: Sequence[str], site: Path | None) -> dict[str, Rows]:
    """Return the rows of each section; what cannot be read is named on standard error."""
    from trainmark import cases

    loaded: Sequence[Case] = ()
    if not set(names) <= {"devices", "launchers", "audit-rules"}:
        loaded, faults = cases.load_all()
        say_faults(faults)
    return {
        name: _launchers(site) if name == "launchers" else _SECTIONS[name](loaded) for name in names
    }


def _print_table(title: str, rows: Rows) -> None:
    say(title.upper())
    if not rows:
        say("  none\n")
        return
    cells = [list(rows[0])] + [
        ["-" if value is None else escaped(value) for value in row.values()] for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    for line in cells:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        say("  " + text.rstrip())
    say("")


def command(
    what: Annotated[What | None, typer.Argument(help="One section only.")] = None,
    site: Annotated[
        Path | None, typer.Option(help="File with a site's settings, for launchers.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List cases, recipes, fields, devices, launchers, rules; print the record's schema."""
    if what == "schema":
        from trainmark.record.record import dumps_schema

        say(dumps_schema(), newline=False)
        return
    found = _gather((what,) if what else ("cases", "recipes", "devices"), site)
    if as_json:
        say_json(found, indent=2)
        return
    for title, rows in found.items():
        _print_table(title, rows)
