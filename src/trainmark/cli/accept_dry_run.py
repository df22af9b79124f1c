"""What ``trainmark accept --dry-run`` prints: phases, times, rounds, the command of the engine."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING

from trainmark.acceptance.session import OpenedSession
from trainmark.acceptance.teams import MODULE as RANK_MODULE
from trainmark.cli.output import print_json, print_lines, print_text
from trainmark.launch.launchers import EngineCommand, load_launcher
from trainmark.launch.python_commands import build_module_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.acceptance.node_session import Acceptance
    from trainmark.acceptance.timetable import Timetable

_MAX_SHOWN_ROUNDS = 3  # of a phase
_MAX_SHOWN_TEAMS = 4  # of a round
_MAX_SHOWN_MEMBERS = 4  # of a team


def print_accept_dry_run(acceptance: Acceptance | OpenedSession, *, as_json: bool) -> None:
    """Print the phases, times and rounds of an acceptance test, and the command that starts it.

    A phase measures all devices or nodes in one way, for example alone or in pairs; a round is what
    it measures at the same time.

    Args:
        acceptance: of this machine's devices, or of a launcher's nodes (``OpenedSession``).
        as_json: print all rounds, as JSON.
    """
    timetable = acceptance.make_timetable()
    command = _build_engine_command(acceptance)
    if as_json:
        document = {
            "folder": str(acceptance.folder),
            "phases": [
                {
                    "phase": phase,
                    "rounds": rounds_in_phase,
                    "expected_s": rounds_in_phase * timetable.round_s,
                }
                for phase, rounds_in_phase in timetable.num_rounds.items()
            ],
            "limit_s": timetable.limit_s,
            "remarks": timetable.remarks,
            "schedule": [asdict(scheduled) for scheduled in timetable.schedule],
            "command": list(command.argv),
            "files": dict(command.files),
        }
        print_json(document, indent=2)
        return
    print_lines(timetable.describe())
    _print_schedule(timetable)
    for name, text in command.files.items():  # files that the command reads, such as job scripts
        print_lines(["", f"{name}:", *text.splitlines()])
    print_lines(["", shlex.join(command.argv)])
    print_text("nothing was started; --json prints all rounds", err=True)


def _build_engine_command(acceptance: Acceptance | OpenedSession) -> EngineCommand:
    """Return the command that starts the measurement.

    With a launcher, it is a command of the launcher's engine, for example ``sbatch``. It starts on
    each node an agent, the process that starts the node's ranks. On one machine, it is the command
    of a rank; ``TASK`` stands for what the rank is to measure, as JSON.

    Args:
        acceptance: of this machine's devices, or of a launcher's nodes (``OpenedSession``).
    """
    if isinstance(acceptance, OpenedSession):
        spec = acceptance.describe_job()
        return load_launcher(spec.launcher).build_command(spec, acceptance.cluster)
    # `python` in place of this interpreter's path, because the command is only printed.
    argv = build_module_command(RANK_MODULE, "TASK", python="python")
    return EngineCommand(argv=tuple(argv), files={})


def _print_schedule(timetable: Timetable) -> None:
    """Print the first rounds of each phase, with the names of their first teams.

    A team is the devices or nodes that train together in a round. An ellipsis stands for the teams
    of a round, and the members of a team, that are not shown.
    """
    for phase, num_rounds in timetable.num_rounds.items():
        rounds = [scheduled for scheduled in timetable.schedule if scheduled.phase == phase]
        for position, scheduled in enumerate(rounds[:_MAX_SHOWN_ROUNDS], start=1):
            team_texts = [
                " + ".join(_list_first(team, _MAX_SHOWN_MEMBERS)) for team in scheduled.teams
            ]
            shown_teams = ", ".join(_list_first(team_texts, _MAX_SHOWN_TEAMS))
            print_text(f"{phase}, round {position} of {num_rounds}: {shown_teams}")


def _list_first(names: Sequence[str], limit: int) -> list[str]:
    """Return the first ``limit`` names; if there are more, an ellipsis follows."""
    shown_names = list(names[:limit])
    if len(names) > limit:
        shown_names.append("…")
    return shown_names
