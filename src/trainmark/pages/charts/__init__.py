"""The charts: a function each, from a record to what Vega-Lite draws by ``specs.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.charts import over_time, steps
from trainmark.pages.document import Block, Paragraph, Section, Table, table
from trainmark.pages.texts import t
from trainmark.record.series import bucket_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.record.record import Record


def of_record(record: Record, telemetry: Sequence[Block] = ()) -> Iterator[Section]:
    """Yield curves, ranks, and devices over time; ``telemetry``: what stands before the last."""
    drawn = (steps.step_time(record), steps.loss(record), steps.quality(record))
    course: list[Block] = [chart for chart in drawn if chart is not None]
    stretch = bucket_steps(len(record.steps.time_ns))
    if course and stretch > 1:
        course.append(Paragraph(t("chart.note", stretch=cells.count(stretch)), "muted"))
    yield from _section("section.steps", "steps", course, in_terminal=False)
    timed = [one for one in record.ranks if one.step_ns]
    yield from _section("ranks.heading", "ranks", [_ranks(record)] if len(timed) > 1 else [])
    lines: list[Block] = [*over_time.charts(record)]
    lines += [Paragraph(t("time.note"), "muted")] if lines else []
    yield from _section("time.heading", "time", [*telemetry, *lines])


def _ranks(record: Record) -> Table:
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
    names = (
        "use.rank",
        *(f"ranks.{x}" for x in ("node", "step_ms", "wait_ms", "tflops", "memory")),
    )
    return table(map(t, names), rows, short=True)


def _section(
    heading: str, anchor: str, blocks: Sequence[Block], *, in_terminal: bool = True
) -> Iterator[Section]:
    if blocks:
        yield Section(t(heading), anchor, tuple(blocks), folded=True, in_terminal=in_terminal)
