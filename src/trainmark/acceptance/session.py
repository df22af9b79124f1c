"""A session of several nodes: its plan, its folder, its rounds and how long they take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trainmark.acceptance.folder import REQUEST_FILE
from trainmark.acceptance.groups import MIN_NODES
from trainmark.acceptance.node_session import (
    announce_phases,
    announce_time,
    expected_round_s,
    minutes,
)
from trainmark.acceptance.request import AcceptRequest
from trainmark.acceptance.schedule import default_num_rounds
from trainmark.launch.cluster import Cluster
from trainmark.launch.submission import CLUSTER_FILE
from trainmark.plan.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.acceptance.evidence import Phase

SESSIONS_DIR = "sessions"


class AcceptancePlan(Plan):
    """The plan of a session: what launchers start, with an agent in place of a run's node."""

    node_module: ClassVar[str] = "trainmark.acceptance.agent"
    ends_with_a_node: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSession:
    """A session as its folder tells.

    Args:
        folder: of the acceptance.
        number: of the session, which is the name of its folder.
        is_submitted: whether its job was started by an earlier command.
        remark: what was asked for and is left out, and why.
    """

    folder: Path
    number: int
    request: AcceptRequest
    plan: AcceptancePlan
    cluster: Cluster
    is_submitted: bool = False
    remark: str = ""

    @property
    def session_dir(self) -> Path:
        """Return the folder of the session."""
        return self.folder / SESSIONS_DIR / str(self.number)

    def announcement(self) -> list[str]:
        """Return what will be measured, and about how long each phase takes, in words."""
        nodes, seconds = self.plan.nnodes, self.request.seconds
        counts = num_rounds(self.request, nodes)
        lines = [
            f"{nodes} nodes with {self.plan.nproc} devices each, folder {self.folder}",
            *announce_phases(counts, seconds),
        ]
        if counts.get("groups"):
            more = max_further_group_rounds(self.request, nodes)
            limit = minutes(more * expected_round_s(seconds))
            lines.append(f"groups: if the whole is slow, up to {more} rounds more, about {limit}")
        if self.remark:
            lines.append(self.remark)
        expected_s = sum(counts.values()) * expected_round_s(seconds)
        return [*lines, announce_time(expected_s, float(self.plan.recipe["timeout_s"]))]


def num_rounds(request: AcceptRequest, num_nodes: int) -> dict[Phase, int]:
    """Return the number of rounds of each chosen phase."""
    counts: dict[Phase, int] = {
        "devices": request.repeats,
        "nodes": request.repeats,
        "pairs": request.rounds or default_num_rounds(num_nodes),
        "groups": request.repeats if num_nodes >= MIN_NODES else 0,
    }
    chosen = request.chosen_phases
    return {phase: count for phase, count in counts.items() if phase in chosen}


def max_further_group_rounds(request: AcceptRequest, num_nodes: int) -> int:
    """Return about how many rounds the search for one group takes, if the whole is slow."""
    return request.repeats * (math.ceil(math.log2(num_nodes)) + 2)


def opened_session(session_dir: Path) -> OpenedSession:
    """Return a session whose folder is ready."""
    folder = session_dir.parent.parent
    plan = AcceptancePlan.model_validate_json((session_dir / "plan.json").read_bytes())
    return OpenedSession(
        folder=folder,
        number=int(session_dir.name),
        plan=plan,
        request=AcceptRequest.model_validate_json((folder / REQUEST_FILE).read_bytes()),
        cluster=Cluster.model_validate_json((session_dir / CLUSTER_FILE).read_bytes()),
    )
