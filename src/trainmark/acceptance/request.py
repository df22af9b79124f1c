"""The options of an acceptance, for the command line and Python.

Those that a run has too, with the same meaning, are declared in ``TrainingRequest``.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads it at run time
from typing import Annotated

from pydantic import Field

from trainmark.acceptance import DEFAULT_WORSE_BY
from trainmark.errors import UsageError, suggest_nearest
from trainmark.plan.request import PositiveCount, RunRequest, TrainingRequest

PHASES = ("devices", "nodes", "pairs", "groups")
DEFAULT_CASE = "distilbert_sst2"
MAX_REPEATS = 1_000


class AcceptRequest(TrainingRequest):
    """One acceptance as requested."""

    case: str = Field(DEFAULT_CASE, min_length=1, description="Case to train.")
    nproc: PositiveCount | None = Field(None, description="Devices per node; default: all.")
    nnodes: PositiveCount | None = Field(None, description="Number of nodes; requires --launcher.")
    launcher: str | None = Field(
        None,
        description=(
            "Launcher; see `list launchers`. Default: none; only the devices of this machine "
            "are measured."
        ),
    )
    phases: str | None = Field(None, description=f"Phases to run; default: {','.join(PHASES)}.")
    repeats: Annotated[int, Field(ge=1, le=MAX_REPEATS)] = Field(
        5, description="Number of times that each device or node is measured alone."
    )
    rounds: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None,
        description="Number of rounds of the pairs phase; default: enough for every "
        "pair to train once (above 64 nodes: 36).",
    )
    seconds: float = Field(
        10.0, gt=0, le=3_600, description="Seconds of timed training in each round."
    )
    join: float = Field(
        300.0, gt=0, le=86_400, description="Time limit for all nodes to start, in seconds."
    )
    deadline: float = Field(
        600.0, gt=0, le=86_400, description="Time limit for each round, in seconds."
    )
    worse_by: float = Field(
        DEFAULT_WORSE_BY,
        gt=0,
        le=10,
        description="Allowed increase in step time, as a fraction; 0.03 allows 3%.",
    )
    rates_worse_by: float = Field(
        0.1,
        gt=0,
        le=10,
        description=(
            "Allowed increase in the time of matmuls, copies and collectives, as a fraction; "
            "0.1 allows 10%."
        ),
    )
    baseline: str | None = Field(
        None, description="Run, bundle or acceptance test to compare with; default: the peers."
    )
    out: Path | None = Field(
        None, description="Output folder of the acceptance test; default: ./acceptances/…"
    )

    @property
    def chosen_phases(self) -> list[str]:
        """Return the phases to run, in their order.

        Raises:
            UsageError: an unknown phase, or none.
        """
        if self.phases is None:
            return [*PHASES]
        chosen = [name.strip() for name in self.phases.split(",") if name.strip()]
        if not chosen:
            rule = f"at least one of these phases is required: {', '.join(PHASES)}"
            raise UsageError(
                "no phase is given",
                where="--phases",
                rule=rule,
                fix="omit the option to run all phases",
            )
        for name in chosen:
            if name not in PHASES:
                raise UsageError(
                    f"unknown phase {name!r}", where="--phases", fix=suggest_nearest(name, PHASES)
                )
        if "groups" in chosen and not {"nodes", "pairs"} <= set(chosen):
            raise UsageError(
                "the groups phase needs the nodes and pairs phases",
                where="--phases",
                rule="the time of a group is predicted from the times of its nodes and pairs",
                fix="add nodes and pairs to --phases; measurements in the output folder are reused",
            )
        return [name for name in PHASES if name in chosen]

    def make_run_request(self, *, nnodes: int, nproc: int, recipe: str | None) -> RunRequest:
        """Return the request of the training of teams of ``nnodes`` times ``nproc`` devices.

        Args:
            nnodes: number of nodes of a team.
            nproc: devices of each node, one rank for each.
            recipe: name of the recipe that was chosen for teams of another size, so that all teams
                train by the same one; None: the recipe of this request.
        """
        return RunRequest.build(
            case=self.case,
            overrides=self.overrides or None,  # None: not given
            recipe=recipe or self.recipe,
            data=self.data,
            device=self.device,
            nnodes=nnodes,
            nproc=nproc,
        )
