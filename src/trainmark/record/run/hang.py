"""Find which ranks of a stopped run waited, in which call, and which ranks these waited for.

Computed from the places that each machine found in its ranks' stacks. Says nothing of a hang
where ranks still reported windows: such a run had only too little time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.devices.cores import compact, parse_cores
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.rank.events import Stop
    from trainmark.record.run.timeline import RunTimeline
    from trainmark.record.shapes import HangGroup

_SOON_NS = 10e9  # after the last step a run counts as training, where its limit is minutes
_LONGEST = 160  # characters of ranks or places in a sentence


def groups(timeline: RunTimeline, stop: Stop) -> list[HangGroup]:
    """Return where the ranks were, the largest group first; empty without saved stacks."""
    found: dict[tuple[Any, ...], list[int]] = {}
    left = dict(enumerate(timeline.ranks))
    for group in stop.hang:
        ranks = [rank for rank in parse_cores(group.ranks) if left.pop(rank, None)]
        found.setdefault((group.state, group.call, group.where), []).extend(ranks)
    if found and left:
        found["unknown", None, "?"] = list(left)
    made: list[HangGroup] = []
    for (state, call, where), ranks in sorted(found.items(), key=lambda item: -len(item[1])):
        steps = sorted({timeline.ranks[rank].steps for rank in ranks})
        made.append({
            "ranks": compact(ranks), "state": state, "call": call, "where": where,
            "count": len(ranks), "steps": list(dict.fromkeys([*steps[:1], *steps[-1:]])),
        })  # fmt: skip
    return [group for group in made if group["count"]]


def message_of(timeline: RunTimeline, stop: Stop, found: Sequence[HangGroup]) -> Message:
    """Return why a run that was stopped by its time limit had not ended."""
    ranks = timeline.ranks
    args: dict[str, Any] = {
        "limit_s": stop.timeout_s, "steps": timeline.steps,
    }  # fmt: skip
    phases = [phase for rank in ranks for phase in rank.phases.values() if phase.steps]
    ends_ns = [end_ns for rank in ranks for _, end_ns in rank.edges_ns.values()]
    quiet_ns = stop.t_ns - max(ends_ns, default=timeline.launch_ns)
    # The stricter state wins: where ranks are in a collective, one in a backward pass may compute.
    alike = ([x for x in found if x["state"] == state] for state in ("collective", "waits"))
    waiting = next(filter(None, alike), [])
    usual_ns = 3 * max((x.windows_ns / x.windows for x in phases), default=0)
    if phases and quiet_ns < max(usual_ns, min(_SOON_NS, 0.05e9 * (stop.timeout_s or 0))):
        return message("timed_out_training", **args, quiet_s=quiet_ns / 1e9)
    if not waiting:
        return message("timed_out", **args)
    others = [group for group in found if group not in waiting]
    missing = [group for group in others if group["state"] in ("elsewhere", "silent")] or others
    calls = ", ".join(dict.fromkeys(str(group["call"]) for group in waiting))
    args |= {"quiet_s": quiet_ns / 1e9, "call": calls, "places": _places(missing or waiting)}
    if not missing:
        return message("timed_out_together", **args)
    numbers = (compact(rank for group in side for rank in parse_cores(group["ranks"]))
               for side in (waiting, missing))  # fmt: skip
    waits, absent = map(_clipped, numbers)
    return message("timed_out_missing", **args, waiting=waits, missing=absent)


def _places(found: Sequence[HangGroup]) -> str:
    """Return ``0-3: barrier (train/job.py:31 step); 4: …`` for some groups."""
    at = [f"{x['call']} ({x['where']})" if x["call"] else x["where"] for x in found]
    ranks = (_clipped(group["ranks"], 40) for group in found)
    return _clipped("; ".join(map(": ".join, zip(ranks, at, strict=True))))


def _clipped(text: str, most: int = _LONGEST) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
