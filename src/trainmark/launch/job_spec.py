"""``JobSpec``: what launchers know of the job that they start.

A run and an acceptance test each build one, in ``submission`` and in ``acceptance.session``. So a
launcher does not see which of the two it starts, and reads no plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmark.plan.plan import Plan

NODE_MODULE = "trainmark.launch.node"  # the ``node_module`` of a run
_GRACE_S = 300.0  # between the end of the time limit, which nodes enforce, and the engine's limit


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job to start: the same Python module on each of several nodes.

    Args:
        run_id: id of the plan, after which the job is named: the id of the run, or for a session of
            an acceptance test an id of the same form, made for that session.
        launcher: name of the launcher that starts the job.
        run_dir: folder of the job, which has the plan: the run directory, or the folder of a
            session of an acceptance test.
        nnodes: number of nodes.
        nproc: ranks of each node.
        vendor: name of the vendor of the nodes' devices.
        data_folder: folder of the data; None: the ranks run a user's own program, whose data is
            not known.
        generates_data: whether a node that lacks the data generates it; False for a user's own
            program.
        program_folder: folder of the user's own program; None: the ranks train a case.
        plan_json: the plan itself, in one line. Only ssh with ``run_root`` sends it, to hosts that
            do not see ``run_dir``; the nodes of all other jobs read the plan in ``run_dir``.
        node_module: Python module that is started on every node.
        ends_with_a_node: whether all nodes are ended if one fails.
        timeout_s: time limit of the whole job in seconds.
    """

    run_id: str
    launcher: str
    run_dir: Path
    nnodes: int
    nproc: int
    vendor: str
    data_folder: Path | None
    generates_data: bool
    program_folder: Path | None
    plan_json: str
    node_module: str
    ends_with_a_node: bool
    timeout_s: float

    @classmethod
    def from_plan(
        cls, plan: Plan, *, node_module: str, ends_with_a_node: bool, timeout_s: float
    ) -> JobSpec:
        """Return the job whose nodes read ``plan``; the other arguments are those of the class.

        The time limit is not taken from the plan: the limit in its recipe is that of one training,
        and an acceptance test trains many times.
        """
        data_folder = None
        generates_data = False
        program_folder = None
        if plan.witness is None:  # the ranks train a case
            data_folder = Path(plan.data.folder)
            generates_data = plan.data.origin == "generated"
        else:
            program_folder = Path(plan.witness.folder)
        return cls(
            run_id=plan.run_id,
            launcher=plan.launcher,
            run_dir=Path(plan.run_dir),
            nnodes=plan.nnodes,
            nproc=plan.nproc,
            vendor=plan.device.vendor,
            data_folder=data_folder,
            generates_data=generates_data,
            program_folder=program_folder,
            plan_json=plan.model_dump_json(),
            node_module=node_module,
            ends_with_a_node=ends_with_a_node,
            timeout_s=timeout_s,
        )

    @property
    def engine_limit_s(self) -> float:
        """The engine's time limit of the job in seconds; the nodes should end it earlier."""
        return self.timeout_s + _GRACE_S
