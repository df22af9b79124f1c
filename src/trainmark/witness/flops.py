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
    if "torch._dynamo" not in sys.modules:  # without this module, torch compiles nothing
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
        self.counted: float | None = None  # FLOPs of the step; None: no step was counted yet
        self.matmul_type: str | None = None  # type of the operands of most of these FLOPs
        self._watch: StepWatch | None = None  # counts the current step; None: it is not counted

    def can_still_count(self, can_count: bool) -> bool:
        """Tell whether a step may still be counted: none was counted yet, and one can be.

        Args:
            can_count: whether the program is in a state in which steps can be counted.
        """
        return self.counted is None and can_count

    def end_step(self, *, can_count: bool) -> None:
        """Note that a step has ended: read its count, or begin to count the next step."""
        if self._watch is not None:
            self._read()
        elif self.counted is None and can_count:
            from trainmark.rank.watch import StepWatch

            self._watch = StepWatch(dict)  # ``dict`` returns no precision flags to note
            # Exited at the end of the step, in another call.
            self._watch.__enter__()  # type: ignore[no-untyped-call]

    def abandon(self) -> None:
        """Stop counting the current step, because the program does something else in it."""
        if self._watch is not None:
            self._watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._watch = None

    def _read(self) -> None:
        """Read the count of the step that has ended; a step without FLOPs does not count."""
        watch = self._watch
        assert watch is not None, "the caller has one"
        self.abandon()  # ends the counting; the counts stay
        total = sum(watch.flops.values())
        if total:
            self.counted = float(total)
            self.matmul_type = max(watch.flops, key=lambda name: watch.flops[name])
