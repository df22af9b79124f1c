"""``trainmark prepare``: real data into a case's form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmark.cli.output import say

if TYPE_CHECKING:
    from trainmark.spec import Case

NAME = "prepare"
EXAMPLES = """\
  trainmark prepare distilbert_sst2 --from downloads/ --data data/sst2
  trainmark run distilbert_sst2 --data data/sst2 --recipe standard
  trainmark prepare gpt_megatron --from corpus.jsonl --tokenizer gpt2/ --data data/corpus
  trainmark prepare dlrm_criteo --from criteo/ --frequency-threshold 15 --data data/criteo
"""


def command(
    case: Annotated[str, typer.Argument(help="Name of a case.")],
    raw: Annotated[Path, typer.Option("--from", help="File, folder or archive as downloaded.")],
    data: Annotated[Path, typer.Option("--data", help="Folder to write; resumed if half there.")],
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="Folder of the tokenizer (gpt_megatron).")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="Processes or threads at work (gpt_megatron, dlrm_criteo)."),
    ] = None,
    text_key: Annotated[
        str | None, typer.Option("--text-key", help="Key of a line's text (gpt_megatron).")
    ] = None,
    frequency_threshold: Annotated[
        int | None,
        typer.Option(
            "--frequency-threshold",
            help="Rarer categories share number 0; 15 if left out (dlrm_criteo).",
        ),
    ] = None,
    log_offset: Annotated[
        int | None,
        typer.Option(help="Numbers are log(x + this): 3, or 1 after 0 for x < 0 (dlrm_criteo)."),
    ] = None,
    order: Annotated[
        str | None, typer.Option(help="Training rows: shuffled, or input (dlrm_criteo).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the shuffled order (dlrm_criteo).")] = None,
    empty_category: Annotated[
        str | None,
        typer.Option(help="An empty cell is rare, or a category of its own (dlrm_criteo)."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No messages.")] = False,
) -> None:
    """Check raw data and write it in the form a case reads: resumable, atomic."""
    from trainmark import cases
    from trainmark.errors import UsageError

    chosen = cases.load(case)
    if not cases.has_part(chosen.name, "prepare"):
        raise UsageError(
            f"case {chosen.name} has nothing to prepare",
            where="CASE",
            remedy=f"`trainmark run {chosen.name}` generates its data",
        )
    options = {
        "tokenizer": tokenizer,
        "workers": workers,
        "text_key": text_key,
        "frequency_threshold": frequency_threshold,
        "log_offset": log_offset,
        "order": order,
        "seed": seed,
        "empty_category": empty_category,
    }
    given = {name: value for name, value in options.items() if value is not None}
    _refuse_untaken(chosen, given)

    def progress(text: str) -> None:
        if not quiet:
            say(text, err=True)

    cases.part(chosen.name, "prepare").prepare(raw, data, progress, **given)
    say(str(data))


def _refuse_untaken(case: Case, given: dict[str, Any]) -> None:
    from trainmark.errors import UsageError

    for name in given:
        if name not in case.prepare_options:
            taken = ", ".join(sorted(map(_word, case.prepare_options)))
            raise UsageError(
                f"case {case.name} takes no {_word(name)}",
                where=_word(name),
                rule="besides --from and --data it takes " + (taken or "nothing"),
                remedy="leave it out",
            )


def _word(option: str) -> str:
    return "--" + option.replace("_", "-")
