"""``trainmark ceilings``: what this machine can do at most."""

from __future__ import annotations

from math import isfinite
from typing import Annotated

import typer

from trainmark.cli.output import others_to_stderr, say, say_json
from trainmark.errors import EXIT_FAILED

EXAMPLES = """\
  trainmark ceilings                          the first device here, half a minute
  trainmark ceilings --full --nproc 8         all eight, larger sizes, a few minutes
  trainmark ceilings --budget-s 1             faster, and less exact
  trainmark ceilings --json > ceilings.json   every size, rank and repetition
"""
_QUICK_S, _FULL_S = 3.0, 15.0  # of one measurement
_STARTING_S = 120.0  # of ranks that import torch on a busy machine
_MOST_KINDS = 12


def _finite(value: float | None) -> float | None:
    """Refuse NaN, which is within every range."""
    if value is not None and not isfinite(value):
        raise typer.BadParameter("not a finite number")
    return value


def command(
    device: Annotated[
        str | None, typer.Option(help="One of `list devices`; default: the first here.")
    ] = None,
    nproc: Annotated[
        int, typer.Option(min=1, max=1024, help="Ranks, each on a device of its own.")
    ] = 1,
    full: Annotated[bool, typer.Option("--full", help="Larger sizes, more time for each.")] = False,
    budget_s: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=3600,
            callback=_finite,
            help="Seconds of one measurement; default: 3, full 15.",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=1, callback=_finite, help="Seconds for everything; default: by the budget."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure rates of matmul, memory, transfers and collectives."""
    from trainmark.check.ceilings import measure_ceilings
    from trainmark.launch.stopping import stop_signals_noted
    from trainmark.library.redaction import Redactor
    from trainmark.pages.ceilings import blocks, wrong_results
    from trainmark.pages.terminal import show

    budget = budget_s or (_FULL_S if full else _QUICK_S)
    with stop_signals_noted() as request, others_to_stderr():
        found = measure_ceilings(
            request,
            device=device,
            nproc=nproc,
            budget_s=budget,
            full=full,
            timeout_s=timeout or _STARTING_S + 3 * _MOST_KINDS * budget,
        )
    if as_json:
        say_json(Redactor().document(found))  # it is passed on
    else:
        typer.echo(show(blocks(found)))
    if wrong := wrong_results(found):
        say("\n".join(f"trainmark: {line}" for line in wrong), err=True)
        raise typer.Exit(EXIT_FAILED)
