"""Tell where ranks were when a launch was stopped, from the stacks that ``faulthandler`` wrote.

Owns the meaning of a stack: in a collective call, in a wait for the device or for other ranks,
or elsewhere. Ranks at one place are one group, so that a report of 1,024 ranks has few lines.
"""

from __future__ import annotations

import linecache
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.ranges import format_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LONGEST = 200  # characters of a name in the report
_THREAD = re.compile(r"^(?:Current thread|Thread|Stack)\b.*$", re.MULTILINE)
_FRAME = re.compile(r'^  File (?:"(.*)"|\?\?\?), line (\d+|\?\?\?) in (.*)$', re.MULTILINE)
# Of ``FILE:FUNCTION``; ``wrapper`` is the decorator that logs collectives.
_COLLECTIVE = re.compile(r"/torch/distributed/(distributed_c10d|_functional\w+)\.py:(?!_|wrapper$)")
_LIBRARY = re.compile(r"^<|/torch/|/lib/python3[^/]*/(?!(?:site|dist)-packages/)")
# Functions of torch in which a rank waits while no collective is in its Python stack: DDP and
# FSDP reduce gradients in the backward pass, and an accelerator's queue holds its collectives.
_WAITS = {"_engine_run_backward": "backward", "synchronize": "synchronize"}


class RankPlace(NamedTuple):
    """Where a rank was.

    Args:
        state: ``collective``, ``waits``, ``elsewhere`` or ``silent``.
        call: the collective, or in what it waits (``backward``, ``synchronize``, ``wait``).
        where: file, line and function outside of torch and Python's own library; of a silent
            process the state that the kernel tells.
    """

    state: str
    call: str | None
    where: str


def parse_frames(stacks: str) -> list[tuple[str, ...]]:
    """Return file, line and function of the main thread's calls, the innermost first.

    It is the thread that has the program's ``<module>``, and the last where a deep stack is cut.
    """
    threads = [[match.groups("???") for match in _FRAME.finditer(x)] for x in _THREAD.split(stacks)]
    whole = [thread for thread in threads if any(call[2] == "<module>" for call in thread)]
    return (whole or threads)[-1]


def find_place(stacks: str) -> RankPlace:
    """Return where the rank was that wrote ``stacks``."""
    calls = parse_frames(stacks)
    if not calls:
        state = stacks.rpartition("state: ")[2]  # as ``save_stacks`` writes it for a silent rank
        return RankPlace("silent", None, state.rstrip(")\n")[:_LONGEST] or "?")
    file, line, function = next((x for x in calls if not _LIBRARY.search(x[0])), calls[0])
    where = f"{'/'.join(file.split('/')[-2:])}:{line} {function}"[-_LONGEST:]
    for file, _, function in calls:
        if _COLLECTIVE.search(f"{file}:{function}"):
            return RankPlace("collective", function[:_LONGEST], where)
        if function in _WAITS and "/torch/" in file:
            return RankPlace("waits", _WAITS[function], where)
    # The wait for a collective that was started before has no Python frame of its own.
    file, line, _ = calls[0]
    source = linecache.getline(file, int(line)) if file.endswith(".py") and line.isdecimal() else ""
    return (
        RankPlace("waits", "wait", where)
        if ".wait(" in source
        else RankPlace("elsewhere", None, where)
    )


def group_ranks(files: Mapping[int, Path]) -> list[dict[str, Any]]:
    """Return the groups of ranks at one place, the largest first, as a ``stop`` event has them.

    Args:
        files: the stacks of each rank of this machine, by rank.
    """
    ranks_by_place: dict[RankPlace, list[int]] = {}
    for rank, path in files.items():
        stacks = path.read_text("utf-8", "replace") if path.exists() else ""
        ranks_by_place.setdefault(find_place(stacks), []).append(rank)
    groups = sorted(ranks_by_place.items(), key=lambda item: (-len(item[1]), item[1]))
    return [place._asdict() | {"ranks": format_ranges(ranks)} for place, ranks in groups]
