"""``trainmark list``: what there is, and what is present here."""

from __future__ import annotations

import sys
from dataclasses import fields
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from trainmark.cli.options import Json, Lang
from trainmark.cli.output import print_faults, print_json, print_text
from trainmark.errors import escape_controls
from trainmark.pages.cells import are_numbers
from trainmark.pages.wrapping import measure_width

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.spec import Case

EXAMPLES = """\
  trainmark list                    cases, recipes and devices
  trainmark list recipes            each case's recipes with their main fields
  trainmark list fields --json      fields that KEY=VALUE can change
  trainmark list options            options of `prepare`
  trainmark list launchers          launchers available on this machine
  trainmark list followers          followers available on this machine
  trainmark list schema > record.schema.json
"""

Rows = list[dict[str, Any]]
# Columns of the JSON that the table leaves out: recipes' names say them, docs/vendors.md has the
# collectives.
_JSON_ONLY = ("world", "accumulation", "data", "model", "collectives")
_INDENT = "  "
_GAP = "   "  # between two columns
_RECIPE_COLUMNS = {
    "data": "data",
    "world": "world",
    "batch": "micro_batch_size",
    "accumulation": "grad_accum_steps",
    "lr": "learning_rate",
    "precision": "precision",
    "target": "target_value",
}
What = Literal[
    "cases",
    "recipes",
    "fields",
    "options",
    "devices",
    "launchers",
    "followers",
    "audit-rules",
    "schema",
]

_SECTIONS = f"{', '.join(get_args(What))}; default: cases, recipes and devices."


def _list_case(case: Case, lang: str) -> Rows:
    """Return the row of a case in the section ``cases``."""
    dataset = case.dataset
    # A name is the same in each language; a description has a text for each.
    if not isinstance(dataset, str):
        dataset = dataset.in_language(lang)
    return [
        {
            "name": case.name,
            "aliases": ", ".join(case.aliases),
            "model": case.model,
            "dataset": dataset,
            "quality": case.metric,
            "task": case.task.in_language(lang),
        }
    ]


def _list_recipes(case: Case, _lang: str) -> Rows:
    """Return a row for each recipe of a case, with its main fields.

    ``_lang`` is not used; it is there because the functions of all sections are called alike.
    """
    rows: Rows = []
    for name, recipe in case.recipes.items():
        row = {"case": case.name, "recipe": name}
        for column, field in _RECIPE_COLUMNS.items():
            row[column] = getattr(recipe, field)
        rows.append(row)
    return rows


def _list_fields(case: Case, _lang: str) -> Rows:
    """Return a row for each recipe field of a case.

    ``_lang`` is not used; it is there because the functions of all sections are called alike.
    """
    from trainmark.recipe import FIELD_ALIASES

    short_names: dict[str, str] = {}
    for alias, field_name in FIELD_ALIASES.items():
        short_names.setdefault(field_name, alias)  # of several aliases, the first
    return [
        {
            "case": case.name,
            "field": item.name,
            "short": short_names.get(item.name, ""),
            "rule": item.metadata["rule"],
            "meaning": item.metadata["doc"],
        }
        for item in fields(case.recipe_type)
    ]


def _list_prepare_options(case: Case, _lang: str) -> Rows:
    """Return a row for each option that ``trainmark prepare`` takes for a case.

    ``_lang`` is not used; it is there because the functions of all sections are called alike.
    """
    return [
        {"case": case.name, "option": option.name, "values": option.rule, "meaning": option.help}
        for option in case.prepare_options
    ]


def _list_devices(lang: str) -> Rows:
    """Return a row for each vendor; print those that cannot be used, and why."""
    from trainmark import devices

    vendors, faults = devices.load_all()
    print_faults([*faults, *devices.list_device_faults()])
    rows = []
    for vendor in vendors.values():
        products = sorted(set(vendor.product_names()))
        # Some vendors are used only if `--device` names them, for example a simulated one.
        is_named_only = devices.is_named_only(vendor)
        rows.append(
            {
                "name": vendor.name,
                "torch": vendor.torch_type,
                "present": vendor.count(),
                "default": "only if named" if is_named_only else "first found",
                "collectives": vendor.collective_backend or "-",
                "tested": devices.get_tested(vendor).in_language(lang),
                "products": "; ".join(products) or "-",
            }
        )
    return rows


def _list_launchers(lang: str) -> Rows:
    """Return a row for each launcher, with the reason if it cannot be used on this machine."""
    from trainmark.launch import launchers
    from trainmark.launch.cluster import LOCAL, TESTED, read_cluster

    cluster = read_cluster(None)  # None: the default cluster file, or the defaults without one
    rows = []
    # TESTED has, by launcher, what the launcher was tested on.
    for name, tested in TESTED.items():
        reason = None if name == LOCAL else launchers.explain_unusable_launcher(name, cluster)
        rows.append(
            {
                "name": name,
                "default": "yes" if name == cluster.launcher else "no",
                "here": "yes" if reason is None else f"no: {reason}",
                "tested": tested.in_language(lang),
            }
        )
    return rows


def _list_followers(_lang: str) -> Rows:
    """Return a row for each program, such as MLflow, to which ``--follow`` can hand a run.

    Args:
        _lang: unused; every function of ``_OTHER_SECTIONS`` takes it.
    """
    from trainmark.export.followers.targets import BACKENDS, FollowTarget, list_missing_packages

    rows = []
    for name in BACKENDS:
        missing_packages = list_missing_packages(FollowTarget(name))
        rows.append(
            {
                "name": name,
                "here": (
                    f"no: {', '.join(missing_packages)} not installed"
                    if missing_packages
                    else "yes"
                ),
                "install": f"pip install 'trainmark[{name}]'",
            }
        )
    return rows


def _list_audit_rules(lang: str) -> Rows:
    """Return a row for each rule of ``trainmark audit``."""
    from trainmark.published import audit
    from trainmark.record.messages import render
    from trainmark.spec import message

    return [
        {
            "rule": name,
            "severity": rule.severities,
            "definition": render(message(f"audit_rule.{name}"), lang),
        }
        for name, rule in audit.RULES.items()
    ]


# The functions that list the rows of each section: of one case, and of what is no case.
_CASE_SECTIONS: dict[str, Callable[[Case, str], Rows]] = {
    "cases": _list_case,
    "recipes": _list_recipes,
    "fields": _list_fields,
    "options": _list_prepare_options,
}
_OTHER_SECTIONS: dict[str, Callable[[str], Rows]] = {
    "devices": _list_devices,
    "launchers": _list_launchers,
    "followers": _list_followers,
    "audit-rules": _list_audit_rules,
}


# What the values of the column `rule` in the section `fields` mean.
_RULE_MEANINGS = {
    "closed": "a change is listed under `fix_hp` in the record",
    "open": "a change is listed under `extra`",
    "scope": "how much is trained and evaluated; a change is listed under `extra`",
    "free": "does not affect the work; a change is not listed",
    "fixed": "cannot be changed",
}


def _print_table(title: str, rows: Rows) -> None:
    """Print rows in columns that fit the terminal; in a pipe each row is one line.

    The columns ``_JSON_ONLY`` are left out.
    """
    # An empty section shows the word "none".
    heads = [name for name in rows[0] if name not in _JSON_ONLY] if rows else ["none"]
    texts = [[_format_cell(row[head]) for head in heads] for row in rows]
    print_text(title.upper())
    if sys.stdout.isatty():
        from trainmark.pages.document import build_table
        from trainmark.pages.terminal import show

        width = get_terminal_size().columns - len(_INDENT)
        # No colours: `print_text` would escape their control characters.
        lines = show([build_table(heads, texts)], width=width, colour=False).splitlines()
    else:
        lines = _align_columns([heads, *texts])
    for line in lines:
        print_text(f"{_INDENT}{line}".rstrip())
    print_text("")


def _format_cell(value: object) -> str:
    """Return a value as text; ``-`` in place of None."""
    return "-" if value is None else escape_controls(value)


def _align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, however long; the first row has the heads of the columns.

    ``rich`` is not used, because it would take longer to import than the rest of ``list``.
    """
    columns = []
    for column in zip(*rows, strict=True):
        width = max(map(measure_width, column))
        is_right_aligned = are_numbers(column[1:])  # without the head
        columns.append([_pad(cell, width, is_right_aligned=is_right_aligned) for cell in column])
    return [_GAP.join(cells) for cells in zip(*columns, strict=True)]


def _pad(cell: str, width: int, *, is_right_aligned: bool) -> str:
    """Return a cell with blanks before or after it, ``width`` columns of the terminal wide."""
    blanks = " " * (width - measure_width(cell))
    return blanks + cell if is_right_aligned else cell + blanks


def list_(
    what: Annotated[What | None, typer.Argument(metavar="[WHAT]", help=_SECTIONS)] = None,
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """List cases, recipes and devices, or print a single section or the record schema."""
    if what == "schema":
        from trainmark.record.record import describe_schema

        print_text(describe_schema(), newline=False)
        return
    from trainmark import cases

    section_names = (what,) if what else ("cases", "recipes", "devices")
    loaded_cases: Sequence[Case] = ()
    if any(name in _CASE_SECTIONS for name in section_names):
        loaded_cases, faults = cases.load_all()
        print_faults(faults)
    sections: dict[str, Rows] = {}
    for name in section_names:
        # The functions of `_CASE_SECTIONS` list the rows of one case; those of `_OTHER_SECTIONS`
        # list all rows of a section.
        if name in _CASE_SECTIONS:
            sections[name] = []
            for case in loaded_cases:
                sections[name] += _CASE_SECTIONS[name](case, lang)
        else:
            sections[name] = _OTHER_SECTIONS[name](lang)
    if as_json:
        print_json(sections, indent=2)
        return
    for title, rows in sections.items():
        _print_table(title, rows)
    if "fields" in sections:
        # The terminal also shows what the values of the column `rule` mean; JSON has only rows.
        rules = [{"rule": rule, "meaning": meaning} for rule, meaning in _RULE_MEANINGS.items()]
        _print_table("rules", rows=rules)
