"""``trainmark analyze``: read figures from another program's training log.

Its options are those of the public tool, the published log analyzer of training benchmarks, and can
also be written as there: ``--KEY VALUE`` in place of ``KEY=VALUE``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmark.cli.options import Json
from trainmark.cli.output import (
    print_json,
    print_text,
)
from trainmark.errors import EXIT_FAILED, UsageError

EXAMPLES = """\
  trainmark analyze train.log preset=auto
  trainmark analyze megatron.log preset=megatron skip_steps=20
  trainmark analyze --filename train.log --keyword ips: --model_mode -1 --ips_unit tokens/s
  trainmark analyze train.log "keyword=(ms):" time_unit=ms base_batch_size=8192 model_mode=-2
  kubectl logs job/train | trainmark analyze - preset=megatron
"""


def analyze(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG... [KEY=VALUE]...",
            help=(
                "Log files, plain or gzip (- for stdin), and settings as KEY=VALUE or "
                "--KEY VALUE; see docs/analyze.md."
            ),
        ),
    ],
    as_json: Json = False,
) -> None:
    """Read figures from another program's training log; --json prints all figures."""
    from trainmark.plan.recipes import parse_assignments
    from trainmark.published.analysis import analyze as analyze_log
    from trainmark.published.analysis import parse_options, summarize

    logs, assignments = _split_logs_and_assignments(words)
    if not logs:
        raise UsageError(
            "no log is given", where="LOG", fix="pass a log file, or - for standard input"
        )
    options = parse_options(parse_assignments(assignments))
    analyses = [analyze_log(log, options) for log in logs]
    for analysis in analyses:
        print_text(summarize(analysis), err=True)
        if as_json:
            print_json(analysis.figures)
        # One line, which result collections import. It is printed in any case: --json only adds a
        # line with all figures before it.
        print_text(analysis.record.to_json())
    # 1: the job of the log failed, or its result is zero.
    if any(analysis.record.JOB_FAIL_FLAG for analysis in analyses):
        raise typer.Exit(EXIT_FAILED)


def _split_logs_and_assignments(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the logs and the options among ``words``, the options as ``KEY=VALUE``.

    ``--KEY VALUE`` and ``--KEY=VALUE`` are accepted too. They are the options of the published log
    analyzer of training benchmarks, whose ``--filename`` names a log.
    """
    logs = []
    assignments = []
    remaining = iter(words)
    for word in remaining:
        if word.startswith("--"):
            assignment = word.removeprefix("--")
            if "=" not in word:  # the value is the next word
                assignment = f"{assignment}={next(remaining, '')}"
            if assignment.startswith("filename="):
                logs.append(assignment.removeprefix("filename="))
            else:
                assignments.append(assignment)
        elif "=" in word and not Path(word).exists():  # the name of a log may have `=` too
            assignments.append(word.removeprefix("-"))  # -KEY=VALUE is accepted too
        else:
            logs.append(word)
    return logs, assignments
