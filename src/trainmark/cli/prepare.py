"""``trainmark prepare``: real data into a case's form, with the options that the case declares."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmark.cli.output import say
from trainmark.errors import UsageError, nearest
from trainmark.plan.overrides import parse_assignments

if TYPE_CHECKING:
    from trainmark.spec import Case

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
    values = _read_options(chosen, options or [])
    progress = partial(say, err=True)
    cases.part(chosen.name, "prepare").prepare(raw, data, progress, **values)
    say(str(data))


def _read_options(case: Case, words: list[str]) -> dict[str, int | str | Path]:
    """Return the values of a case's options.

    Raises:
        UsageError: an unknown option, a value that does not fit, or a required option is missing.
    """
    known = {option.name: option for option in case.prepare_options}
    given = parse_assignments(words, example=f"{next(iter(known), 'name')}=VALUE")
    for name in given.keys() - known.keys():
        remedy = nearest(name, known) if known else f"{case.name} takes no option"
        raise UsageError(f"no option of {case.name}", where=name, remedy=remedy)
    for name, option in known.items():
        if option.required and name not in given:
            raise UsageError(
                f"option {name} is missing",
                where=f"trainmark prepare {case.name}",
                rule=f"{name}: {option.help}",
                remedy=f"add {name}=VALUE",
            )
    return {name: known[name].read(text) for name, text in given.items()}
