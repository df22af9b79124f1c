"""``trainmark analyze``: figures out of somebody else's training log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmark.cli.output import say, say_json

EXAMPLES = """\
  trainmark analyze train.log preset=auto
  trainmark analyze megatron.log preset=megatron skip_steps=20
  trainmark analyze train.log keyword=ips: model_mode=-1 ips_unit=tokens/s gpu_num=8
  trainmark analyze train.log "keyword=(ms):" time_unit=ms base_batch_size=8192 model_mode=-2 \\
      ips_unit=tokens/s mission_name=语义表示 direction_id=1
  zcat old.log.gz | trainmark analyze - preset=megatron "keyword_loss=lm loss:"
"""


def command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG... [KEY=VALUE]...",
            help="Logs, plain or gzip, - is stdin; keys: see docs/analyze.md.",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all figures as JSON before the record.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Hide the summary.")] = False,
) -> None:
    """Read the figures of a training log of another program."""
    from trainmark.errors import EXIT_FAILED, UsageError
    from trainmark.library.analysis.engine import analyze
    from trainmark.library.analysis.options import read
    from trainmark.library.analysis.summary import text
    from trainmark.plan.overrides import parse_assignments

    logs = [word for word in words if "=" not in word or Path(word).exists()]
    if not logs:
        raise UsageError("no log", where="LOG", remedy="name one, or - for standard input")
    options = read(parse_assignments([word for word in words if word not in logs]))
    analyses = [analyze(log, options) for log in logs]
    for analysis in analyses:
        if not quiet:
            say(text(analysis), err=True)
        if as_json:
            say_json(analysis.figures)
        say(analysis.record.to_json())
    if any(analysis.record.JOB_FAIL_FLAG for analysis in analyses):
        raise typer.Exit(EXIT_FAILED)
