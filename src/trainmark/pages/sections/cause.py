"""How a run failed: the exception or signal, where the ranks were if it hung, the traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.errors import escape_controls
from trainmark.pages.document import (
    Block,
    Code,
    Paragraph,
    Section,
    Table,
    build_folded_section,
    build_table,
    list_known_facts,
)
from trainmark.pages.texts import phrase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.events.schema import HangGroup
    from trainmark.record.record import Record

_TRACEBACK_LINES = 16
_MAX_RANKS_LENGTH = 40  # characters of a list of ranks


def build_cause(record: Record) -> Section | None:
    """Return how a run failed; None if it passed.

    The section has the exception or the signal, the files with the stacks of the ranks, where the
    ranks were if the run hung, and the end of the traceback.
    """
    run_cause = record.cause
    if run_cause is None:
        return None
    # A file for each rank whose stack was saved, beside the record; their number is in brackets.
    stacks = f"stacks.rank<N>.txt ({len(run_cause.stacks)})" if run_cause.stacks else None
    facts = list_known_facts(
        {
            "cause.type": run_cause.type,
            "cause.signal": run_cause.signal,
            "cause.exit_code": run_cause.exit_code,
            "cause.stacks": stacks,
        }
    )
    blocks: list[Block] = []
    if facts.items:
        blocks.append(facts)
    if run_cause.hang:  # which ranks were at which place, according to their stacks
        blocks.append(_build_hang_table(run_cause.hang))
    if run_cause.traceback:
        lines = run_cause.traceback.rstrip().splitlines()[-_TRACEBACK_LINES:]  # the last ones
        blocks.append(Paragraph(phrase("cause.traceback"), "muted"))
        blocks.append(
            Code("\n".join(escape_controls(line.expandtabs(4)).rstrip() for line in lines))
        )
    return build_folded_section("cause", *blocks, is_open=True)


def _build_hang_table(groups: Sequence[HangGroup]) -> Table:
    """Return where the ranks were when a run was stopped, a row for the ranks at one place.

    Args:
        groups: the ranks at one place. ``where`` names the place in the code; ``state`` is
            ``collective``, ``waits``, ``elsewhere`` or ``silent``; ``call`` is the collective or
            the call in which they wait, None in the last two states.
    """
    rows = []
    for group in groups:
        ranks = group["ranks"]  # as text: `0-3,8`
        if len(ranks) > _MAX_RANKS_LENGTH:
            ranks = f"{ranks[:_MAX_RANKS_LENGTH]}…"
        state = (phrase(f"hang.{group['state']}"), f" {group['call']}" if group["call"] else "")
        rows.append((ranks, state, group["where"]))
    return build_table((phrase(f"hang.{name}") for name in ("ranks", "state", "place")), rows)
