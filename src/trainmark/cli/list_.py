"""``trainmark list``: what there is, and what is present here."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer

from trainmark.cli.output import say, say_skipped_vendors
from trainmark.errors import escaped

NAME = "list"
EXAMPLES = """\
  trainmark list                    everything
  trainmark list recipes            each case's recipes with their main fields
  trainmark list fields --json      what KEY=VALUE can change
"""

What = Literal["cases", "recipes", "fields", "devices"]


def _gather(what: What | None) -> dict[str, list[dict[str, Any]]]:
    from trainmark import cases

    wanted: tuple[str, ...] = (what,) if what else ("cases", "recipes", "devices")
    loaded, faults = cases.load_all() if what != "devices" else ([], [])
    for fault in faults:
        say(f"trainmark: {fault}", err=True)
    found: dict[str, list[dict[str, Any]]] = {}
    for section in wanted:
        if section == "cases":
            found[section] = [
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
        elif section == "recipes":
            found[section] = [
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
        elif section == "fields":
            found[section] = _fields(loaded)
        else:
            found[section] = _devices()
    return found


def _fields(loaded: list[Any]) -> list[dict[str, Any]]:
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


def _devices() -> list[dict[str, Any]]:
    from trainmark import devices

    say_skipped_vendors()
    return [
        {
            "name": vendor.name,
            "present": vendor.count(),
            "products": ", ".join(sorted(set(vendor.product_names()))) or "-",
            "collectives": vendor.collective_backend,
        }
        for vendor in devices.vendors().values()
    ]


def _print_table(title: str, rows: list[dict[str, Any]]) -> None:
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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List cases, recipes, their fields, and the devices present here."""
    found = _gather(what)
    if as_json:
        say(json.dumps(found, indent=2, ensure_ascii=False))
        return
    for title, rows in found.items():
        _print_table(title, rows)
