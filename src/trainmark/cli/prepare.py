"""``trainmark prepare``: real data into a case's form, with the options that the case declares."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from trainmark.cli.output import say
from trainmark.errors import UsageError, nearest
from trainmark.plan.overrides import parse_assignments

EXAMPLES = {
    "prepare": """\
  trainmark prepare CASE --from downloads/ --data data/mine
  trainmark prepare gpt_megatron tokenizer=gpt2/ --from corpus.jsonl --data data/corpus
  trainmark list options                                 the options that cases take
  trainmark run CASE --data data/mine --recipe standard
""",
}


def prepare(
    case: Annotated[str, typer.Argument(help="Name of a case.")],
    raw: Annotated[Path, typer.Option("--from", help="File, folder or archive as downloaded.")],
    data: Annotated[Path, typer.Option("--data", help="Folder to write; resumed if half there.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Options of the case.")
    ] = None,
) -> None:
    """Check raw data and write it in the form a case reads."""
    from trainmark import cases

    chosen = cases.load(case)
    if not cases.has_part(chosen.name, "prepare"):
        raise UsageError(
            f"case {chosen.name} has nothing to prepare",
            where="CASE",
            remedy=f"`trainmark run {chosen.name}` generates its data",
        )
    known = {option.name: option for option in chosen.prepare_options}
    given = parse_assignments(options or [])
    for name in given.keys() - known.keys():
        raise UsageError(f"no option of {case}", where=name, remedy=nearest(name, known))
    values = {name: known[name].read(text) for name, text in given.items()}

    progress = partial(say, err=True)
    cases.part(chosen.name, "prepare").prepare(raw, data, progress, **values)
    say(str(data))
