"""Ranks against each other: the slowest, and a table of what was measured on each."""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.document import Block, Paragraph, Table, table
from trainmark.pages.texts import t

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.record.record import Record


def blocks(record: Record) -> Iterator[Block]:
    """Yield what is known of several ranks: the slowest, then all."""
    times = {entry.rank: entry.step_ns for entry in record.ranks if entry.step_ns}
    slowest = max(times, key=times.__getitem__) if len({*times.values()}) > 1 else None
    if slowest is not None:
        share = f"{100 * (times[slowest] / median_low(times.values()) - 1):.1f}"
        step = f"{times[slowest] / 1e9:.4g}"
        yield Paragraph(t("ranks.slowest", rank=slowest, step=step, share=share))
    if len(times) > 1:
        yield _known(record)


def _known(record: Record) -> Table:
    """Return what the record has of each rank, the slowest first."""
    rows = (
        (
            one.rank, one.rank // record.plan.nproc,
            *(None if ns is None else f"{ns / 1e6:.4g}" for ns in (one.step_ns, one.wait_ns)),
            (rate := one.matmul_flops_per_second) and f"{rate / 1e12:.4g}",
            cells.memory(one.used_bytes, None),
        )
        for one in sorted(record.ranks, key=lambda one: -(one.step_ns or 0))
    )  # fmt: skip
    names = ("node", "step_ms", "wait_ms", "tflops", "memory")
    return table((t("use.rank"), *(t(f"ranks.{name}") for name in names)), rows, short=True)
