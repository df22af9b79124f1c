"""Read the events of the nodes of a run on several machines, and align their clocks.

Owns how the events of the node processes become one view of the launch, with all times on the
clock of the first node: the monotonic clocks of nodes count from different moments, and their wall
clocks may differ by seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trainmark.events.schema import (
    JOB_EVENTS_FILE,
    ClockSync,
    Event,
    EventFile,
    JobEvent,
    Launch,
    Printed,
    RanksEnded,
    Stop,
    name_node_file,
    read_event,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from trainmark.events.schema import Facts

_COMPARED_FACTS = ("cpu", "cpu_cores", "driver", "kernel", "os", "python", "container_image")


def get_event_name(event: Event) -> str:
    """Return the name of an event, as its line in the file has it."""
    return str(type(event).__struct_config__.tag)


def index_by_name(events: Iterable[Event]) -> dict[str, Any]:
    """Return the last event of each name."""
    return {get_event_name(event): event for event in events}


@dataclass(slots=True)
class NodeTimeline:
    """What one node's process reported.

    Args:
        number: of the node, from 0.
        events: the events of its file by name; of several with one name, the last. Empty: it
            wrote none.
        ranks: numbers of its ranks.
        shift_ns: nanoseconds to add to a time on this node's clock, to have it on the clock of the
            first node.
    """

    number: int
    events: dict[str, Any]
    ranks: range
    shift_ns: int = 0

    @property
    def finished(self) -> bool:
        """Tell whether the node's process reported its end."""
        return "finished" in self.events

    def get_event(self, name: str) -> Any:
        """Return the event with this name, its ``t_ns`` on the first node's clock; None: no event.

        Other times in the event, such as those of failures, stay on the node's own clock.
        """
        event = self.events.get(name)
        return None if event is None else replace(event, t_ns=event.t_ns + self.shift_ns)


@dataclass(slots=True)
class LaunchEvents:
    """How a launch began and ended, as if it were on one machine.

    Args:
        stop: why ranks were stopped from outside; None: they were not.
        ranks_ended: how the ranks ended; None: the process that started them did not report it.
        oom_kills: number of processes that the kernel killed because memory ran out.
        job: last state of the job of a cluster's engine; None: there is no engine.
        printed: what a user's own program printed of its speed; None: the ranks ran a case.
    """

    launch: Launch
    stop: Stop | None = None
    ranks_ended: RanksEnded | None = None
    oom_kills: int = 0
    job: JobEvent | None = None
    printed: Printed | None = None


def read_nodes(run_dir: Path, nodes: int, nproc: int) -> list[NodeTimeline]:
    """Read the event file of each node's process, which starts the ranks of the node.

    A node without a file never answered; its timeline has no events.

    Args:
        nodes: number of nodes.
        nproc: number of ranks of each node.
    """
    timelines = []
    for number in range(nodes):
        ranks = range(number * nproc, (number + 1) * nproc)
        path = run_dir / name_node_file(number)
        events = index_by_name(EventFile(path, read_event)) if path.exists() else {}
        timelines.append(NodeTimeline(number, events, ranks))
    return timelines


def align_clocks(nodes: Sequence[NodeTimeline], clock_syncs: Sequence[ClockSync | None]) -> None:
    """Set ``shift_ns`` of each node: what is added to its clock to have that of the first node.

    An event's ``t_ns`` is the monotonic clock of its machine, and its ``unix_ns`` the wall clock of
    the machine at that moment. Ranks leave a barrier within less than a millisecond of each other.
    For a node without a rank that reached the barrier, wall clocks are used.

    Args:
        nodes: in order of their numbers; empty: the run has one machine, and one clock.
        clock_syncs: by number of the rank, its event after the first barrier; None: it did not
            reach the barrier.
    """
    if not nodes:
        return
    first_reference = _find_reference(nodes[0], clock_syncs)
    for node in nodes:
        reference = _find_reference(node, clock_syncs)
        if first_reference is None or reference is None:
            continue  # nothing to compare: the node's times stay on its own clock
        # How much later the event of this node was than that of the first node.
        if isinstance(first_reference, ClockSync) and isinstance(reference, ClockSync):
            elapsed_ns = 0  # both left the barrier at the same moment
        else:
            elapsed_ns = reference.unix_ns - first_reference.unix_ns
        node.shift_ns = first_reference.t_ns + elapsed_ns - reference.t_ns


def _find_reference(
    node: NodeTimeline, clock_syncs: Sequence[ClockSync | None]
) -> ClockSync | Launch | None:
    """Return an event with a time on the node's clock and on its wall clock; None: no event.

    Args:
        clock_syncs: by number of the rank, its event after the first barrier; None: it did not
            reach the barrier.
    """
    # The first barrier of a rank is preferred to the launch: all ranks leave it within a
    # millisecond, so any rank will do, while launches can only be compared by wall clocks.
    for rank in node.ranks:
        event = clock_syncs[rank]
        if event is not None:
            return event
    launch: Launch | None = node.events.get("launch")
    return launch


def merge_launch_events(
    launcher: dict[str, Any],
    nodes: Sequence[NodeTimeline],
    run_dir: Path,
    *,
    first_start_ns: int | None,
) -> LaunchEvents:
    """Return the launch as if it were on one machine, on the clock of the first node.

    Args:
        launcher: events of the process that submitted the run: the last one of each name. With
            nodes, their times are on the clock of another machine.
        nodes: the nodes with a node process, their ``shift_ns`` set by ``align_clocks``; empty: the
            process that submitted the run started the ranks itself, on one machine.
        first_start_ns: start of the first rank, on the first node's clock; None: no rank started.
    """
    # The processes that started ranks: those of the nodes, or the launcher on a single machine.
    parents = [node.events for node in nodes] if nodes else [launcher]
    oom_kills = sum(events["oom_kills"].count for events in parents if "oom_kills" in events)
    launch: Launch = launcher["launch"]
    stop: Stop | None = launcher.get("stop")  # why the ranks were ended early, or never started
    printed = launcher.get("printed")  # speeds that a user's own program printed
    if not nodes:
        return LaunchEvents(
            launch=launch,
            stop=stop,
            ranks_ended=launcher.get("ranks_ended"),
            oom_kills=oom_kills,
            printed=printed,
        )
    path = run_dir / JOB_EVENTS_FILE
    # The last state of the job of a cluster's engine, such as Slurm. Without an engine there is no
    # file.
    job = index_by_name(EventFile(path, read_event)).get("job") if path.exists() else None
    ranks_ended = _merge_rank_ends(nodes)
    # The launch of the first node; without one, the launcher's, moved to the first start of a rank.
    launch = _move_launch(launch, nodes, first_start_ns)
    if stop is not None:
        # The launcher's time is on the clock of another machine: the last end of a node stands for
        # it. If no node reported its end, the stop is moved to the launch, because ``read_run``
        # lets a rank that did not report its end last until the stop. A stop at the launch is
        # before all events, so it prolongs no rank.
        ends_ns = [event.t_ns for _, event in _list_events(nodes, "finished")]
        stop = replace(stop, t_ns=max(ends_ns, default=launch.t_ns))
    else:
        stop = _find_stop_of_nodes(nodes, ranks_ended)
    return LaunchEvents(
        launch=launch,
        stop=stop,
        ranks_ended=ranks_ended,
        oom_kills=oom_kills,
        job=job,
        printed=printed,
    )


def _move_launch(
    launch: Launch, nodes: Sequence[NodeTimeline], first_start_ns: int | None
) -> Launch:
    """Return the launch with its time on the clock of the first node.

    The launcher's own time is on the clock of another machine. The earliest launch event of a node
    stands for the launcher's, because nodes may begin one after the other.

    Args:
        launch: the launcher's event.
        nodes: their events; ``_list_events`` returns them on the clock of the first node.
        first_start_ns: start of the first rank, on the first node's clock; None: no rank started.
    """
    launches: list[Launch] = [event for _, event in _list_events(nodes, "launch")]
    if launches:
        first = launches[0]  # of the node with the lowest number, whose environment is shown
        start_ns = min(event.t_ns for event in launches)
        # Keep the command that the user typed: a node's event has the command by which the node's
        # process was started.
        return replace(
            first,
            t_ns=start_ns,
            # The wall clock at ``start_ns``: this event may be later than the earliest one.
            unix_ns=first.unix_ns - (first.t_ns - start_ns),
            argv=launch.argv,
        )
    if first_start_ns is not None:
        return replace(launch, t_ns=first_start_ns)
    return launch  # nothing is known on the first node's clock


def _find_stop_of_nodes(
    nodes: Sequence[NodeTimeline], ranks_ended: RanksEnded | None
) -> Stop | None:
    """Return why nodes stopped their ranks, with the time on the clock of the first node.

    None: no node stopped its ranks, or only because a rank of another node failed.

    Args:
        ranks_ended: how the ranks of all nodes ended; None: no node reported it.
    """
    stops = [replace(event, node=node.number) for node, event in _list_events(nodes, "stop")]
    if ranks_ended is not None and ranks_ended.failures:
        # The engine of the cluster ends the other nodes of a job in which one failed: their
        # signals are not the cause.
        stops = [stop for stop in stops if stop.reason != "signal"]
    if not stops:
        return None
    return _find_first_stop(stops)


def _list_events(nodes: Sequence[NodeTimeline], name: str) -> list[tuple[NodeTimeline, Any]]:
    """Return the nodes that have an event with this name, each with the event.

    Its ``t_ns`` is on the clock of the first node.
    """
    pairs = [(node, node.get_event(name)) for node in nodes]
    return [(node, event) for node, event in pairs if event is not None]


def _merge_rank_ends(nodes: Sequence[NodeTimeline]) -> RanksEnded | None:
    """Return how the ranks of all nodes ended, on the clock of the first node; None: unknown."""
    ends = _list_events(nodes, "ranks_ended")
    if not ends:
        return None
    # Of each node that measured it: the share of its cores that processes of others used.
    shares = [event.others_cpu_share for _, event in ends if event.others_cpu_share is not None]
    return RanksEnded(
        t_ns=max(event.t_ns for _, event in ends),
        failures=[  # ``_list_events`` has not moved their times to the first node's clock
            replace(failure, t_ns=failure.t_ns + node.shift_ns)
            for node, event in ends
            for failure in event.failures
        ],
        others_cpu_share=max(shares, default=None),  # of the node where others used most
    )


def _find_first_stop(stops: list[Stop]) -> Stop:
    """Return the first stop, with the stacks and the groups of hanging ranks of all nodes.

    A node that reached its time limit comes before those that were stopped because of it, even if
    its event is later: it is written once the stacks are saved and the ranks have ended.

    Args:
        stops: at least one, each of another node; all times are on the clock of the first node.
    """
    timeouts = [stop for stop in stops if stop.reason == "timeout"]
    candidates = timeouts if timeouts else stops
    first_stop = min(candidates, key=lambda stop: stop.t_ns)
    return replace(
        first_stop,
        stacks=[file for stop in stops for file in stop.stacks],
        # Each group is of the ranks that hung at one place in the code.
        hang=[group for stop in stops for group in stop.hang],
    )


def list_node_differences(
    nodes: Sequence[NodeTimeline], facts_of_ranks: Sequence[Facts | None]
) -> list[dict[str, str]]:
    """Return for each node the facts in which it differs from the first node: its own, by name.

    Args:
        nodes: at least one.
        facts_of_ranks: by number of the rank, the facts that it reported; None: it reported none.
    """
    facts_of_nodes = [_describe_node(node, facts_of_ranks[node.ranks[0]]) for node in nodes]
    first_facts = facts_of_nodes[0]
    # A fact that the first node does not have is not compared.
    return [
        {
            name: value
            for name, value in facts.items()
            if name in first_facts and value != first_facts[name]
        }
        for facts in facts_of_nodes
    ]


def _describe_node(node: NodeTimeline, rank_facts: Facts | None) -> dict[str, str]:
    """Return the facts of a node that are compared, as text by name.

    They are its processor, system, driver, versions of packages and device; a fact that the node
    did not report is left out.

    Args:
        rank_facts: what the node's first rank reported; None: it reported none.
    """
    launch = node.events.get("launch")
    environment = {} if launch is None else launch.environment
    facts = {name: environment.get(name) for name in _COMPARED_FACTS}
    facts |= environment.get("packages", {})
    facts["device"] = None if rank_facts is None else rank_facts.device.get("name")
    return {name: str(value) for name, value in facts.items() if value is not None}
