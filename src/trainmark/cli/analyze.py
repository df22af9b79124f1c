"""``trainmark analyze``: figures out of somebody else's training log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trainmark.cli.options import command_of
from trainmark.cli.output import say, say_json

EXAMPLES = """\
  trainmark analyze train.log preset=auto
  trainmark analyze megatron.log preset=megatron skip_steps=20
  trainmark analyze --filename train.log --keyword ips: --model_mode -1 --ips_unit tokens/s
  trainmark analyze train.log "keyword=(ms):" time_unit=ms base_batch_size=8192 model_mode=-2
  kubectl logs job/train | trainmark analyze - preset=megatron
"""


def build() -> Any:
    """Return the command, which leaves the public tool's ``--KEY VALUE`` among its words."""
    made = command_of("analyze", EXAMPLES, command)
    made.context_settings = made.context_settings | {"ignore_unknown_options": True}
    return made


def command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG... [KEY=VALUE]...",
            help="Logs, plain or gzip, - is stdin; keys, also as --KEY VALUE: see docs/analyze.md.",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all figures as JSON before the record.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Hide the summary.")] = False,
) -> None:
    """Read the figures of a training log of another program."""
    from trainmark.errors import EXIT_FAILED, UsageError
    from trainmark.library.analysis.engine import analyze, options, text
    from trainmark.plan.overrides import parse_assignments

    logs, keys, left = [], [], iter(words)
    for word in left:
        if word.startswith("--"):
            key = word[2:] if "=" in word else f"{word[2:]}={next(left, '')}"
            name, _, value = key.partition("=")
            logs += [value] if name == "filename" else []
            keys += [] if name == "filename" else [key]
        elif "=" in word and not Path(word).exists():
            keys.append(word)
        else:
            logs.append(word)
    if not logs:
        raise UsageError("no log", where="LOG", remedy="name one, or - for standard input")
    said = options(parse_assignments(keys))
    analyses = [analyze(log, said) for log in logs]
    for analysis in analyses:
        if not quiet:
            say(text(analysis), err=True)
        if as_json:
            say_json(analysis.figures)
        say(analysis.record.to_json())
    if any(analysis.record.JOB_FAIL_FLAG for analysis in analyses):
        raise typer.Exit(EXIT_FAILED)
