"""Count the FLOPs of one step of a program with torch's counter, and the type of their operands.

Steps of compiled programs are not counted, because their operations are not those of torch.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        step_flops: FLOPs of the step; None: no step was counted yet.
        matmul_type: type of the operands of most of these FLOPs, such as ``bfloat16``.
        _watch: counts the current step; None: the current step is not counted.
    """

    def __init__(self) -> None:
        self.step_flops: float | None = None  # of the one step that was counted; None: none was
        # Type of the operands of most of these FLOPs, such as ``bfloat16``.
        self.matmul_type: str | None = None
        self._watch: StepWatch | None = None  # counts the current step; None: it is not counted

    def end_step(self, *, can_count_next: bool) -> None:
        """Note that a step has ended: keep its FLOPs if it was counted, else count the next one.

        Args:
            can_count_next: the next step may be counted; it is if none has been counted yet.
        """
        watch = self._watch
        if watch is not None:
            self.stop_counting()
            self._keep_flops(watch.flops)
        elif self.step_flops is None and can_count_next:
            from trainmark.rank.watch import StepWatch

            # ``StepWatch`` calls its argument to read precision flags: ``dict`` returns none.
            self._watch = StepWatch(dict)
            # The next call, at the end of the counted step, exits it.
            self._watch.__enter__()  # type: ignore[no-untyped-call]

    def stop_counting(self) -> None:
        """Stop counting the current step; if it is not counted, do nothing."""
        if self._watch is not None:
            self._watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._watch = None

    def _keep_flops(self, flops_by_type: Mapping[str, int]) -> None:
        """Keep the FLOPs of the counted step; if it had none, a later step is counted.

        Args:
            flops_by_type: FLOPs by the type of their operands.
        """
        total = sum(flops_by_type.values())
        if total:
            self.step_flops = float(total)
            self.matmul_type = max(flops_by_type, key=lambda name: flops_by_type[name])
