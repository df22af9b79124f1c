"""Count the FLOPs of one step of a program with torch's counter, and the type of their operands.

A step of a program that ``torch.compile`` made is not counted: its operations are not torch's.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmark.rank.watch import StepWatch


def count_graphs() -> int:
    """Return how many graphs torch compiled so far; 0 if it compiled none, or does not tell."""
    if "torch._dynamo" not in sys.modules:
        return 0
    from trainmark.train.parallel import graphs_compiled

    return graphs_compiled() or 0


class FlopCounter:
    """Counts one whole step between the ends of two steps."""

    def __init__(self) -> None:
        self.counted: float | None = None
        self.matmul_type: str | None = None  # that of most FLOPs
        self._watch: StepWatch | None = None

    def may_count(self, can_count: bool) -> bool:
        """Tell whether a step may still be counted."""
        return self.counted is None and can_count

    def step_ended(self, *, can_count: bool) -> None:
        """Take the count of the step that ended, or begin with the next one."""
        if self._watch is not None:
            self._read()
        elif self.counted is None and can_count:
            from trainmark.rank.watch import StepWatch

            self._watch = StepWatch(dict)
            self._watch.__enter__()  # type: ignore[no-untyped-call]  # until the step's end, which is in another call

    def abandon(self) -> None:
        """Do not count the step under way: the program does something else in it."""
        if self._watch is not None:
            self._watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._watch = None

    def _read(self) -> None:
        watch = self._watch
        assert watch is not None, "the caller has one"
        self.abandon()
        total = sum(watch.flops.values())
        if total:
            self.counted = float(total)
            self.matmul_type = max(watch.flops, key=watch.flops.__getitem__)
