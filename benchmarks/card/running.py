"""Run a section in a process of its own, and end all its processes with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.harness import SIZE_VARIABLE
from trainmark.launch.processes import kill_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.card.section import Card
    from trainmark.launch.processes import StopRequest

ROOT = Path(__file__).parents[2]
SECTION_VARIABLE = "TRAINMARK_CARD_SECTION"
_LOOK_S = 0.2
_STACKS_BEFORE_S = 5.0
_SHARE_TO_MEASURE = 0.85  # of a section's time; the rest is to end and to write
_TAIL_LINES, _TAIL_CHARACTERS = 40, 6000

State = Literal["finished", "failed", "timed out", "interrupted"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a section's process ended.

    Args:
        seconds: from its start to its end, imports included.
        document: ``title`` and ``found``, if it finished.
        output: the end of what it printed, if it did not.
    """

    state: State
    seconds: float
    document: dict[str, Any] | None = None
    output: str = ""


def run(
    module: str,
    card: Card,
    *,
    limit_s: float,
    stop: StopRequest,
    is_brief: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """Call ``module.run(card)`` in a new session; kill all its processes when it ends.

    The section is told to end by itself a little before ``limit_s``.

    Processes are found by a variable that they inherit: ranks of a launch are in sessions of
    their own. ``stop`` ends the section as the time limit does.
    """
    name = module.rpartition(".")[2]
    token = str(card.scratch)  # one call at a time has it
    kill_run(token, variable=SECTION_VARIABLE)  # what a call left that was killed itself
    result, log = card.scratch / f"{name}.json", card.scratch / f"{name}.log"
    result.unlink(missing_ok=True)
    stacks_after_s = max(limit_s - _STACKS_BEFORE_S, limit_s / 2)
    parent = str(os.getpid())
    # By the clock that all processes share: to start one takes long on a busy machine.
    ends_at_s = time.monotonic() + limit_s * _SHARE_TO_MEASURE
    arguments = [
        parent,
        module,
        card.device,
        card.size,
        str(card.scratch),
        str(stacks_after_s),
        str(ends_at_s),
        "brief" if is_brief else "whole",
        str(result),
    ]
    start = clock()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.card.child", *arguments],
            cwd=ROOT,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {SECTION_VARIABLE: token, SIZE_VARIABLE: card.size},
        )
        state = _wait(process, lambda: clock() >= start + limit_s, stop)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        survivors = kill_run(token, variable=SECTION_VARIABLE)
    seconds = clock() - start
    ending = {
        "timed out": f"[ended after {limit_s:g} s]",
        "interrupted": f"[ended by {stop.signal_name}]",
    }.get(state, f"[exit code {process.returncode}]")
    if survivors:
        ending += f" [processes that did not end: {survivors}]"
    if state == "finished":
        return Ended(state, seconds, json.loads(result.read_bytes()))
    return Ended(state, seconds, output=f"{_read_tail(log)}\n{ending}".strip())


def _wait(
    process: subprocess.Popen[bytes], is_over: Callable[[], bool], stop: StopRequest
) -> State:
    while process.poll() is None:
        if stop.signal_name is not None:
            return "interrupted"
        if is_over():
            return "timed out"
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)
    return "finished" if process.returncode == 0 else "failed"


def _read_tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])[-_TAIL_CHARACTERS:]
