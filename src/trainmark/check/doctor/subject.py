"""What is examined, and how a finding is worded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.protocols import Condition

if TYPE_CHECKING:
    from trainmark.errors import EnvironmentFault
    from trainmark.plan.choosing import Choice
    from trainmark.protocols import Vendor

Conditions = Iterator[Condition]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A machine, and the run that is meant on it.

    Args:
        vendor: of the devices; None: none can be used, because of ``fault``.
        device: as the user named it.
        choice: of a case; None: no case is examined.
        out: folder for runs, which need not exist.
        data: folder with real data.
        quick: whether only what takes little time is examined.
        end_s: ``time.monotonic()`` at which time is up.
        root: of the file system that holds ``proc``, ``sys`` and ``dev``.
    """

    out: Path
    vendor: Vendor | None = None
    fault: EnvironmentFault | None = None
    device: str | None = None
    nproc: int = 1
    choice: Choice | None = None
    data: Path | None = None
    quick: bool = False
    end_s: float = inf
    root: Path = Path("/")


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
