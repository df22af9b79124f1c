"""``trainmark rules``: what a case's divisions ask, and whether launches comply."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from trainmark.cli.output import say, say_json
from trainmark.errors import EXIT_FAILED, UsageError

NAME = "rules"
EXAMPLES = """\
  trainmark rules distilbert_sst2                    what its two divisions ask
  trainmark rules check runs/RUN                     does it comply with the one it claims?
  trainmark rules check runs/A runs/B --division closed
  trainmark rules check runs/RUN --json
"""


def command(
    what: Annotated[str, typer.Argument(help="A case, or `check` for launches.")],
    runs: Annotated[
        list[str] | None, typer.Argument(help="After check: runs; default: the newest.")
    ] = None,
    division: Annotated[
        Literal["closed", "open"] | None,
        typer.Option(help="To comply with; default: the one that the records claim."),
    ] = None,
    lang: Annotated[Literal["en", "zh"], typer.Option(help="Language of the text.")] = "en",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the rules of a case, or whether launches keep them."""
    if what != "check":
        if runs:
            raise UsageError(f"unknown word {runs[0]!r}", where="CASE", remedy="name one case")
        _print_rules(what, as_json=as_json)
        return
    from trainmark.judge.compliance import check
    from trainmark.library.selection.words import select
    from trainmark.pages.judgements import compliance_lines as lines
    from trainmark.record.work import groups

    found = [check(group) for group in groups(select(runs or [], rows=False).records)]
    if as_json:
        say_json([one.as_dict() for one in found])
    for one in () if as_json else found:
        for line in lines(one, lang):
            say(line)
    if not all(one.compliant(division) for one in found):
        raise typer.Exit(EXIT_FAILED)


def _print_rules(word: str, *, as_json: bool) -> None:
    """Print the rules of one case, a line a key."""
    from trainmark import cases
    from trainmark.plan.divisions import of_case
    from trainmark.spec import fields_under

    case = cases.load(word)
    rules = of_case(case).model_dump(mode="json", exclude_unset=True)
    tunable = dict.fromkeys(sorted(fields_under(case.recipe_type, "closed")), "any value")
    rules["values"] = tunable | rules.get("values", {})
    if as_json:
        say_json({"case": case.name, **rules}, indent=2)
        return
    for part, asked in rules.items():
        say(f"{part}: what the closed rules let change" if part == "values" else f"{part}:")
        for name, value in asked.items():
            say(f"  {name} = {json.dumps(value)}".replace('"', ""))
