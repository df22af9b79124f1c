"""A launcher whose nodes are processes of this machine, in place of an engine."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from typing import Any

from trainmark.launch.launchers import EngineCommand, EngineJob, JobState, Launcher
from trainmark.launch.node_script import render_node_script


@dataclass
class Here(Launcher):
    """Stands for an engine such as Slurm: it runs the script of each node in a shell, here.

    Args:
        scripts: lines of a shell that come before the script of a node, by its number.
        nodes: the processes of the nodes, once they have started.
    """

    scripts: dict[int, str] = field(default_factory=dict)
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def check(self, spec: Any, site: Any) -> None:
        """Check nothing."""

    def build_command(self, spec: Any, site: Any) -> EngineCommand:
        # A script for each node, with the lines that a test puts before it. Nodes are on this
        # machine, so that 127.0.0.1 is the address at which they meet.
        files = {
            f"node{number}.sh": self.scripts.get(number, "")
            + render_node_script(spec, site, node_rank=str(number), master="127.0.0.1")
            for number in range(spec.nnodes)
        }
        # The command does nothing: the first call of ``read_state`` runs the scripts.
        return EngineCommand(argv=("true",), files=files, submits=True)

    def read_state(self, job: EngineJob) -> JobState:
        """Return the state of the job; start its nodes when it is called for the first time."""
        if not self.nodes:
            self._start(job)
        codes = [process.poll() for process in self.nodes]
        if any(codes):
            self.cancel(job)  # as engines end the other nodes of a job
        if None in codes:
            return JobState(phase="running", description="RUNNING")
        code = max(map(abs, codes))  # a signal's code is negative
        return JobState(phase="ended", description="FAILED" if code else "COMPLETED")

    def cancel(self, job: EngineJob) -> None:
        for process in self.nodes:
            process.terminate()

    def _start(self, job: EngineJob) -> None:
        """Start the script of each node; its output goes into a file beside it."""
        for name in (f"node{number}.sh" for number in range(job.spec.nnodes)):
            with (job.folder / f"{name}.out").open("wb") as out:
                self.nodes.append(
                    subprocess.Popen(["sh", name], cwd=job.folder, stdout=out, stderr=out)
                )
