"""``trainmark analyze``: figures out of somebody else's training log."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from trainmark.cli.output import say, say_json

NAME = "analyze"
EXAMPLES = """\
  trainmark analyze train.log --preset auto
  trainmark analyze megatron.log --preset megatron --skip_steps 20
  trainmark analyze train.log --keyword "ips:" --model_mode -1 --ips_unit tokens/s --gpu_num 8
  trainmark analyze train.log --keyword "(ms):" --time_unit ms --base_batch_size 8192 \\
      --model_mode -2 --ips_unit tokens/s --mission_name 语义表示 --direction_id 1
  zcat old.log.gz | trainmark analyze - --preset megatron --keyword_loss "lm loss:"
"""


_PRESET = (
    "auto, or megatron, deepspeed, transformers, paddle, nanogpt, mllog, perflog; "
    "other options win over it."
)


_LARGEST = 10**15  # of devices, steps or samples: below it floats count exactly


def _option(name: str, help_: str, **bounds: int) -> typer.models.OptionInfo:
    """Declare an option with the public tool's spelling and with dashes."""
    spellings = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
    return typer.Option(*spellings, help=help_, **bounds)  # type: ignore[call-overload,no-any-return]


def command(
    logs: Annotated[
        list[str] | None, typer.Argument(metavar="LOG...", help="Logs, plain or gzip; - is stdin.")
    ] = None,
    filename: Annotated[
        str | None, _option("filename", "A log, as the public tool has it.")
    ] = None,
    preset: Annotated[str | None, _option("preset", _PRESET)] = None,
    keyword: Annotated[str | None, _option("keyword", "A line with this text counts.")] = None,
    separator: Annotated[
        str | None, _option("separator", "Between words; default: white space.")
    ] = None,
    position: Annotated[
        int | None,
        _option(
            "position",
            "Word of the line, from 0; default: behind the keyword.",
            min=-(10**6),
            max=10**6,
        ),
    ] = None,
    cut: Annotated[str, _option("range", "Characters of the word: N or A:B.")] = "",
    base_batch_size: Annotated[
        int | None,
        _option(
            "base_batch_size", "Samples (or tokens) of a device in a step.", min=1, max=_LARGEST
        ),
    ] = None,
    skip_steps: Annotated[
        int, _option("skip_steps", "First values to leave out.", min=0, max=_LARGEST)
    ] = 0,
    model_mode: Annotated[
        int | None, _option("model_mode", "Formula, -2 to 4, see docs/analyze.md; default: 0.")
    ] = None,
    ips_unit: Annotated[
        str | None,
        _option("ips_unit", "Unit of the result in modes -2 and -1, and of another --index."),
    ] = None,
    time_unit: Annotated[
        Literal["s", "ms"] | None, _option("time_unit", "Unit of the log's times; default: s.")
    ] = None,
    gpu_num: Annotated[
        int | None,
        _option("gpu_num", "Devices of the job; default: the log's, or 1.", min=1, max=_LARGEST),
    ] = None,
    run_mode: Annotated[
        Literal["sp", "mp"] | None, _option("run_mode", "Default: by --gpu_num.")
    ] = None,
    model_name: Annotated[
        str | None, _option("model_name", "Name in the record; default: the log's.")
    ] = None,
    mission_name: Annotated[str, _option("mission_name", "Mission in the record.")] = "",
    direction_id: Annotated[
        int | None, _option("direction_id", "0 CV, 1 NLP, 2 Rec; default: the mission's, or 0.")
    ] = None,
    index: Annotated[int, _option("index", "1 speed, 2 memory, 3 profile, 6 largest batch.")] = 1,
    keyword_loss: Annotated[
        str | None, _option("keyword_loss", "The last number behind it is LOSS_RESULT.")
    ] = None,
    robust: Annotated[
        bool, typer.Option("--robust", help="Use the median of the values, not their mean.")
    ] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="The run failed: FINAL_RESULT 0, JOB_FAIL_FLAG 1.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all figures as JSON before the record.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Hide the summary.")] = False,
) -> None:
    """Read the figures of a training log of another program."""
    given = dict(locals())  # typer's values by name: the options of an analysis have the same
    from dataclasses import fields

    from trainmark.errors import EXIT_FAILED, UsageError
    from trainmark.library.analysis.engine import analyze
    from trainmark.library.analysis.options import Options
    from trainmark.library.analysis.summary import text

    options = Options(**{item.name: given[item.name] for item in fields(Options)})
    wanted = [*(logs or []), *([filename] if filename else [])]
    if not wanted:
        raise UsageError("no log", where="LOG", remedy="name one, or - for standard input")
    analyses = [analyze(log, options) for log in wanted]
    for analysis in analyses:
        if not quiet:
            say(text(analysis), err=True)
        if as_json:
            say_json(analysis.figures)
        say(analysis.record.to_json())
    if any(analysis.record.JOB_FAIL_FLAG for analysis in analyses):
        raise typer.Exit(EXIT_FAILED)
