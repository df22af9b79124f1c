"""``trainmark ceilings``: measure the rates that bound training on this machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainmark.cli.options import Json, Lang, add_model_options
from trainmark.cli.output import print_json, print_text, redirect_to_stderr
from trainmark.errors import EXIT_FAILED
from trainmark.plan.request import RunRequest

EXAMPLES = """\
  trainmark ceilings                          measure the first device; takes about half a minute
  trainmark ceilings --nproc 8 --budget-s 15   use eight devices and larger sizes; takes minutes
  trainmark ceilings --json > ceilings.json   write every size, rank and repetition
"""

_STARTUP_S = 120.0  # time that ranks need to import torch on a busy machine
_MAX_ROWS = 16  # of the result at most: kinds of rates, each of which is measured for --budget-s


@add_model_options(RunRequest, "device", "nproc")
def ceilings(
    budget_s: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=3600,
            help="Seconds to measure each rate; more time allows larger matrices and buffers.",
        ),
    ] = 3.0,
    lang: Lang = "en",
    as_json: Json = False,
    **fields: Any,  # the options of `add_model_options` that the user gave
) -> None:
    """Measure matmul, memory, transfer and collective rates of this machine."""
    from trainmark.launch.processes import note_stop_signals
    from trainmark.machine.ceilings import measure_ceilings
    from trainmark.pages.ceilings import build_ceilings as build_ceilings_page
    from trainmark.pages.ceilings import has_wrong_results
    from trainmark.pages.terminal import show
    from trainmark.results.redaction import Redactor

    # Only for the device and the number of ranks; a request must have a case, which is not used.
    request = RunRequest.build(case="-", **fields)
    with note_stop_signals() as stop, redirect_to_stderr():
        rates = measure_ceilings(
            stop,
            device=request.device,
            nproc=request.nproc or 1,
            budget_s=budget_s,
            timeout_s=_STARTUP_S + 3 * _MAX_ROWS * budget_s,  # 3: a margin
        )
    if as_json:
        # Users share the document: names of persons, machines and folders are replaced. The printed
        # tables have no such names.
        print_json(Redactor().redact_document(rates))
    else:
        typer.echo(show(build_ceilings_page(rates), lang))
    if has_wrong_results(rates):
        print_text("trainmark: a rank computed wrong results", err=True)
        raise typer.Exit(EXIT_FAILED)
