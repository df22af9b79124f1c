"""One node of a run on several: its facts, its sampler, torchrun for its ranks, how they ended.

Started on every node by a launcher's command as ``python -m trainmark.launch.node RUN_DIR …``.
Writes its own event file and makes no record: that is for the process that submitted the run. Ends
its ranks on SIGTERM, and with ``--heartbeat`` also when nobody writes to its standard input.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import cases, devices
from trainmark.data.generated import default_root
from trainmark.devices import numa
from trainmark.errors import DataError, EnvironmentFault, TrainmarkError, escaped
from trainmark.launch import processes
from trainmark.launch.local import POLL_S, run_environment, timed_out
from trainmark.launch.node.files import send
from trainmark.launch.sampling import sampled
from trainmark.launch.stopping import StopRequest, stop_signals_noted
from trainmark.plan.plan import Plan
from trainmark.rank.events import EventWriter, node_file
from trainmark.rank.worker import DATA_VARIABLE, NODE_VARIABLE
from trainmark.record import environment
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.devices.numa import Placement
    from trainmark.protocols import Vendor

# Ranks of other nodes fail when ours are ended, and must have saved their stacks by then. Nodes
# start within a second or two of each other.
_LET_SAVE_S = 5.0
_EXAMINE_S = 40.0
_TOLD = ("stops", "spoils")
_SILENCE_S = 60.0  # of standard input, after which the launcher counts as lost


def node_log(node: int) -> str:
    """Return the name of the file that takes what torchrun and early ranks print."""
    return f"log.node{node}.txt"


@dataclass
class Heartbeat:
    """Whether the launcher still writes to our standard input.

    Args:
        clock: seconds that only rise.
    """

    clock: Callable[[], float] = time.monotonic
    _last_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._last_s = self.clock()

    def lost(self) -> bool:
        """Read what came since; tell whether the input ended or was silent for too long."""
        while select.select([sys.stdin], [], [], 0)[0]:
            if not os.read(sys.stdin.fileno(), 4096):
                return True
            self._last_s = self.clock()
        return self.clock() - self._last_s > _SILENCE_S


@dataclass(frozen=True, kw_only=True)
class Node:
    """This machine's part of a run.

    Args:
        master: host and port of the first node, where ranks meet.
        data: folder of the data on this node; None: where the plan says.
    """

    run_dir: Path
    plan: Plan
    number: int
    master: tuple[str, int]
    data: Path | None
    events: EventWriter

    @property
    def _mark(self) -> str:
        return processes.mark(self.plan.run_id, self.number)

    def run(self, lost: Callable[[], str | None]) -> bool:
        """Run the ranks of this node to their end; return whether all succeeded.

        Args:
            lost: returns the name of a signal, or why the launcher is gone, as a reason to stop.

        Raises:
            TrainmarkError: this node cannot run its part; nothing was started.
        """
        plan = self.plan
        vendor = devices.choose(plan.device.vendor)
        self._refuse_too_few(vendor)
        self._examine()
        data = self._data_folder()
        placed = numa.placements(vendor, plan.nproc, os.environ)
        variables = self._variables(placed, data)
        described = environment.collect(variables, vendor)
        found = devices.occupants(vendor.name, plan.nproc)
        described["device_users"] = [one._asdict() for one in found]
        self.events.emit(
            "launch",
            unix_ns=time.time_ns(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            argv=["trainmark.launch.node", str(self.number)],
            environment=described,
            node=self.number,
        )
        told = {"node": self.number, "packages": self._packages(described)}
        variables[NODE_VARIABLE] = json.dumps(told)
        return self._train(variables, lost)

    @staticmethod
    def _packages(described: dict[str, Any]) -> dict[str, str]:
        from trainmark import __version__

        return {"trainmark": __version__, "python": described["python"], **described["packages"]}

    def _refuse_too_few(self, vendor: Vendor) -> None:
        here = vendor.count()
        if self.plan.nproc > here and not vendor.counts_cores:
            raise EnvironmentFault(
                f"{self.plan.nproc} {vendor.name} devices needed, {here} here",
                where=f"node {self.number}",
                remedy="use a smaller --nproc, or nodes with more devices",
            )

    def _examine(self) -> None:
        """Let ``trainmark doctor --quick`` look at this node, and tell what it finds.

        Raises:
            EnvironmentFault: it finds what stops a run.
        """
        words = ["--quick", "--json", "--device", self.plan.device.vendor]
        words += ["--nproc", str(self.plan.nproc), "--out", str(self.run_dir)]
        found: list[dict[str, Any]] = []
        try:
            told = subprocess.run(
                [sys.executable, "-m", "trainmark", "doctor", *words], capture_output=True,
                stdin=subprocess.DEVNULL, timeout=_EXAMINE_S, check=False,
                env=os.environ | processes.import_variables(),
            ).stdout  # fmt: skip
            found = [one for one in json.loads(told)["checks"] if one["severity"] in _TOLD]
        except (subprocess.TimeoutExpired, ValueError, LookupError) as error:
            what = f"doctor: {type(error).__name__}"
            found = [{"code": "doctor", "severity": "spoils", "what": what, "remedy": ""}]
        told_of = ("code", "severity", "what")
        self.events.emit("examined", found=[{key: one[key] for key in told_of} for one in found])
        for one in found:
            if one["severity"] == "stops":
                raise EnvironmentFault(
                    one["what"], where=f"node {self.number}, {one['code']}", remedy=one["remedy"]
                )

    def _data_folder(self) -> Path:
        """Return the folder of the data on this node, which holds what the plan was made for.

        Generated data is made here where it is not.
        """
        plan, case, recipe = self.plan, self.plan.load_case(), self.plan.load_recipe()
        folder = self.data or Path(plan.data.folder)
        if plan.data.origin == "generated" and not folder.exists():
            folder = cases.generated_folder(case, recipe, default_root())
        found = cases.part(case.name, "data").check(folder, recipe)
        if found.content_id != plan.data.content_id:
            raise DataError(
                "other data than where the run was planned",
                where=f"node {self.number}, {folder}",
                rule="all nodes train on the same data",
                remedy="copy the data to this node again",
            )
        return folder

    def _variables(self, placed: list[Placement], data: Path) -> dict[str, str]:
        threads = min(placement.threads for placement in placed)
        return (
            os.environ
            | processes.import_variables()
            | run_environment(self._mark, threads)
            | {numa.PLACEMENT_VARIABLE: numa.told(placed), DATA_VARIABLE: str(data)}
        )

    def _command(self) -> list[str]:
        """Return torchrun's command line for this node."""
        host, port = self.master
        return [
            sys.executable, "-m", "trainmark.rank.torchrun",
            "--nnodes", str(self.plan.nnodes), "--nproc-per-node", str(self.plan.nproc),
            "--node-rank", str(self.number), "--master-addr", host, "--master-port", str(port),
            "--max-restarts", "0", "-m", processes.WORKER_MODULE, str(self.run_dir),
        ]  # fmt: skip

    def _train(self, variables: dict[str, str], lost: Callable[[], str | None]) -> bool:
        plan = self.plan
        oom_kills, cpu = processes.oom_kills(), processes.CpuUse.now()
        log_path = self.run_dir / node_log(self.number)
        with (
            log_path.open("wb") as log,
            sampled(plan, self.run_dir, log, self.number),
            subprocess.Popen(
                self._command(), env=variables, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            ) as torchrun,
        ):  # fmt: skip
            try:
                stop = self._watch(torchrun, lost)
                failures = [] if stop else _failures(torchrun)
            finally:
                processes.kill_run(self._mark)
                code = torchrun.wait()
        if stop is not None:
            self.events.emit("stop", **stop)
        kills = processes.oom_kills() - oom_kills
        if kills:
            self.events.emit("oom_kills", count=kills)
        self.events.emit(
            "agent_exit",
            exit_code=code if stop is None else 1,
            failures=failures,
            others_cpu_share=cpu.others_share(processes.CpuUse.now()),
        )
        return stop is None and code == 0

    def _watch(
        self, torchrun: subprocess.Popen[bytes], lost: Callable[[], str | None]
    ) -> dict[str, Any] | None:
        """Wait until torchrun ended; else return the reason to end its ranks."""
        timeout_s = float(self.plan.recipe["timeout_s"])
        deadline = time.monotonic() + timeout_s
        while torchrun.poll() is None:
            time.sleep(POLL_S)
            reason = lost()
            if reason is not None and torchrun.poll() is None:
                return {"reason": "signal", "signal": reason}
            if time.monotonic() >= deadline:
                stop = timed_out(processes.ranks(self._mark), self.run_dir, timeout_s)
                time.sleep(_LET_SAVE_S if self.plan.nnodes > 1 else 0)
                return stop
        return None


def _failures(torchrun: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    """Return how ranks failed, as the last line of torchrun's output tells."""
    assert torchrun.stdout is not None
    os.set_blocking(torchrun.stdout.fileno(), False)  # a rank's child may still hold the pipe
    lines = (torchrun.stdout.read() or b"").splitlines()
    try:
        found = json.loads(lines[-1]) if lines and torchrun.returncode else []
    except ValueError:
        return []  # it was killed
    return [one | {"report": None} for one in found]


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trainmark.launch.node", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node-rank", type=int, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--send-files", action="store_true")
    parser.add_argument("--heartbeat", action="store_true")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Run this node's part of the plan in the run directory; 0 if all its ranks succeeded."""
    asked = _arguments(words)
    run_dir, number = asked.run_dir.absolute(), asked.node_rank
    plan = Plan.read(run_dir)
    with stop_signals_noted() as request:
        events = EventWriter(run_dir / node_file(number), time.perf_counter_ns)
        node = Node(
            run_dir=run_dir, plan=plan, number=number, master=(asked.master, asked.port),
            data=asked.data, events=events,
        )  # fmt: skip
        succeeded = False
        try:
            succeeded = node.run(_reason(request, Heartbeat() if asked.heartbeat else None))
        except TrainmarkError as fault:
            print(escaped(f"node {number}: {fault}"), file=sys.stderr, flush=True)
            text = str(TrainmarkError(fault.what, where=fault.where, rule=fault.rule))
            said = message("node_refused", node=number, text=text, remedy=fault.remedy)
            events.emit("refused", unix_ns=time.time_ns(), message=said.as_dict())
        events.emit("finished")
        events.close()
        if asked.send_files:
            send(run_dir, number, plan, sys.stdout)
    return 0 if succeeded else 1


def _reason(request: StopRequest, heartbeat: Heartbeat | None) -> Callable[[], str | None]:
    """Return a function that tells why the ranks must end: a signal, or a lost launcher."""

    def lost() -> str | None:
        if request.signal_name is None and heartbeat is not None and heartbeat.lost():
            return "SIGHUP"
        return request.signal_name

    return lost


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
