"""Find where ranks hung when a launch was stopped, from the stacks that ``faulthandler`` wrote.

Interprets a stack: the rank was in a collective call, waited for the device or for other ranks, or
was elsewhere. Ranks at the same place form a group, so that a report of 1,024 ranks has few lines.
"""

from __future__ import annotations

import linecache
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.ranges import format_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MAX_NAME_CHARS = 200  # of a name in the report
_THREAD = re.compile(r"^(?:Current thread|Thread|Stack)\b.*$", re.MULTILINE)
_FRAME = re.compile(r'^  File (?:"(.*)"|\?\?\?), line (\d+|\?\?\?) in (.*)$', re.MULTILINE)
# Matches ``FILE:FUNCTION`` of a collective, in files of torch.distributed alone; ``wrapper`` is the
# decorator that logs collectives.
_TORCH_COLLECTIVE = re.compile(
    r"/torch/distributed/(distributed_c10d|_functional\w+)\.py:(?!_|wrapper$)"
)
_LIBRARY = re.compile(r"^<|/torch/|/lib/python3[^/]*/(?!(?:site|dist)-packages/)")
# Functions of torch in which a rank waits while no collective is in its Python stack: DDP and
# FSDP reduce gradients in the backward pass, and an accelerator's queue holds its collectives.
_TORCH_WAITS = {"_engine_run_backward": "backward", "synchronize": "synchronize"}


class RankPlace(NamedTuple):
    """Where a rank was when the launch was stopped.

    Args:
        state: ``collective``, ``waits``, ``elsewhere`` or ``silent`` (it wrote no stack).
        call: the collective, or what the rank waited in (``backward``, ``synchronize``, ``wait``).
        where: file, line and function outside of torch and Python's standard library; for a silent
            rank the state of its process, as the kernel reports it.
    """

    state: str
    call: str | None
    where: str


def parse_frames(stacks: str) -> list[tuple[str, ...]]:
    """Return file, line and function of each of the main thread's calls, the innermost first.

    The main thread is the one that has the call ``<module>``, the program itself. faulthandler
    writes only the innermost calls of a deep stack, so that ``<module>`` may be missing. The last
    thread is then taken, because faulthandler writes the main thread last. The list is empty if
    ``stacks`` has no call.
    """
    threads = []
    for text in _THREAD.split(stacks):
        # Groups: file, line, function. faulthandler writes ??? for a file that it does not know;
        # the group of the file is then None, for which "???" is put back.
        threads.append([match.groups("???") for match in _FRAME.finditer(text)])
    main_threads = [thread for thread in threads if any(call[2] == "<module>" for call in thread)]
    return (main_threads or threads)[-1]  # ``split`` returns at least one text


def find_place(stacks: str) -> RankPlace:
    """Return where the rank was that wrote ``stacks``.

    The state of the place is ``silent`` (the rank wrote no stack), ``collective`` (it was in a
    collective call), ``waits`` (for the device or for other ranks) or ``elsewhere``. ``where`` is
    the innermost call of the user's code; for a silent rank, it is the state of the process.
    """
    calls = parse_frames(stacks)
    if not calls:
        # For a rank that does not answer, ``save_stacks`` writes "… (state: STATE)" with the state
        # of its process, such as sleeping.
        process_state = stacks.rpartition("state: ")[2].rstrip(")\n")
        where = process_state[:_MAX_NAME_CHARS] or "?"
        return RankPlace(state="silent", call=None, where=where)
    where = _describe_user_call(calls)
    for file, _, function in calls:  # from the innermost call outwards
        if _TORCH_COLLECTIVE.search(f"{file}:{function}"):
            return RankPlace(state="collective", call=function[:_MAX_NAME_CHARS], where=where)
        # ``_TORCH_WAITS`` has functions of torch that wait, and the name of each in the report.
        if function in _TORCH_WAITS and "/torch/" in file:
            return RankPlace(state="waits", call=_TORCH_WAITS[function], where=where)
    # ``work.wait()``, for a collective that was started earlier, is not a Python function and so
    # has no frame of its own. The innermost frame is then its caller, whose source line is read.
    file, line, _ = calls[0]
    if file.endswith(".py") and line.isdecimal() and ".wait(" in linecache.getline(file, int(line)):
        return RankPlace(state="waits", call="wait", where=where)
    return RankPlace(state="elsewhere", call=None, where=where)


def _describe_user_call(calls: list[tuple[str, ...]]) -> str:
    """Return file, line and function of the innermost call outside of torch and Python.

    If all calls are in torch or Python, the innermost of these is returned.
    """
    user_calls = [call for call in calls if not _LIBRARY.search(call[0])]
    file, line, function = (user_calls or calls)[0]
    short_file = "/".join(file.split("/")[-2:])
    return f"{short_file}:{line} {function}"[-_MAX_NAME_CHARS:]  # the end tells most


def group_ranks(files: Mapping[int, Path]) -> list[dict[str, Any]]:
    """Return groups of ranks at the same place, the largest first, as ``hang`` of a ``stop`` event.

    Args:
        files: the stacks of each rank of this machine, by rank.
    """
    ranks_by_place: dict[RankPlace, list[int]] = {}
    for rank, path in files.items():
        # A rank without a file has written no stack.
        stacks = path.read_text("utf-8", "replace") if path.exists() else ""
        ranks_by_place.setdefault(find_place(stacks), []).append(rank)

    def get_sort_key(group: tuple[RankPlace, list[int]]) -> tuple[int, list[int]]:
        """Return a key that puts large groups first, and equal ones in the order of their ranks."""
        _, ranks = group
        return -len(ranks), ranks

    groups = sorted(ranks_by_place.items(), key=get_sort_key)
    return [place._asdict() | {"ranks": format_ranges(ranks)} for place, ranks in groups]
