"""The nodes of a run on several machines, and their clocks.

Owns how the events of the node processes become one account of the launch, on the clock of the
first node: each node's clock counts from another moment, and wall clocks may differ by seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trainmark.rank.events import (
    JOB_EVENTS_FILE,
    Event,
    EventFile,
    Job,
    Launch,
    RanksEnded,
    Stop,
    Synced,
    node_file,
    read_event,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from trainmark.rank.events import Facts

_COMPARED = ("cpu", "cpu_cores", "driver", "kernel", "os", "python", "container_image")


def get_event_name(event: Event) -> str:
    """Return the name of an event."""
    return str(type(event).__struct_config__.tag)


def index_by_name(events: Iterable[Event]) -> dict[str, Any]:
    """Return the last event of each name."""
    return {get_event_name(event): event for event in events}


@dataclass(slots=True)
class NodeTimeline:
    """What one node's process reported.

    Args:
        events: the last of each name; empty where it left none.
        ranks: numbers of its ranks.
        shift_ns: what is added to its clock to have that of the first node.
    """

    number: int
    events: dict[str, Any]
    ranks: range
    shift_ns: int = 0

    @property
    def finished(self) -> bool:
        """Tell whether it reported its end."""
        return "finished" in self.events

    def at(self, name: str) -> Any:
        """Return the event called ``name`` on the clock of the first node; None without."""
        found = self.events.get(name)
        return None if found is None else replace(found, t_ns=found.t_ns + self.shift_ns)


@dataclass(slots=True)
class LaunchAccount:
    """The launch as of one machine: events of its processes that can end it."""

    launch: Launch
    stop: Stop | None = None
    ranks_ended: RanksEnded | None = None
    oom_kills: int = 0
    job: Job | None = None


def read_nodes(run_dir: Path, nodes: int, nproc: int) -> list[NodeTimeline]:
    """Read the files of ``nodes`` node processes; a missing one is a node that never answered."""
    found = []
    for number in range(nodes):
        own = range(number * nproc, (number + 1) * nproc)
        path = run_dir / node_file(number)
        events = index_by_name(EventFile(path, read_event)) if path.exists() else {}
        found.append(NodeTimeline(number, events, own))
    return found


def align_clocks(nodes: Sequence[NodeTimeline], synced: Sequence[Synced | None]) -> None:
    """Set each node's shift.

    Ranks leave a barrier within less than a millisecond of each other. Where a node has no rank
    that reached it, wall clocks must do.

    Args:
        synced: each rank's event after the first barrier; None for one that did not reach it.
    """
    first = _moment(nodes[0], synced) if nodes else None
    for node in nodes:
        here = _moment(node, synced)
        if first is not None and here is not None:
            shared = isinstance(first, Synced) and isinstance(here, Synced)
            passed_ns = 0 if shared else here.unix_ns - first.unix_ns
            node.shift_ns = first.t_ns - here.t_ns + passed_ns


def _moment(node: NodeTimeline, synced: Sequence[Synced | None]) -> Synced | Launch | None:
    """Return an event that has a time on the node's clock and one on its wall clock."""
    of_ranks = next((event for rank in node.ranks if (event := synced[rank])), None)
    return of_ranks or node.events.get("launch")


def make_account(
    launcher: dict[str, Any], nodes: Sequence[NodeTimeline], run_dir: Path
) -> LaunchAccount:
    """Return the launch as of one machine, on the clock of the first node.

    Args:
        launcher: the last event of each name of the process that submitted the run.
    """
    counted = [node.events for node in nodes] if nodes else [launcher]
    kills = sum(events["oom_kills"].count for events in counted if "oom_kills" in events)
    stop, launch = launcher.get("stop"), launcher["launch"]
    if not nodes:
        return LaunchAccount(launch, stop, launcher.get("ranks_ended"), kills)
    path = run_dir / JOB_EVENTS_FILE
    job = index_by_name(EventFile(path, read_event)).get("job") if path.exists() else None
    ended = _ended(nodes)
    # Nodes begin within seconds of each other; the launcher's own clock is another machine's.
    first: Launch | None = next((one for node in nodes if (one := node.at("launch"))), None)
    if first is not None:
        launch = replace(first, argv=launch.argv)
        if stop is not None:
            seen = [one.t_ns for node in nodes if (one := node.at("finished"))]
            stop = replace(stop, t_ns=max(seen, default=first.t_ns))
    stops = [replace(one, node=node.number) for node in nodes if (one := node.at("stop"))]
    if ended is not None and ended.failures:
        # The engine ends the other nodes of a job in which one failed.
        stops = [one for one in stops if one.reason != "signal"]
    if stops and stop is None:
        stop = _first_stop(stops)
    return LaunchAccount(launch, stop, ended, kills, job)


def _ended(nodes: Sequence[NodeTimeline]) -> RanksEnded | None:
    """Return how the ranks of all nodes ended, on the clocks of the first node."""
    ends = [(node, one) for node in nodes if (one := node.at("ranks_ended"))]
    if not ends:
        return None
    shares = [one.others_cpu_share for _, one in ends if one.others_cpu_share is not None]
    return RanksEnded(
        t_ns=max(one.t_ns for _, one in ends),
        failures=[
            replace(failure, t_ns=failure.t_ns + node.shift_ns)
            for node, one in ends
            for failure in one.failures
        ],
        others_cpu_share=max(shares, default=None),
    )


def _first_stop(stops: list[Stop]) -> Stop:
    """Return the first stop, with the stacks that all nodes saved.

    A node that met its time limit comes before those that were then told to end.
    """
    first = min(stops, key=lambda one: (one.reason != "timeout", one.t_ns))
    return replace(
        first,
        stacks=[file for one in stops for file in one.stacks],
        hang=[group for one in stops for group in one.hang],
    )


def list_node_differences(
    nodes: Sequence[NodeTimeline], told: Sequence[Facts | None]
) -> list[dict[str, str]]:
    """Return the facts in which each node differs from the first, by number.

    Args:
        told: by each rank of its device.
    """
    found: list[dict[str, str]] = []
    for node in nodes:
        launch, first = node.events.get("launch"), told[node.ranks[0]]
        machine = {} if launch is None else launch.environment
        facts = {name: machine.get(name) for name in _COMPARED} | machine.get("packages", {})
        facts["device"] = first and first.device.get("name")
        found.append({name: str(x) for name, x in facts.items() if x is not None})
    return [{k: x for k, x in own.items() if x != found[0].get(k, x)} for own in found]
