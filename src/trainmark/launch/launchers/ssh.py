"""Run on hosts that ssh reaches, without an engine; copy the files that they wrote.

The launcher's command is a script that holds a connection to each node and writes to it every
second. A node whose input ends or falls silent ends its ranks, so that a broken connection leaves
none behind. Only keys and the ssh agent are used, so that ssh never asks a question.
"""

from __future__ import annotations

import re
import shlex
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from trainmark.errors import EnvironmentFault, escape_controls
from trainmark.launch.launchers import (
    EngineCommand,
    EngineJob,
    JobState,
    Launcher,
    read_log_end,
    render_template,
    run_program,
)
from trainmark.launch.node_script import render_node_script, render_python_script
from trainmark.plan.plan import PLAN_FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trainmark.launch.cluster import Cluster, SshSettings
    from trainmark.launch.job_spec import JobSpec

SCRIPT = "ssh.sh"
_LOST_EXIT_CODE = 255  # of ssh itself
_FIX_OF_CONNECTION = "make sure that `ssh HOST` works without prompts"
_REQUIRED_OPTIONS = ("BatchMode=yes", "PreferredAuthentications=publickey", "RequestTTY=no")
# A broken connection is noticed after 15 s. It is not shared, so that it ends with its process.
_DEFAULT_OPTIONS = (
    "StrictHostKeyChecking=yes",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ConnectTimeout=10",
    "ControlPath=none",
)
# A node that lost its connection may still be ending its ranks; its files are complete afterwards.
# ``find`` counts blocks of 512 bytes.
_WAIT_AND_LIST_LARGE = """
for _ in $(seq 30); do pgrep -f -- {node_pattern} > /dev/null || break; sleep 1; done
cd {folder} && find . -type f -size +{blocks}"""
_PACK = "tar -C {folder} {excluded} -cf - ."
_COPY_TIMEOUT_S = 3600.0  # of one host's files; a connection that breaks ends the copy earlier
MAX_COPIED_BYTES = 4 << 30  # of a file, holes included, because tar sends them as zeros


def select_hosts(cluster: Cluster, *, nnodes: int) -> dict[str, str]:
    """Return the first ``nnodes`` hosts of the cluster file, as a URL for ssh by the host's name.

    Raises:
        UsageError: the file has fewer hosts.
    """
    # A host that is listed twice counts once, because one node runs on each host.
    urls = {_parse_host_name(text): f"ssh://{text}" for text in cluster.ssh.hosts}
    if len(urls) < nnodes:
        if urls:
            shortage = f"but the list contains only {len(urls)}"
            fix = "add hosts, or use a smaller --nnodes"
        else:
            shortage = "but none is given"
            fix = "write ssh: {hosts: [HOST, …]}"
        if nnodes == 1:
            what = "no host is given"
        else:
            what = f"{nnodes} nodes need {nnodes} different hosts, {shortage}"
        raise cluster.build_error(
            "ssh.hosts",
            what,
            rule="each host must have the form [user@]host[:port], with IPv6 addresses in "
            "brackets; one node runs on each host",
            fix=fix,
        )
    return dict(islice(urls.items(), nnodes))


def _parse_host_name(text: str) -> str:
    """Return the host of ``[user@]host[:port]``, in lower case and without brackets."""
    host_and_port = text.rpartition("@")[2]
    return re.sub(r":\d+$", "", host_and_port).strip("[]").lower()


def build_ssh_arguments(url: str, settings: SshSettings, script: str) -> list[str]:
    """Return the arguments of ssh that run a script on the host of a URL.

    If an option is given twice, ssh takes the first. So the cluster file overrides the defaults,
    but not the options that this launcher requires.

    Args:
        settings: those of the cluster file for ssh.
    """
    options_of_file = [f"{name}={value}" for name, value in settings.options.items()]
    ordered_options = (*_REQUIRED_OPTIONS, *options_of_file, *_DEFAULT_OPTIONS)
    options = [f"-o{option}" for option in ordered_options]
    # One word, which the user's login shell on the host reads; the script itself is for sh.
    return [*options, url, shlex.join(["sh", "-c", script])]


def locate_remote_folder(spec: JobSpec, cluster: Cluster) -> Path:
    """Return the folder of a job on each host.

    Without ``ssh.run_root``, the hosts share the job's folder under the same path.
    """
    if cluster.ssh.run_root is None:
        return spec.run_dir
    return cluster.ssh.run_root / spec.run_id


def summarize_ssh_output(output: str) -> str:
    """Return the last lines that ssh printed about a connection that failed, as one line."""
    # ssh frames its warning about a changed host key with @.
    lines = [line.strip("@ \r") for line in output.splitlines()]
    text = "; ".join([line for line in lines if line][-3:])
    return f"ssh: {(text or 'no message').removeprefix('ssh: ')}"


def _run_on_hosts(hosts: dict[str, str], act: Callable[[str], object], *, fix: str) -> None:
    """Call ``act`` with the URL of each host, many at the same time.

    Args:
        hosts: URL of each host by its name.
        fix: what to do if ``act`` fails for a host.

    Raises:
        EnvironmentFault: it failed for some hosts; the error names all of them.
    """

    def try_host(url: str) -> str | None:
        """Return why it failed for a host; None if it succeeded."""
        try:
            act(url)
        except EnvironmentFault as error:
            return summarize_ssh_output(error.what)
        return None

    with ThreadPoolExecutor(max_workers=64) as pool:  # up to 64 hosts at a time, others in turn
        faults = zip(hosts, pool.map(try_host, hosts.values()), strict=True)
        sentences = [f"{name}: {what}" for name, what in faults if what]
    if sentences:
        raise EnvironmentFault("\n".join(sentences), fix=fix)


class Ssh(Launcher):
    """Starts node processes on the hosts of the cluster file."""

    programs = ("ssh",)

    def check(self, spec: JobSpec, cluster: Cluster) -> None:
        """Check that every host can run this program.

        Raises:
            UsageError: the cluster file has too few hosts.
            EnvironmentFault: a host cannot be reached, or the program does not run there.
        """
        # The job's own folder does not exist yet, so the check runs in the one above it.
        folder = str(cluster.ssh.run_root or spec.run_dir.parent)
        script = render_python_script(
            spec, cluster, ["-m", "trainmark", "--version"], folder=folder
        )
        hosts = select_hosts(cluster, nnodes=spec.nnodes)
        _run_on_hosts(
            hosts,
            lambda url: run_program("ssh", *build_ssh_arguments(url, cluster.ssh, script)),
            fix=f"{_FIX_OF_CONNECTION}; set `python` and `setup` in the cluster file",
        )

    def build_command(self, spec: JobSpec, cluster: Cluster) -> EngineCommand:
        """Return the command of a script that holds a connection to each node.

        Through its connection, the script starts the node's process.
        """
        hosts = select_hosts(cluster, nnodes=spec.nnodes)
        folder = locate_remote_folder(spec, cluster)
        write_plan = ""
        if cluster.ssh.run_root is not None:  # else the nodes share the run directory with its plan
            quoted_folder = shlex.quote(str(folder))
            quoted_plan = shlex.quote(spec.plan_json)
            write_plan = f"mkdir -p {quoted_folder}\n"
            write_plan += f"printf '%s\\n' {quoted_plan} > {quoted_folder}/{PLAN_FILE}\n"
        nodes = []
        for number, url in enumerate(hosts.values()):
            node_script = render_node_script(
                spec,
                cluster,
                node_rank=str(number),
                master=next(iter(hosts)),  # the host of node 0
                folder=folder,
                options=("--heartbeat",),  # the node ends its ranks once the connection is silent
            )
            nodes.append(build_ssh_arguments(url, cluster.ssh, write_plan + node_script))
        script = render_template("ssh.sh.j2", spec=spec, nodes=nodes)
        return EngineCommand(argv=("bash", SCRIPT), files={SCRIPT: script})

    def read_state(self, job: EngineJob) -> JobState:
        """Return the state of the job; ``lost``: the connection to a node failed or broke."""
        state = super().read_state(job)
        folder = job.folder
        if state.phase == "running":
            return replace(state, description=f"{job.spec.nnodes} nodes")
        lost_nodes = []
        for path in folder.glob("ssh.exit*"):  # the exit code of ssh for a node, `ssh.exit3`
            if path.read_text().strip() == str(_LOST_EXIT_CODE):  # ssh failed, not the node
                lost_nodes.append(int(path.name.removeprefix("ssh.exit")))
        if not lost_nodes:
            return state
        sentences = []
        for node in sorted(lost_nodes):
            output = read_log_end(folder / f"log.ssh{node}.txt")
            sentences.append(f"node {node}: {summarize_ssh_output(output)}")
        return replace(state, phase="lost", description="; ".join(sentences))

    def collect(self, job: EngineJob) -> None:
        """Copy the nodes' files into the run directory, unless the nodes share that directory.

        Waits up to 30 s for a node that is still ending its ranks. Files above ``MAX_COPIED_BYTES``
        stay on their host; a message on standard error names them.

        Raises:
            EnvironmentFault: with the hosts from which files could not be copied.
        """
        ssh = job.cluster.ssh
        if ssh.run_root is None:
            return
        folder = str(locate_remote_folder(job.spec, job.cluster))
        # Matches the command line of the node's process, for whose end the script waits: its files
        # are complete then. The blank at the end keeps a longer folder name from matching.
        node_pattern = re.escape(f"{job.spec.node_module} {folder} ")
        wait_and_list_large = _WAIT_AND_LIST_LARGE.format(
            node_pattern=shlex.quote(node_pattern),
            folder=shlex.quote(folder),
            blocks=MAX_COPIED_BYTES // 512,  # ``find`` counts blocks of 512 bytes
        )

        def copy_files(url: str) -> None:
            """Copy the files of one host, packed by tar; name those that are too large."""
            listing = run_program("ssh", *build_ssh_arguments(url, ssh, wait_and_list_large))
            large_files = listing.splitlines()
            for name in large_files:
                place = f"{url.removeprefix('ssh://')}:{folder}/{name.removeprefix('./')}"
                text = f"trainmark: {place}: not copied: larger than {MAX_COPIED_BYTES:,} bytes"
                print(escape_controls(text), file=sys.stderr)
            # The run directory has the plan already.
            excluded = [f"--exclude={shlex.quote(name)}" for name in (PLAN_FILE, *large_files)]
            script = _PACK.format(folder=shlex.quote(folder), excluded=" ".join(excluded))
            with TemporaryFile() as packed:
                run_program(
                    "ssh",
                    *build_ssh_arguments(url, ssh, script),
                    output=packed,
                    timeout_s=_COPY_TIMEOUT_S,
                )
                packed.seek(0)
                try:
                    with tarfile.open(fileobj=packed, mode="r:") as archive:
                        # The filter refuses paths outside the folder: a host may send anything.
                        archive.extractall(job.folder, filter="data")
                except (tarfile.TarError, OSError) as error:
                    raise EnvironmentFault(
                        f"the files of this host cannot be unpacked: {error}"
                    ) from error

        hosts = select_hosts(job.cluster, nnodes=job.spec.nnodes)
        _run_on_hosts(hosts, copy_files, fix=_FIX_OF_CONNECTION)
