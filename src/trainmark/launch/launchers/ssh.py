"""Start nodes on bare hosts through ssh, end them with this side, and fetch what they wrote.

``command`` starts this module as a program in the folder of the run. It holds one ssh for each node
and writes to it every few seconds. A node whose input falls silent ends its ranks, so a cut link
leaves none behind.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, run
from typing import TYPE_CHECKING, Any

import psutil

from trainmark.data import json_documents
from trainmark.errors import RecordError
from trainmark.launch.contract import BEAT_S, JOB_FILE, Command, Ending, JobState
from trainmark.launch.launchers import ssh_hosts
from trainmark.launch.node.command import node_script, run_dir_on_nodes
from trainmark.launch.stopping import stop_signals_noted
from trainmark.plan.plan import PLAN_FILE
from trainmark.rank.events import node_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.launch.site import Site
    from trainmark.plan.plan import Plan

MODULE = "trainmark.launch.launchers.ssh"
NODES_FILE = "ssh.nodes"  # with .json once all is here: then it is redacted as the record is
STATE_FILE = "ssh.state.json"  # of the job once it ended
_POLL_S = 0.2
_GRACE_S = 10.0  # for nodes to fail by themselves after another one did
_PATIENCE_S = 40.0  # for nodes to end their ranks, then ssh is ended
# The plan is the first line; a shell reads it byte by byte and leaves the rest to the node.
_TAKE_PLAN = "set -e; mkdir -p {0}; IFS= read -r plan; printf '%s\\n' \"$plan\" > {0}/plan.json\n"
# A node that lost us may still be ending its ranks: its files are whole only afterwards.
_END = """pkill -TERM -f -- {0}
for _ in $(seq 15); do pgrep -f -- {0} > /dev/null && sleep 1 || break; done
pkill -KILL -f -- {0}; mkdir -p {1}
"""
# In sessions of their own, where no Ctrl-C of the terminal reaches them.
_run = partial(run, capture_output=True, text=True, check=False, start_new_session=True)


class Ssh:
    """Bare hosts, named in a file."""

    name = "ssh"
    detaches = False

    def absent(self, site: Site) -> str | None:  # noqa: ARG002 - the Protocol's
        """Return why it cannot be used here, None if it can."""
        return None if shutil.which("ssh") and shutil.which("sftp") else "no ssh or sftp installed"

    def check(self, plan: Plan, site: Site) -> None:
        """Ask all hosts at once for what would stop the run."""
        ssh_hosts.check_hosts(ssh_hosts.read_hosts(site.ssh, nnodes=plan.nnodes), plan, site)

    def command(self, plan: Plan, site: Site) -> Command:
        """Return what holds a connection to each node; it follows from the hosts file too."""
        hosts = ssh_hosts.read_hosts(site.ssh, nnodes=plan.nnodes)
        folder = None if site.run_root is None else str(run_dir_on_nodes(plan, site))
        prepare = "" if folder is None else _TAKE_PLAN.format(shlex.quote(folder))
        script = partial(node_script, plan, site, master=hosts[0].name, options=("--heartbeat",))
        nodes = []
        for number, host in enumerate(hosts):
            options, start = ssh_hosts.options(host, site.ssh), script(node_rank=str(number))
            nodes.append({"host": host.name, "options": options, "start": prepare + start})
        told = {"folder": folder, "nodes": nodes}
        argv, env = (sys.executable, "-m", MODULE), {"PYTHONSAFEPATH": "1"}
        return Command(argv=argv, env=env, files={NODES_FILE: json.dumps(told, indent=2)})

    def start(self, command: Command, plan: Plan, site: Site) -> SshJob:  # noqa: ARG002
        """Run ``command``, which ends all nodes when this process ends."""
        with (Path(plan.run_dir) / "log.ssh.txt").open("wb") as log:
            process = Popen(
                command.argv, env=os.environ | dict(command.env), cwd=plan.run_dir,
                stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return SshJob(plan, str(process.pid), process)

    def attach(self, plan: Plan, site: Site) -> SshJob:  # noqa: ARG002
        """Return the job of a run directory."""
        file = Path(plan.run_dir) / JOB_FILE
        if not file.exists():
            raise RecordError("no nodes were started through ssh", where=plan.run_dir)
        told = file.read_text(errors="replace").strip()
        if not re.fullmatch(r"[0-9]{1,9}", told):
            raise RecordError("no number of a process", where=str(file))
        return SshJob(plan, told)


@dataclass
class SshJob:
    """The process that holds the connections, and the nodes at their other ends.

    Args:
        id: of the process.
        process: if it is our child.
    """

    plan: Plan
    id: str
    process: Popen[bytes] | None = None

    def _alive(self) -> bool:
        if self.process is not None:
            return self.process.poll() is None
        with suppress(psutil.NoSuchProcess):
            return MODULE in psutil.Process(int(self.id)).cmdline()
        return False

    def state(self) -> JobState:
        """Return what the process wrote at its end, or whether it is alive."""
        alive, file = self._alive(), Path(self.plan.run_dir) / STATE_FILE
        if file.exists():
            told = json.loads(file.read_bytes())
            return JobState(**told | {"lost": tuple(told["lost"])})
        if alive:
            return JobState(phase="running", said=f"{self.plan.nnodes} nodes")
        return JobState(phase="ended", said="the connections were killed", ending="unknown")

    def cancel(self) -> None:
        """Ask the process to end all nodes."""
        if self._alive():
            psutil.Process(int(self.id)).terminate()

    def collect(self) -> None:
        """Fetch from all nodes at once what is not here; a broken transfer goes on where it was.

        Raises:
            EnvironmentFault: with the hosts from which not all was fetched.
        """
        folder = Path(self.plan.run_dir)
        if not (folder / NODES_FILE).exists():
            return  # all is here
        told = json.loads((folder / NODES_FILE).read_bytes())
        if told["folder"] is not None:
            files = [folder / node_file(number) for number in range(len(told["nodes"]))]
            lacking = [number for number, file in enumerate(files) if not file.exists()]
            ssh_hosts.refuse(ssh_hosts.in_parallel(partial(_fetched, folder, told), lacking))
        (folder / NODES_FILE).rename(folder / f"{NODES_FILE}.json")


def _word(path: object) -> str:
    """Return a path as sftp reads it as one word."""
    return '"{}"'.format(str(path).replace('"', r"\""))


def _fetched(folder: Path, told: dict[str, Any], number: int) -> ssh_hosts.Fault | None:
    """Fetch a node's files to a hidden folder, and put them in place once all are whole.

    The record's making changes files that are in place, so that no transfer can go on there.
    """
    node, there, part = told["nodes"][number], told["folder"], folder / f".node{number}.part"
    part.mkdir(exist_ok=True)
    host, options = node["host"], node["options"]
    ours = rf"-m trainmark\.(launch|measure)\.[a-z]+ {re.escape(there)}"
    script = _END.format(shlex.quote(ours), shlex.quote(there))
    address = f"[{host}]" if ":" in host else host
    end = (["ssh", *options, host, "sh"], script)
    get = (["sftp", "-b-", *options, address], f"get -aR {_word(there + '/.')} {_word(part)}\n")
    for argv, typed in (end, get):
        ended = _run(argv, input=typed)
        if ended.returncode:
            return ssh_hosts.connection_fault(host, ended.stderr)
    files = [path for path in part.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda one: one.name == node_file(number)):
        target = folder / path.relative_to(part)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    shutil.rmtree(part)
    return None


def hold(folder: Path, stopped: Callable[[], bool]) -> JobState:
    """Start all nodes and keep them alive until the last ended, or end them; return how it went.

    Args:
        folder: of the run.
        stopped: tells whether this side is to end.
    """
    told = json.loads((folder / NODES_FILE).read_bytes())
    nodes = told["nodes"]
    logs = [folder / f"log.ssh{number}.txt" for number in range(len(nodes))]
    links = []
    for node, log in zip(nodes, logs, strict=True):
        argv = ["ssh", *node["options"], node["host"], shlex.join(["sh", "-c", node["start"]])]
        with log.open("wb") as out:
            links.append(Popen(argv, stdin=PIPE, stdout=out, stderr=out, start_new_session=True))
    if told["folder"] is not None:
        _write(links, json.dumps(json.loads((folder / PLAN_FILE).read_bytes())).encode() + b"\n")
    cancelled, beat_s, end_s = False, 0.0, float("inf")
    while None in (codes := [link.poll() for link in links]):
        now_s = time.monotonic()
        cancelled = cancelled or stopped()
        if cancelled or any(codes):
            end_s = min(end_s, now_s if cancelled else now_s + _GRACE_S)
        if now_s >= min(beat_s, end_s):
            _write(links, b"." if now_s < end_s else None)
            beat_s = now_s + BEAT_S
        if now_s > end_s + _PATIENCE_S:
            for link in links:
                link.terminate()
        time.sleep(_POLL_S)
    _write(links, None)
    lost = tuple(number for number, code in enumerate(codes) if code == ssh_hosts.LOST)
    failed: Ending = "node_lost" if lost else "failed"
    ending: Ending = "cancelled" if cancelled else failed if any(codes) else "completed"
    said = []
    for number in lost:
        printed = logs[number].read_text(encoding="utf-8", errors="replace")
        said.append("{}: {}".format(*ssh_hosts.connection_fault(nodes[number]["host"], printed)))
    words = "; ".join(said) or ending
    return JobState(phase="ended", said=words, ending=ending, exit_code=int(any(codes)), lost=lost)


def _write(links: list[Popen[bytes]], content: bytes | None) -> None:
    """Write to all nodes; None ends their input."""
    for link in links:
        assert link.stdin is not None
        with suppress(OSError):  # it ended: its exit code tells
            if content is not None:
                link.stdin.write(content)
                link.stdin.flush()
            else:
                link.stdin.close()


def main() -> int:
    """Hold the connections of the run in whose folder this was started."""
    folder, parent = Path.cwd(), os.getppid()
    with json_documents.written_whole(folder / JOB_FILE) as file:
        file.write(b"%d\n" % os.getpid())
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # one open file for each node
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with stop_signals_noted() as request:
        state = hold(folder, lambda: request.signal_name is not None or os.getppid() != parent)
    with json_documents.written_whole(folder / STATE_FILE) as file:
        file.write(json.dumps(asdict(state)).encode())
    print(state.said)
    return int(state.ending != "completed")


if __name__ == "__main__":
    sys.exit(main())
