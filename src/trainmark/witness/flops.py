"""Count the FLOPs of one step of a program with torch's counter, and the type of their operands.

Steps of compiled programs are not counted, because their operations are not those of torch.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmark.rank.watch import StepWatch


def count_graphs() -> int:
    """Return the number of graphs that torch has compiled; 0 if it is unknown."""
    if "torch._dynamo" not in sys.modules:  # torch compiles nothing before this module is imported
        return 0
    from trainmark.train.parallel import count_compiled_graphs

    return count_compiled_graphs() or 0


class FlopCounter:
    """Counts the FLOPs of one whole step, from the end of the step before it to its own end.

    Attributes:
        counted: FLOPs of the step; None: no step was counted yet.
        matmul_type: type of the operands of most FLOPs.
    """

    def __init__(self) -> None:
        self.counted: float | None = None  # FLOPs of the one step that is counted; None: not yet
        self.matmul_type: str | None = None  # type of the operands of most of these FLOPs
        self._watch: StepWatch | None = None  # counts the current step; None: it is not counted

    def end_step(self, *, can_count_next: bool) -> None:
        """Note that a step has ended: read its count, or begin to count the next step.

        Args:
            can_count_next: the next step may be counted; it is if none has been counted yet.
        """
        if self._watch is not None:
            self._read()
        elif self.counted is None and can_count_next:
            from trainmark.rank.watch import StepWatch

            # ``StepWatch`` calls its argument to read precision flags: ``dict`` returns none.
            self._watch = StepWatch(dict)
            # The next call, at the end of the counted step, exits it.
            self._watch.__enter__()  # type: ignore[no-untyped-call]

    def abandon(self) -> None:
        """Stop counting the current step, because the program does something else in it."""
        if self._watch is not None:
            self._watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._watch = None

    def _read(self) -> None:
        """Keep the FLOPs of the step that has ended; if it had none, a later step is counted."""
        watch = self._watch
        assert watch is not None, "the caller has one"
        self.abandon()  # ends the counting; the counts stay
        total = sum(watch.flops.values())
        if total:
            self.counted = float(total)
            self.matmul_type = max(watch.flops, key=lambda name: watch.flops[name])
