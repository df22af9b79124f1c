"""Bare hosts: what is refused, what would run, and how connections end; ssh itself is a fake."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from support.fakes import GOLDEN, check_golden
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.events.schema import name_node_file
from trainmark.launch import launchers
from trainmark.launch.cluster import Cluster, SshSettings
from trainmark.launch.launchers import EngineCommand, EngineJob, render_template, ssh, start_job
from trainmark.launch.submission import describe_job
from trainmark.plan.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.launch.job_spec import JobSpec

# Runs the command on this machine, unless the host has a file: HOST.ssh_error is an error of ssh
# itself, which exits with 255; HOST.sh is a script that runs instead of the command.
_FAKE_SSH = """#!/bin/sh
while case "$1" in -*) true;; *) false;; esac; do shift; done
host=${{1#ssh://}}; shift
if [ -e {folder}/$host.ssh_error ]; then cat {folder}/$host.ssh_error >&2; exit 255; fi
if [ -e {folder}/$host.sh ]; then exec sh {folder}/$host.sh; fi
exec sh -c "$*"
"""


@pytest.fixture
def fake_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a fake ssh on PATH; return the folder for files of hosts.

    ``HOST.ssh_error``: what ssh prints when it cannot connect; ``HOST.sh``: a script that runs
    instead of any command. Commands for other hosts run on this machine.
    """
    folder = tmp_path / "fakes"
    folder.mkdir()
    (folder / "ssh").write_text(_FAKE_SSH.format(folder=folder))
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    """Return the job of the toy case's golden plan on two nodes with a rank each.

    Its run has the folder ``run`` of this machine.
    """
    run = tmp_path / "run"
    run.mkdir()
    return make_spec(run)


def make_spec(run_dir: Path) -> JobSpec:
    """Return the job of the toy case's golden plan on two nodes, with this folder of the run."""
    plan = Plan.model_validate_json((GOLDEN / "plan_toy.json").read_bytes())
    changes = {"nnodes": 2, "nproc": 1, "run_dir": str(run_dir)}
    return describe_job(plan.model_copy(update=changes))


@pytest.fixture
def make_site() -> Callable[..., Cluster]:
    """Return a function that makes a cluster from the names of its hosts, separated by whitespace.

    Keyword arguments are other settings of ssh.
    """

    def make(hosts: str = "a\nb\n", **settings: Any) -> Cluster:
        host_names = tuple(hosts.split())
        return Cluster(python="/opt/env/bin/python", ssh=SshSettings(hosts=host_names, **settings))

    return make


def test_hosts_have_users_and_ports(make_site: Callable[..., Cluster]) -> None:
    text = "Node1 me@node2:2222 [fe80::1]:22 last"  # the first three are used
    # By the host's name, whose case does not matter.
    assert ssh.select_hosts(make_site(text), nnodes=3) == {
        "node1": "ssh://Node1",
        "node2": "ssh://me@node2:2222",
        "fe80::1": "ssh://[fe80::1]:22",
    }


def test_a_host_is_named_once_and_by_its_name(make_site: Callable[..., Cluster]) -> None:
    # ``make_site`` makes a cluster of the hosts in the text; its model checks each name.
    with pytest.raises(ValidationError, match="-oProxyCommand=x"):
        make_site("ok -oProxyCommand=x")  # ssh would take it for an option
    for hosts in ("a", "a:1 me@A:2"):  # the latter are one host with two ports
        with pytest.raises(
            UsageError, match="2 nodes need 2 different hosts, but the list contains only 1"
        ):
            ssh.select_hosts(make_site(hosts), nnodes=2)


def test_options_override_defaults_but_ssh_never_prompts() -> None:
    users_options = {"StrictHostKeyChecking": "accept-new", "BatchMode": "no"}
    values: dict[str, str] = {}
    for word in ssh.build_ssh_arguments("ssh://a", SshSettings(options=users_options), "true"):
        name, _, value = word.removeprefix("-o").partition("=")
        values.setdefault(name, value)  # of an option that comes twice, ssh takes the first value
    assert values["StrictHostKeyChecking"] == "accept-new"
    assert values["BatchMode"] == "yes"  # with "no" ssh would ask for a password


def test_dry_run_matches_its_golden_file(make_site: Callable[..., Cluster]) -> None:
    # Two hosts, one with a user and a port, for the two nodes of the job. ``run_root``: the folder
    # for runs on the hosts. The golden file is the reviewed script that a dry run shows.
    site = make_site("a\nme@b:2222\n", run_root=Path("/scratch"))
    spec = make_spec(Path("/somewhere/run"))
    check_golden("ssh_command.sh", ssh.Ssh().build_command(spec, site).render_script(spec.run_dir))


def test_every_host_is_checked_and_named_with_its_fault(
    spec: JobSpec, fake_hosts: Path, make_site: Callable[..., Cluster]
) -> None:
    # ssh cannot connect to the host "changed" and prints this text.
    (fake_hosts / "changed.ssh_error").write_text(
        "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n"
        "Host key verification failed.\r\n"
    )
    # On the hosts "bare" and "fine" these scripts run instead of any command.
    (fake_hosts / "bare.sh").write_text("echo sh: /opt/env/bin/python: not found >&2; exit 127\n")
    (fake_hosts / "fine.sh").write_text("echo trainmark 1\n")  # as `trainmark --version` prints
    site = make_site("changed\nbare\nfine\n")
    with pytest.raises(EnvironmentFault) as caught:
        ssh.Ssh().check(replace(spec, nnodes=3), site)
    lines = caught.value.what.splitlines()
    assert lines[0] == (
        "changed: ssh: WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!; "
        "Host key verification failed."
    )
    assert lines[1] == "bare: ssh: sh: /opt/env/bin/python: not found"
    assert len(lines) == 2  # nothing of the host that is fine
    # With that host alone, nothing is wrong.
    ssh.Ssh().check(replace(spec, nnodes=1), make_site("fine\n"))


def start_nodes(spec: JobSpec, site: Cluster, *scripts: str) -> EngineJob:
    """Start a job whose nodes, the hosts n0, n1, …, run the given scripts of a shell.

    Return the job; its ``process`` is the script of this machine that starts the nodes by ssh.
    """
    # A host and its command for each node.
    nodes = [[f"n{node}", shlex.join(["sh", "-c", script])] for node, script in enumerate(scripts)]
    (spec.run_dir / ssh.SCRIPT).write_text(render_template("ssh.sh.j2", spec=spec, nodes=nodes))
    command = EngineCommand(argv=("bash", ssh.SCRIPT), files={})
    return start_job(command, replace(spec, launcher="ssh"), site)


@pytest.mark.parametrize(
    ("phase", "message"),
    [("lost", "node 1: ssh: Timeout, server n1 not responding."), ("ended", "")],
)
def test_a_failing_node_ends_the_job_once_the_others_ended(
    spec: JobSpec,
    fake_hosts: Path,
    make_site: Callable[..., Cluster],
    phase: str,
    message: str,
) -> None:
    # Both nodes run a command that fails, node 0 later than node 1: a job that ended with node 1
    # would not wait for the file of node 0. If "lost", the fake ssh cannot even connect to node 1.
    # ``phase`` is that of the job: "lost" if a host could not be reached, else "ended", of which
    # the record of the run tells the reason.
    if phase == "lost":
        (fake_hosts / "n1.ssh_error").write_text("Timeout, server n1 not responding.\n")
    node_0_ended = fake_hosts / "ended"
    job = start_nodes(spec, make_site(), f"sleep 0.5; touch {node_0_ended}; exit 1", "exit 1")
    assert job.process is not None
    assert job.process.wait() == 1
    assert node_0_ended.exists()
    state = ssh.Ssh().read_state(job)
    assert (state.phase, state.description) == (phase, message)


def test_cancelling_ends_the_input_of_all_nodes(
    spec: JobSpec, fake_hosts: Path, make_site: Callable[..., Cluster], tmp_path: Path
) -> None:
    # The node reports its start, reads its input to the end, and reports that. In a session of its
    # own no signal to the job reaches it.
    reports = tmp_path / "reports"
    os.mkfifo(reports)  # each read of it waits for a report
    text = f"echo started > {reports}; cat > /dev/null; echo ended > {reports}"
    job = start_nodes(spec, make_site(), f"setsid sh -c {shlex.quote(text)}")
    assert reports.read_text() == "started\n"
    assert ssh.Ssh().read_state(job).phase == "running"
    ssh.Ssh().cancel(job)
    assert job.process is not None
    assert job.process.wait() == 1  # of the script that started the nodes: it was terminated
    assert ssh.Ssh().read_state(job).phase == "ended"
    assert reports.read_text() == "ended\n"  # the node saw its input end
    # Another process, which has no connection to the nodes, takes the job for ended.
    assert ssh.Ssh().read_state(EngineJob(spec, make_site())).phase == "ended"


def test_files_of_nodes_are_copied_and_unreachable_hosts_are_named(
    spec: JobSpec,
    fake_hosts: Path,
    make_site: Callable[..., Cluster],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Events and artifacts are copied, but no other file and no file that is too large."""
    site = make_site("a\n", run_root=tmp_path / "remote")
    # The fake ssh runs all commands on this machine, so the folder of the host is here as well.
    remote_folder = ssh.locate_remote_folder(spec, site)
    (remote_folder / "artifacts").mkdir(parents=True)
    for name in (name_node_file(0), "artifacts/adapter", "plan.json"):
        (remote_folder / name).write_text(f"{name} of a")
    for name in ("core", "artifacts/it's large"):
        with (remote_folder / name).open("wb") as file:
            # 100 GiB, more than the 4 GiB that are copied; without data they take no space.
            file.truncate(100 << 30)
    single_node_spec = replace(spec, nnodes=1)
    ssh.Ssh().collect(EngineJob(single_node_spec, site))
    message = capsys.readouterr().err
    for name in ("core", "artifacts/it's large"):
        assert f"a:{remote_folder}/{name}: not copied" in message
    assert not (spec.run_dir / "core").exists()
    assert not (spec.run_dir / "artifacts/it's large").exists()
    run = spec.run_dir
    assert (run / name_node_file(0)).read_text() == f"{name_node_file(0)} of a"
    assert (run / "artifacts/adapter").read_text() == "artifacts/adapter of a"
    assert not (run / "plan.json").exists()  # this machine wrote the plan

    # The usual cluster of ``make_site`` has two hosts, a and b. The file is what the fake ssh
    # prints when it fails to connect to b.
    (fake_hosts / "b.ssh_error").write_text(
        "ssh: connect to host b port 22: Connection timed out\n"
    )
    with pytest.raises(EnvironmentFault, match="b: ssh: connect to host b") as caught:
        ssh.Ssh().collect(EngineJob(spec, make_site(run_root=tmp_path / "remote")))
    # Not the advice on Python, which copying does not need.
    assert caught.value.fix == "make sure that `ssh HOST` works without prompts"


def install_tar(folder: Path, script: str) -> None:
    """Write a program that hosts run in place of tar, which packs their files.

    Args:
        folder: of ``fake_hosts``, which is first on PATH; hosts are this machine.
        script: lines of a shell; what they print is what this machine unpacks.
    """
    program = folder / "tar"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_host_whose_files_cannot_be_unpacked_is_named(
    spec: JobSpec, fake_hosts: Path, make_site: Callable[..., Cluster], tmp_path: Path
) -> None:
    """The caller catches only ``EnvironmentFault``, and then writes the record.

    ``collect`` has each host pack its files with tar and unpacks them here. ``fake_hosts``: all
    hosts are this machine, with the programs of this folder first on PATH.
    """
    site = make_site("a\n", run_root=tmp_path / "remote")
    ssh.locate_remote_folder(spec, site).mkdir(parents=True)
    job = EngineJob(replace(spec, nnodes=1), site)
    # What reaches this machine if the login shell of a host prints a greeting.
    install_tar(fake_hosts, "echo Welcome to host a")
    with pytest.raises(
        EnvironmentFault, match="a: ssh: the files of this host cannot be unpacked: "
    ):
        ssh.Ssh().collect(job)


def test_copying_may_take_longer_than_other_calls(
    spec: JobSpec,
    fake_hosts: Path,
    make_site: Callable[..., Cluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The usual limit of a call is 0 s from the second call on, which packs the files."""
    site = make_site("a\n", run_root=tmp_path / "remote")
    remote_folder = ssh.locate_remote_folder(spec, site)
    remote_folder.mkdir(parents=True)
    (remote_folder / name_node_file(0)).write_text("events")
    num_calls = 0

    def run_and_shorten_limit(*words: str, **options: Any) -> str:
        """Run a program, and leave no time for later ones without a limit of their own."""
        nonlocal num_calls
        num_calls += 1
        output = launchers.run_program(*words, **options)
        monkeypatch.setattr(launchers, "_PROGRAM_TIMEOUT_S", 0.0)
        return output

    monkeypatch.setattr(ssh, "run_program", run_and_shorten_limit)
    ssh.Ssh().collect(EngineJob(replace(spec, nnodes=1), site))
    assert (spec.run_dir / name_node_file(0)).read_text() == "events"
    assert num_calls == 2  # the first one lists files that are too large
