"""Tell where ranks were when a launch was stopped, from the stacks that ``faulthandler`` wrote.

Owns the meaning of a stack: in a collective call, in a wait for the device or for other ranks,
or elsewhere. Ranks at one place are one group, so that a report of 1,024 ranks has few lines.
"""

from __future__ import annotations

import linecache
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trainmark.devices.numa import compact

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

State = Literal["collective", "waits", "elsewhere", "silent"]
_MOST_BYTES = 1 << 20  # of a file; a hundred threads of a hundred frames each have 0.8 MB
_LONGEST = 200  # characters of a name in the report
_THREAD = re.compile(r"^(?:Current thread|Thread|Stack)\b.*$", re.MULTILINE)
_FRAME = re.compile(r'^  File (?:"(.*)"|\?\?\?), line (\d+|\?\?\?) in (.*)$', re.MULTILINE)
_STATE = re.compile(r"\(state: ([\w-]+)\)")  # as ``save_stacks`` writes it for a silent process
_COLLECTIVES = re.compile(r"/torch/distributed/(distributed_c10d|_functional_collectives)\.py$")
_LIBRARY = re.compile(r"^<|/torch/|/lib/python3[^/]*/(?!(?:site|dist)-packages/)")
# Functions of torch in which a rank waits while no collective is in its Python stack: DDP and
# FSDP reduce gradients in the backward pass, and an accelerator's queue holds its collectives.
_WAITS = {"_engine_run_backward": "backward", "synchronize": "synchronize"}


class Frame(NamedTuple):
    """One call of a stack."""

    file: str
    line: str
    function: str


class Place(NamedTuple):
    """Where a rank was.

    Args:
        call: the collective, or in what it waits (``backward``, ``synchronize``, ``wait``).
        where: file, line and function outside of torch and Python's own library; of a silent
            process the state that the kernel tells.
    """

    state: State
    call: str | None
    where: str


def frames(stacks: str) -> list[Frame]:
    """Return the calls of the main thread, the innermost first; empty if there are none.

    It is the thread that has the program's ``<module>``, and the last where a deep stack is cut.
    """
    threads = [[Frame(*m.groups("???")) for m in _FRAME.finditer(x)] for x in _THREAD.split(stacks)]
    whole = [thread for thread in threads if any(f.function == "<module>" for f in thread)]
    return (whole or threads)[-1]


def place(stacks: str) -> Place:
    """Return where the rank was that wrote ``stacks``."""
    calls = frames(stacks)
    if not calls:
        state = _STATE.search(stacks)
        return Place("silent", None, state[1][:_LONGEST] if state else "?")
    own = next((call for call in calls if not _LIBRARY.search(call.file)), calls[0])
    where = f"{'/'.join(own.file.split('/')[-2:])}:{own.line} {own.function}"[-_LONGEST:]
    for call in calls:
        # The decorator that logs collectives calls its function ``wrapper``.
        public = call.function != "wrapper" and not call.function.startswith("_")
        if public and _COLLECTIVES.search(call.file):
            return Place("collective", call.function[:_LONGEST], where)
    for call in calls:
        if call.function in _WAITS and "/torch/" in call.file:
            return Place("waits", _WAITS[call.function], where)
    # The wait for a collective that was started before has no Python frame of its own.
    inner = calls[0]
    source = inner.file.endswith(".py") and inner.line.isdecimal()
    if source and ".wait(" in linecache.getline(inner.file, int(inner.line)):
        return Place("waits", "wait", where)
    return Place("elsewhere", None, where)


def report(files: Mapping[int, Path]) -> list[dict[str, Any]]:
    """Return the groups of ranks at one place, the largest first, as a ``stop`` event has them.

    Args:
        files: the stacks of each rank of this machine, by rank.
    """
    found: dict[Place, list[int]] = {}
    for rank, path in files.items():
        try:
            with path.open("rb") as file:
                stacks = file.read(_MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            stacks = ""
        found.setdefault(place(stacks), []).append(rank)
    groups = sorted(found.items(), key=lambda item: (-len(item[1]), item[1]))
    return [at._asdict() | {"ranks": compact(ranks)} for at, ranks in groups]
