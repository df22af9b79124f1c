"""The nodes of a run on several machines, and their clocks.

Owns how the events of the node processes become one account of the launch, on the clock of the
first node: each node's clock counts from another moment, and wall clocks may differ by seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmark.rank.events import JOB_EVENTS_FILE, EventFile, node_file
from trainmark.record.shapes import read_event

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


@dataclass(slots=True)
class NodeTimeline:
    """What one node's process reported.

    Args:
        events: its events by their names; empty where it left none.
        ranks: numbers of its ranks.
        shift_ns: what is added to its clock to have that of the first node.
        skew_s: its wall clock less that of the first node, at a moment both shared; None: unknown.
    """

    number: int
    events: dict[str, dict[str, Any]]
    ranks: range
    shift_ns: int = 0
    skew_s: float | None = None
    malformed_lines: int = 0

    @property
    def finished(self) -> bool:
        """Tell whether it reported its end."""
        return "finished" in self.events

    def at(self, name: str) -> dict[str, Any] | None:
        """Return the event called ``name`` on the clock of the first node."""
        found = self.events.get(name)
        return None if found is None else found | {"t_ns": found["t_ns"] + self.shift_ns}


def read_nodes(run_dir: Path, nodes: int, nproc: int) -> list[NodeTimeline]:
    """Read the files of ``nodes`` node processes; a missing one is a node that never answered."""
    found = []
    for number in range(nodes):
        own = range(number * nproc, (number + 1) * nproc)
        path = run_dir / node_file(number)
        file = EventFile(path, read_event)
        events = {event["event"]: event for event in file} if path.exists() else {}
        of_another = events.get("launch", {}).get("node", number) != number
        malformed = file.malformed_lines + of_another
        found.append(NodeTimeline(number, events, own, malformed_lines=malformed))
    return found


def align(nodes: Sequence[NodeTimeline], synced: Sequence[dict[str, Any] | None]) -> None:
    """Set each node's shift and skew.

    Ranks leave a barrier within less than a millisecond of each other. Where a node has no rank
    that reached it, wall clocks must do.

    Args:
        synced: each rank's event after the first barrier; None for one that did not reach it.
    """
    if not nodes:
        return
    first = _moment(nodes[0], synced)
    for node in nodes:
        here = _moment(node, synced)
        if first is None or here is None:
            continue
        shared = first.shared and here.shared
        wall_ns = here.unix_ns - first.unix_ns
        passed_ns = 0 if shared else wall_ns
        node.shift_ns = first.t_ns - here.t_ns + passed_ns
        node.skew_s = wall_ns / 1e9 if shared else None


@dataclass(frozen=True, slots=True)
class _Moment:
    """A time on a node's clock and on its wall clock; ``shared`` with all that have one."""

    t_ns: int
    unix_ns: int
    shared: bool


def _moment(node: NodeTimeline, synced: Sequence[dict[str, Any] | None]) -> _Moment | None:
    for rank in node.ranks:
        event = synced[rank]
        if event is not None:
            return _Moment(event["t_ns"], event["unix_ns"], shared=True)
    launch = node.events.get("launch") or node.events.get("refused")
    return None if launch is None else _Moment(launch["t_ns"], launch["unix_ns"], shared=False)


def account(
    launcher: dict[str, dict[str, Any]], nodes: Sequence[NodeTimeline], run_dir: Path
) -> dict[str, dict[str, Any]]:
    """Return the events of the launch as of one machine, on the clock of the first node.

    Args:
        launcher: the events of the process that submitted the run.
    """
    if not nodes:
        return launcher
    # Nodes begin within seconds of each other; the launcher's own clock is another machine's.
    first = next((one for node in nodes if (one := node.at("launch"))), None)
    told = dict(launcher)
    if first is not None:
        told["launch"] = {**first, "argv": launcher["launch"]["argv"]}
        told.pop("stop", None)
        if "stop" in launcher:  # its clock is another machine's: at the last that nodes saw
            seen = [node.at("finished") for node in nodes]
            last_ns = max((one["t_ns"] for one in seen if one), default=first["t_ns"])
            told["stop"] = launcher["stop"] | {"t_ns": last_ns}
    stops = [one | {"node": node.number} for node in nodes if (one := node.at("stop"))]
    ends = [_end(node) for node in nodes if "agent_exit" in node.events]
    if any(one["failures"] for one in ends):
        # The engine ends the other nodes of a job in which one failed.
        stops = [one for one in stops if one["reason"] != "signal"]
    if stops and "stop" not in told:
        told["stop"] = _first_stop(stops)
    if ends:
        shares = [
            one["others_cpu_share"] for one in ends if one.get("others_cpu_share") is not None
        ]
        told["agent_exit"] = {
            "event": "agent_exit",
            "t_ns": max(one["t_ns"] for one in ends),
            "exit_code": next((one["exit_code"] for one in ends if one["exit_code"]), 0),
            "failures": [failure for one in ends for failure in one["failures"]],
            "others_cpu_share": max(shares, default=None),
        }
    kills = sum(one["count"] for one in _present(nodes, "oom_kills"))
    if kills:
        told["oom_kills"] = {"event": "oom_kills", "count": kills}
    path = run_dir / JOB_EVENTS_FILE
    if path.exists():
        said = EventFile(path, read_event)
        told |= {event["event"]: event for event in said if event["event"] == "job"}
    return told


def _end(node: NodeTimeline) -> dict[str, Any]:
    """Return how a node's ranks ended, on the clocks of the first node."""
    end, skew_s = node.at("agent_exit"), node.skew_s or 0.0
    assert end is not None
    failures = [one | {"time_s": one["time_s"] - skew_s} for one in end["failures"]]
    return end | {"failures": failures}


def _present(nodes: Iterable[NodeTimeline], name: str) -> list[dict[str, Any]]:
    return [event for event in (node.at(name) for node in nodes) if event is not None]


def _first_stop(stops: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first stop, with the stacks that all nodes saved.

    A node that met its time limit comes before those that were then told to end.
    """
    order = sorted(stops, key=lambda one: (one["reason"] != "timeout", one["t_ns"]))
    lists = {
        name: [item for one in stops for item in one.get(name, [])] for name in ("stacks", "hang")
    }
    return order[0] | {name: found for name, found in lists.items() if found}
