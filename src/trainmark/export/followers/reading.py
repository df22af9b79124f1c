"""Read the files of a run while they are written, and return their content as points.

The points of a run are those of its ranks and those of its machines. Owns the names of the series
``final/``, which have the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.export.followers.machine_reading import MachineReader
from trainmark.export.followers.points import (
    NS_PER_S,
    FollowedRun,
    Point,
    RunResult,
    describe_settings,
)
from trainmark.export.followers.rank_reading import RankReader
from trainmark.record.figures import list_specs, name_column
from trainmark.record.record import RECORD_FILE, read_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainmark.plan.plan import Plan


class RunReader:
    """Reads the points of one run from its events; each call returns what was added since.

    Attributes:
        _ranks: reads the events of the ranks.
        _launcher: reads those of the machine from which the run was launched.
        _nodes: read those of each machine if a cluster's scheduler started the run; else empty.
    """

    def __init__(self, plan: Plan, run_dir: Path) -> None:
        self._plan = plan
        self._run_dir = run_dir
        # Ranks write events, and so do other processes on the launcher's machine and on each node.
        # The prefix begins the names of a machine's series. `node_processes` is 0 if the launcher
        # itself starts the ranks: then there are no nodes.
        self._ranks = RankReader(plan, run_dir)
        self._launcher = MachineReader(run_dir, node=None, prefix="sys/")
        self._nodes = [
            MachineReader(run_dir, node=node, prefix=f"sys/node{node}/")
            for node in range(plan.node_processes)
        ]

    @property
    def _rank_shift_ns(self) -> int | None:
        """What is added to the times of ranks' events to have the time since 1970.

        Points of steps have the time of rank 0, which is on the first node, or on the launcher's
        machine if there are no nodes. None: the launch event of this machine was not read yet.
        """
        first_machine = self._nodes[0] if self._nodes else self._launcher
        return first_machine.shift_ns

    def iterate_new(self) -> Iterator[list[Point]]:
        """Yield what was written since the last call, in parts of bounded size.

        The ranks' events wait until their time since 1970 can be computed.
        """
        while True:
            points: list[Point] = []
            num_events = 0
            for machine in (self._launcher, *self._nodes):
                new = machine.read_new()
                points += new.points
                num_events += new.num_events
            shift_ns = self._rank_shift_ns
            if shift_ns is not None:
                new = self._ranks.read_new(shift_ns)
                points += new.points
                num_events += new.num_events
            if points:
                yield points
            if num_events == 0:
                return

    @property
    def is_started(self) -> bool:
        """Tell whether the launcher's first event was read."""
        return self._launcher.launch is not None

    @property
    def waits_for_nodes(self) -> bool:
        """Tell whether a node has not reported its end; False if the launcher starts all ranks."""
        return any(not node.is_finished for node in self._nodes)

    @property
    def num_steps(self) -> int:
        """Return the number of the last step whose point this reader has returned."""
        return self._ranks.num_steps

    def take_rest(self) -> list[Point]:
        """Return the points of the last steps, which some ranks did not reach."""
        # What is added to the times of steps, which are on a machine's monotonic clock, to have the
        # time since 1970. None: it is not known, and until then no event of a rank is read.
        shift_ns = self._rank_shift_ns
        return [] if shift_ns is None else self._ranks.take_rest(shift_ns)

    def describe_run(self) -> FollowedRun:
        """Return the facts of a run that has started."""
        assert self._launcher.launch is not None, "only a run that has started is described"
        return FollowedRun(
            run_id=self._plan.run_id,
            case=self._plan.case,
            folder=self._run_dir,
            settings=describe_settings(self._plan),
            started_unix_ns=self._launcher.launch.unix_ns,
        )

    def read_result(self) -> RunResult | None:
        """Return how the run ended; None if it has no record.

        Raises:
            RecordError: the record cannot be read.
        """
        if not (self._run_dir / RECORD_FILE).exists():
            return None
        record = read_record(self._run_dir)
        # By name of a figure, its declaration, which may name its column in tables: the figures of
        # all cases, and those that the result page of this case adds.
        specs = list_specs(record.plan.about.page)
        figures = {
            f"final/{name_column(name, entry.unit, specs.get(name))}": entry.value
            for name, entry in record.figures.items()
            if entry.value is not None
        }
        assert self._launcher.launch is not None, "a run with a record has started"
        # The time of the result is the start of the launcher plus the end-to-end time.
        wall_s = record.figure("e2e_time") or 0.0
        return RunResult(
            status=record.status,
            trust=record.trust.grade,
            num_steps=self.num_steps,
            unix_ns=self._launcher.launch.unix_ns + round(wall_s * NS_PER_S),
            figures=figures,
        )
