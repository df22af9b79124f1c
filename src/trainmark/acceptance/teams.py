"""Start the ranks of teams on this machine, wait for their results, and end them by a deadline.

A team is the devices that train together in a round: one device, all devices of a node, two
devices, or the devices of several nodes of which this machine is one. Teams do not disturb each
other: one that hangs or fails ends with its round.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Literal

import msgspec

from trainmark.acceptance.tasks import RankFailure, RankResult, encode
from trainmark.errors import MeasurementError
from trainmark.launch.local import POLL_S, start_ranks
from trainmark.launch.python_commands import build_module_command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.acceptance.tasks import RankTask
    from trainmark.launch.local import Setup
    from trainmark.launch.supervisor import RankProcess

MODULE = "trainmark.acceptance.rank"
Reason = Literal["deadline", "failed", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """What trains together, as one of its machines sees it.

    Args:
        members: names of what is measured: devices or nodes.
        task: of this machine's ranks.
        node: number of this machine among those of the team, from 0.
        num_nodes: number of machines of the team.
        master: host and port of its first machine; None: this one has all of it.
    """

    members: tuple[str, ...]
    task: RankTask
    node: int = 0
    num_nodes: int = 1
    master: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamOutcome:
    """How a round ended for a team.

    Args:
        results: of this machine's ranks, in their order; empty if it failed.
        reason: why there are no results; None: there are.
        error: what a rank reported, or which rank did not end; empty: there are results.
    """

    team: Team
    results: list[RankResult] = field(default_factory=list)
    reason: Reason | None = None
    error: str = ""


@dataclass(slots=True)
class _RunningTeam:
    """A team whose ranks run.

    Args:
        output: file with the standard output of the ranks: their results.
        resources: closing it ends the ranks.
    """

    team: Team
    output: IO[bytes]
    processes: list[RankProcess]
    resources: ExitStack

    def poll_exit_codes(self) -> list[int | None]:
        """Return the exit code of each rank; None: it still runs."""
        return [process.poll() for process in self.processes]


def measure_teams(
    teams: Sequence[Team],
    setup: Setup,
    *,
    log: IO[bytes],
    deadline_s: float,
    is_stopped: Callable[[], bool],
) -> list[TeamOutcome]:
    """Let the teams of a round measure at the same time, and return how it ended for each.

    A team is devices that train together, with one rank for each.

    Args:
        setup: environment in which the ranks of this machine start.
        log: gets what ranks print to standard error.
        deadline_s: after so many seconds ranks that still run are ended.
        is_stopped: called several times a second; if it returns True, all teams end.
    """
    outcomes: dict[int, TeamOutcome] = {}  # by the index of the team in ``teams``
    with ExitStack() as stack:
        running: dict[int, _RunningTeam] = {}
        for index, team in enumerate(teams):
            try:
                running[index] = _start_team(team, setup, log, stack)
            except MeasurementError as error:
                outcomes[index] = TeamOutcome(team=team, reason="failed", error=str(error))
        ends_s = time.monotonic() + deadline_s
        while running:
            reason = _find_reason_to_end(ends_s, is_stopped)  # for all teams; None: go on
            for index, team_run in list(running.items()):
                codes = team_run.poll_exit_codes()
                have_all_ended = None not in codes
                has_failed = any(code not in (None, 0) for code in codes)
                # After one rank failed, the others would wait for it in a collective.
                if reason is not None or have_all_ended or has_failed:
                    del running[index]
                    team_run.resources.close()  # ends ranks that still run
                    outcomes[index] = _read_outcome(team_run, codes, reason)
            if running:
                time.sleep(POLL_S)
    return [outcomes[index] for index in range(len(teams))]


def _find_reason_to_end(ends_s: float, is_stopped: Callable[[], bool]) -> Reason | None:
    """Return why all teams must end now; None: they need not.

    Args:
        ends_s: the deadline on the monotonic clock.
    """
    if is_stopped():
        return "stopped"
    if time.monotonic() >= ends_s:
        return "deadline"
    return None


def _start_team(team: Team, setup: Setup, log: IO[bytes], stack: ExitStack) -> _RunningTeam:
    """Start the ranks of a team on this machine.

    They end when ``resources`` of the result closes, or ``stack``, which closes ``resources``, too.

    Args:
        setup: environment in which ranks of this machine start; the number of ranks is replaced.
        log: gets what the ranks print to standard error.
        stack: also closes the file with the output of the ranks, so that it stays open and can be
            read after they have ended.
    """
    resources = stack.enter_context(ExitStack())
    output = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - read after they end
    ranks = start_ranks(
        build_module_command(MODULE, encode(team.task)),
        setup._replace(nproc=len(team.task.devices)),
        output=output,
        errors=log,
        node=team.node,
        nnodes=team.num_nodes,
        master=team.master,
    )
    return _RunningTeam(team, output, resources.enter_context(ranks), resources)


def _read_outcome(
    team_run: _RunningTeam, codes: Sequence[int | None], reason: Reason | None
) -> TeamOutcome:
    """Return the outcome of a team that has ended, from the output of its ranks.

    Args:
        team_run: the team with the output of its ranks, one line of JSON for each.
        codes: exit code of each rank; None: it did not end by itself, and was killed.
        reason: why all teams were ended, which is also the reason of this outcome, even if all
            ranks failed by themselves just before. None: the ranks ended by themselves, or were
            killed because one of them failed.
    """
    team_run.output.seek(0)
    results: list[RankResult] = []
    errors: list[str] = []
    for line in team_run.output:
        try:
            results.append(msgspec.json.decode(line, type=RankResult))
        except msgspec.MsgspecError:
            errors.append(_read_error(line))
    if len(results) == len(codes):  # complete, even if a rank had to be ended after its result
        results.sort(key=lambda result: result.rank)
        return TeamOutcome(team=team_run.team, results=results)
    unended_ranks = [str(rank) for rank, code in enumerate(codes) if code is None]
    # All ranks may have failed just before the deadline. If one of them failed, the others, which
    # wait for it, are killed: they are not the reason.
    if reason is not None and unended_ranks:
        errors.append(f"ranks that did not end: {', '.join(unended_ranks)}")
    elif not errors:
        errors.append(f"exit codes of the ranks: {codes}")
    return TeamOutcome(team=team_run.team, reason=reason or "failed", error="; ".join(errors))


def _read_error(line: bytes) -> str:
    """Return the error in a line of a rank's output that is no result."""
    try:
        return msgspec.json.decode(line, type=RankFailure).error
    except msgspec.MsgspecError:
        # Ranks print nothing but results and failures there, so that the line was cut off.
        return "a rank was killed while it wrote its result"
