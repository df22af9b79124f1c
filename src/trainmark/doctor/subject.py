"""What is examined, where its state is read from, and how a finding is worded."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import time
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.devices.tool import run
from trainmark.launch.processes import CpuUse, alive_runs
from trainmark.protocols import Condition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainmark.planning.requests import Request
    from trainmark.protocols import Vendor


def _affinity() -> frozenset[int]:
    every = range(os.cpu_count() or 1)
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else every)


def _own_addresses() -> frozenset[str]:
    found = socket.getaddrinfo(socket.gethostname(), None)
    return frozenset(str(address[4][0]) for address in found)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A machine, and the run that is meant on it. Tests replace what is read.

    Args:
        vendor: of the devices; None: none can be used, for the reason ``no_vendor``.
        device: as the user named it.
        request: of a case; None: no case is examined.
        out: folder for runs, which need not exist.
        data: folder with real data.
        quick: whether only what takes little time is examined.
        end_s: ``time.monotonic()`` at which time is up.
        root: of the file system that holds ``proc``, ``sys`` and ``dev``.
        affinity: numbers of the cores that this process may use.
        free_bytes: of the file system that holds a folder.
        runs: ids of living processes by the id of their run.
        addresses: those of this host's own name; it raises ``OSError`` if there is none.
        tool: runs a command; see ``devices.tool.run``.
    """

    out: Path
    vendor: Vendor | None = None
    no_vendor: tuple[str, str] = ("", "")  # what, remedy
    device: str | None = None
    nproc: int = 1
    request: Request | None = None
    data: Path | None = None
    quick: bool = False
    end_s: float = inf
    root: Path = Path("/")
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)
    affinity: frozenset[int] = field(default_factory=_affinity)
    cpu_use: Callable[[], CpuUse] = CpuUse.now
    sleep: Callable[[float], None] = time.sleep
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free
    limit: Callable[[int], tuple[int, int]] = resource.getrlimit
    runs: Callable[[], Mapping[str, list[int]]] = alive_runs
    addresses: Callable[[], frozenset[str]] = _own_addresses
    tool: Callable[..., str] = run


def judged(
    what: str,
    remedy: str = "",
    *,
    stops: bool = False,
    spoils: bool = False,
    unknown: bool = False,
    code: str = "",
) -> Condition:
    """Return a condition with the first severity that holds, else ``fine`` without a remedy.

    Args:
        code: empty: that of the check, which is its function's name.
    """
    if not (stops or spoils or unknown):
        return Condition(code, "fine", what)
    return Condition(code, "stops" if stops else "spoils" if spoils else "unknown", what, remedy)
