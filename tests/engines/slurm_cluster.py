"""A Slurm cluster of two nodes on this host, for as long as a ``with`` block lasts.

Two slurmd of one host under different node names, with an own munge, so that no service of the
machine is used or disturbed. It needs no root: Slurm runs as whoever runs the tests, and ends
processes without cgroups. All of it lies in one folder below /tmp, where the paths of sockets are
short, and is ended by its process ids.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = ("tm0", "tm1")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "sinfo", "srun")
_SBIN = "/usr/sbin"
_START_S = 60.0  # how long a part of the cluster may take to start
# Short times, so that waiting of Slurm does not delay the tests.
_CONFIGURATION = """\
ClusterName=trainmark
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
SchedulerParameters=sched_interval=1
ReturnToService=2
SlurmdTimeout=10
KillWait=10
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=100
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=100
PartitionName=main Nodes={nodes[0]},{nodes[1]} Default=YES
"""


def list_missing_programs() -> list[str]:
    """Return the programs of Slurm that are not here."""
    return [name for name in PROGRAMS if _find_program(name) is None]


def _find_program(name: str) -> str | None:
    """Return a program's path, also in /usr/sbin; None: it is not installed."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SBIN}")


def _choose_free_ports(count: int) -> list[int]:
    """Return different ports; all are open at the same time before any is closed."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


class SlurmCluster:
    """The cluster: two nodes that are daemons on this machine.

    Args:
        folder: for all files of Slurm; it has ``slurm.conf``.

    Attributes:
        variables: of the environment, by which Slurm's programs find the cluster.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}  # by program, or by node

    def start(self) -> None:
        """Start all daemons and wait until both nodes can have jobs."""
        # ``NODES`` are the names of the two nodes, "tm0" and "tm1"; ``_CONFIGURATION`` is the text
        # of slurm.conf with gaps. Munge, by which Slurm's programs trust each other, needs a key.
        folder = self.folder
        (folder / "state").mkdir()
        for node in NODES:
            (folder / f"spool-{node}").mkdir()
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        text = _CONFIGURATION.format(
            folder=folder,
            host=socket.gethostname().partition(".")[0],
            nodes=NODES,
            ports=_choose_free_ports(3),
            user=getpass.getuser(),
        )
        (folder / "slurm.conf").write_text(text)
        self._start(
            "munged",
            "--foreground",
            "--force",
            f"--socket={folder}/munge.socket",
            f"--key-file={key}",
            f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.log",
            f"--seed-file={folder}/munged.seed",
        )
        self.wait_until((folder / "munge.socket").exists, "munged")
        self._start("slurmctld", "-D", "-f", self.variables["SLURM_CONF"])
        for node in NODES:
            self._start("slurmd", "-D", "-f", self.variables["SLURM_CONF"], "-N", node, name=node)
        self.wait_until(lambda: self.list_states() == ["idle", "idle"], "both nodes")

    def _start(self, program: str, *args: str, name: str | None = None) -> None:
        """Start a daemon in a session of its own; ``name``: its key, if its program runs twice.

        The daemon's output goes to a file NAME.out in the cluster's folder. ``_find_program`` also
        looks in /usr/sbin; the caller has checked that the program is installed.
        """
        path = _find_program(program)
        assert path is not None
        with (self.folder / f"{name or program}.out").open("ab") as out:
            self._daemons[name or program] = subprocess.Popen(
                [path, *args],
                env=os.environ | self.variables,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def ask(self, *args: str) -> str:
        """Return what one of Slurm's programs prints."""
        process = subprocess.run(
            args, env=os.environ | self.variables, capture_output=True, text=True, check=False
        )
        return process.stdout.strip()

    def list_states(self) -> list[str]:
        """Return the states of the nodes, in their order.

        A line of sinfo is the node's name ("tm0", "tm1") and its state, such as "idle".
        """
        out = self.ask("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T")
        return [line.split()[1] for line in sorted(out.splitlines())]

    def wait_until(self, holds, what: str, limit_s: float = _START_S) -> None:
        """Wait for a condition that no command of Slurm waits for.

        ``_START_S`` is 60 s. The failure shows the last 1,500 characters of each daemon's output.

        Args:
            holds: called again and again, until it returns True.
            what: what is waited for; a failure's message names it.
        """
        deadline_s = time.monotonic() + limit_s
        while not holds():
            logs = "\n".join(file.read_text()[-1500:] for file in self.folder.glob("*.out"))
            assert time.monotonic() < deadline_s, f"{what}: not within {limit_s} s\n{logs}"
            time.sleep(0.1)

    def list_tasks(self, node: str) -> list[psutil.Process]:
        """Return the processes of a node except its daemon: steps, scripts, tasks, children.

        ``_list_parent_steps`` returns those of a process's parents that are Slurm's own
        (slurmstepd). A process is listed once.
        """
        processes = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                variables = process.environ()
                if variables.get("SLURM_CONF") != self.variables["SLURM_CONF"]:
                    continue  # it does not belong to this cluster
                if variables.get("SLURMD_NODENAME") == node:  # set in tasks and batch scripts
                    processes += [process, *self._list_parent_steps(process)]
        return list(dict.fromkeys(processes))

    @staticmethod
    def _list_parent_steps(process: psutil.Process) -> list[psutil.Process]:
        """Return the processes of Slurm that hold the step of a task."""
        return [parent for parent in process.parents() if parent.name() == "slurmstepd"]

    def stop(self) -> None:
        """End the jobs, then the daemons, by their process ids."""
        self.ask("scancel", "--full", "--signal=KILL", f"--user={getpass.getuser()}")
        for node in NODES:
            for process in self.list_tasks(node):
                with suppress(psutil.Error):
                    process.kill()
        for daemon in reversed(self._daemons.values()):
            self._end(daemon)

    @staticmethod
    def _end(daemon: subprocess.Popen[bytes]) -> None:
        """End a daemon, by force if it does not end in ten seconds, and its children."""
        children = psutil.Process(daemon.pid).children() if daemon.poll() is None else []
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        for child in children:  # slurmscriptd, which slurmctld starts
            with suppress(psutil.Error):
                child.kill()


@contextmanager
def start_slurm_cluster() -> Iterator[SlurmCluster]:
    """Yield a cluster with two idle nodes."""
    folder = Path(tempfile.mkdtemp(prefix="tm-slurm-", dir="/tmp"))
    folder.chmod(0o755)  # munged wants others to reach its socket
    cluster = SlurmCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
