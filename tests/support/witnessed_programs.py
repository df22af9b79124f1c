"""Start a small program under the witness and return its record, without pages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.real_runs import read_checked_record
from trainmark.launch import local
from trainmark.launch.processes import StopRequest
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import resolve

if TYPE_CHECKING:
    from trainmark.record.record import Record

PROGRAMS = Path(__file__).parents[1] / "witness" / "programs"
# The file of ``--witness``: what the programs do in a step, and how they print their speed.
WORK = """
name = "program"
precision = "fp32"
warmup_steps = 5
speed_line = 'step_ms (?P<step_ms>[0-9.]+)'
[step]
samples = 8
"""


def measure(
    folder: Path,
    program: str,
    *args: str,
    work: str = WORK,
    launcher: tuple[str, ...] = (),
    **fields: object,
) -> Record:
    """Run a program of ``PROGRAMS``, a folder of tests, and return its record, checked.

    Trainmark watches the program train and measures it; ``WORK`` states what it does: 8 samples a
    step in fp32, of which the first 5 steps are warm-up, and lines with ``step_ms``.

    Args:
        args: arguments of the program.
        work: the file of ``--witness``.
        launcher: words before the program, in place of this Python.
        fields: further ones of the request.
    """
    file = folder / "work.toml"
    file.write_text(work)
    command = [*(launcher or (sys.executable,)), str(PROGRAMS / program), *args]
    # ``sample_every``: seconds between readings of the device, 0 for none.
    fields = {"device": "cpu", "sample_every": 0, "out": folder / "run"} | fields
    request = RunRequest.build(case="witnessed", witness=file, command=command, **fields)
    local.launch(resolve(request), StopRequest())
    return read_checked_record(folder / "run")


def list_grave_finding_codes(record: Record) -> set[str]:
    """Return the codes of a record's findings that lower its trust for good.

    They say that the program does not train as it states, such as with batches of another size,
    without gradients, or with weights that do not change.
    """
    from trainmark.record.witnessed import FINDING_KINDS

    grave_codes = {code for code, kind in FINDING_KINDS.items() if kind.grade == "do_not_quote"}
    return {finding.code for finding in record.findings} & grave_codes
