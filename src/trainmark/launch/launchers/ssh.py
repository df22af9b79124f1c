"""Bare hosts through ssh: a script holds a connection to each node, and what they wrote is copied.

``command`` is that script. It writes to each node every second; a node whose input ends or falls
silent ends its ranks, so that a cut link leaves none behind. Keys and the agent are the only ways
in: ssh never asks, and nothing here needs to be root.
"""

from __future__ import annotations

import re
import shlex
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from trainmark.errors import EnvironmentFault, escape_controls
from trainmark.launch.launchers import (
    Command,
    EngineJob,
    JobState,
    Launcher,
    read_log_end,
    render_template,
    run_program,
)
from trainmark.launch.node import render_node_script, render_python_script
from trainmark.plan.plan import PLAN_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.launch.cluster import Cluster, SshSettings
    from trainmark.plan.plan import Plan

SCRIPT = "ssh.sh"
_LOST = 255  # ssh's own exit code
_FIXED = ("BatchMode=yes", "PreferredAuthentications=publickey", "RequestTTY=no")
# A cut link is noticed after 15 s; a connection is not shared, and ends with its process.
_USUAL = (
    "StrictHostKeyChecking=yes", "ServerAliveInterval=5", "ServerAliveCountMax=3",
    "ConnectTimeout=10", "ControlPath=none",
)  # fmt: skip
# A node that lost us may still be ending its ranks: its files are complete only afterwards.
_LIST_LARGE = """for _ in $(seq 30); do pgrep -f -- {mark} > /dev/null || break; sleep 1; done
cd {folder} && find . -type f -size +{blocks}"""
_PACK = "tar -C {folder} {excluded} -cf - ."
MAX_COPIED_BYTES = 4 << 30  # of a file; holes count, which tar would send as zeros


def select_hosts(cluster: Cluster, *, nnodes: int) -> dict[str, str]:
    """Return where ssh finds the first ``nnodes`` hosts, as a URL by name.

    Raises:
        UsageError: there are fewer.
    """
    hosts = {
        re.sub(r":\d+$", "", text.rpartition("@")[2]).strip("[]").lower(): f"ssh://{text}"
        for text in cluster.ssh.hosts
    }
    if len(hosts) < nnodes:
        named = f"{len(hosts)} different ones are named" if hosts else "none is named"
        raise cluster.fault(
            "ssh.hosts",
            f"{nnodes} nodes need as many hosts, and {named}" if nnodes > 1 else "no host is named",
            rule="[user@]host[:port] each, an IPv6 address in brackets; one node on each host",
            fix="write ssh: {hosts: [HOST, …]}"
            if not hosts
            else "add hosts, or use fewer --nnodes",
        )
    return dict(islice(hosts.items(), nnodes))


def build_ssh_arguments(host: str, cluster: SshSettings, script: str) -> list[str]:
    """Return the arguments of ssh that run a script on a host, given as a URL.

    Of an option given twice, ssh takes the first.
    """
    given = [f"{name}={value}" for name, value in cluster.options.items()]
    options = [f"-o{option}" for option in (*_FIXED, *given, *_USUAL)]
    return [*options, host, shlex.join(["sh", "-c", script])]


def locate_remote_folder(plan: Plan, cluster: Cluster) -> Path:
    """Return the folder of a run on each host."""
    return (
        Path(plan.run_dir) if cluster.ssh.run_root is None else cluster.ssh.run_root / plan.run_id
    )


def summarize_ssh_output(printed: str) -> str:
    """Return what ssh said of a connection that failed."""
    lines = [line.strip("@ \r") for line in printed.splitlines() if line.strip("@ \r")]
    return f"ssh: {('; '.join(lines[-3:]) or 'it said nothing').removeprefix('ssh: ')}"


def _run_on_hosts(hosts: dict[str, str], act: Callable[[str], object]) -> None:
    """Act on all hosts at once, and raise all faults as one error.

    Raises:
        EnvironmentFault: there are any.
    """

    def fault(url: str) -> str | None:
        try:
            act(url)
        except EnvironmentFault as error:
            return summarize_ssh_output(error.what)
        return None

    with ThreadPoolExecutor(64) as pool:
        faults = zip(hosts, pool.map(fault, hosts.values()), strict=True)
        sentences = [f"{name}: {what}" for name, what in faults if what]
    if sentences:
        fix = "let `ssh HOST` work without questions; name `python` and `setup` in the cluster file"
        raise EnvironmentFault("\n".join(sentences), fix=fix)


class Ssh(Launcher):
    """Bare hosts, named in a file."""

    programs = ("ssh",)

    def check(self, plan: Plan, cluster: Cluster) -> None:
        """Let every host say whether it has this program."""
        folder = str(cluster.ssh.run_root or Path(plan.run_dir).parent)
        script = render_python_script(
            plan, cluster, ["-m", "trainmark", "--version"], folder=folder
        )
        hosts = select_hosts(cluster, nnodes=plan.nnodes)
        _run_on_hosts(
            hosts, lambda url: run_program("ssh", *build_ssh_arguments(url, cluster.ssh, script))
        )

    def command(self, plan: Plan, cluster: Cluster) -> Command:
        """Return the script that holds a connection to each node; it follows from the hosts too."""
        hosts, folder = (
            select_hosts(cluster, nnodes=plan.nnodes),
            locate_remote_folder(plan, cluster),
        )
        bring = ""
        if cluster.ssh.run_root is not None:
            words = shlex.quote(str(folder)), shlex.quote(plan.model_dump_json())
            bring = "mkdir -p {0}\nprintf '%s\\n' {1} > {0}/{2}\n".format(*words, PLAN_FILE)
        nodes = [
            build_ssh_arguments(
                url,
                cluster.ssh,
                bring
                + render_node_script(
                    plan,
                    cluster,
                    node_rank=str(number),
                    master=next(iter(hosts)),
                    folder=folder,
                    options=("--heartbeat",),
                ),
            )
            for number, url in enumerate(hosts.values())
        ]
        script = render_template("ssh.sh.j2", plan=plan, nodes=nodes)
        return Command(argv=("bash", SCRIPT), files={SCRIPT: script})

    def state(self, job: EngineJob) -> JobState:
        """Return whether the script runs, or which nodes failed and which were lost."""
        state, folder = super().state(job), job.folder
        if state.phase == "running":
            return replace(state, said=f"{job.plan.nnodes} nodes")
        codes = {path.suffix[5:]: path.read_text().strip() for path in folder.glob("ssh.exit*")}
        lost = sorted(int(node) for node, code in codes.items() if code == str(_LOST))
        if not lost:
            return state
        logs = {node: read_log_end(folder / f"log.ssh{node}.txt") for node in lost}
        outputs = "; ".join(
            f"node {node}: {summarize_ssh_output(log)}" for node, log in logs.items()
        )
        return replace(state, phase="lost", said=outputs)

    def collect(self, job: EngineJob) -> None:
        """Copy what the nodes wrote, where it is not in the run directory itself.

        Files above ``MAX_COPIED_BYTES`` stay on their host and are named.

        Raises:
            EnvironmentFault: with the hosts from which it could not be copied.
        """
        ssh = job.cluster.ssh
        if ssh.run_root is None:
            return
        folder = str(locate_remote_folder(job.plan, job.cluster))
        mark = re.escape(f"{job.plan.node_module} {folder} ")
        list_large = _LIST_LARGE.format(
            mark=shlex.quote(mark), folder=shlex.quote(folder), blocks=MAX_COPIED_BYTES // 512
        )

        def copy(url: str) -> None:
            large = run_program("ssh", *build_ssh_arguments(url, ssh, list_large)).splitlines()
            for name in large:
                place = f"{url.removeprefix('ssh://')}:{folder}/{name.removeprefix('./')}"
                print(
                    escape_controls(
                        f"trainmark: {place}: left there, larger than {MAX_COPIED_BYTES:,} bytes"
                    ),
                    file=sys.stderr,
                )
            excluded = [f"--exclude={shlex.quote(name)}" for name in (PLAN_FILE, *large)]
            script = _PACK.format(folder=shlex.quote(folder), excluded=" ".join(excluded))
            with TemporaryFile() as packed:
                run_program("ssh", *build_ssh_arguments(url, ssh, script), output=packed)
                packed.seek(0)
                with tarfile.open(fileobj=packed) as archive:
                    archive.extractall(job.folder, filter="data")

        _run_on_hosts(select_hosts(job.cluster, nnodes=job.plan.nnodes), copy)
